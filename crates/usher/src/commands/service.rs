//! `usher service list`: the services of the policy in force, and who is live at each.

use serde_json::json;
use usher_daemon::control::ask_daemon;
use usher_local::requests::Who;
use usher_local::roles;
use usher_policy::{Backend, ServedBy, Service, joined};

use super::configuration;
use crate::failure::Failure;
use crate::output::{Output, or_dash, row, table};

/// Prints the services that this host offers by the policy in force.
///
/// # Errors
/// When the configuration in force cannot be read.
pub fn list_services(output: &Output) -> Result<(), Failure> {
    let policy = configuration::check_applied(&configuration::in_force()?)?.policy;
    // An error: the keeper does not run, or the caller is not root.
    let live = ask_daemon(roles::Keeper, &Who {}).ok();
    let services: Vec<_> = policy
        .services
        .values()
        .map(|service| {
            let of_it = |view: &&usher_local::requests::SessionView| view.service == service.name;
            let sessions = live
                .as_ref()
                .map(|view| view.sessions.iter().filter(of_it).count());
            (service, sessions)
        })
        .collect();
    let views = services.iter().map(|(service, sessions)| {
        let (program, identify) = match &service.served_by {
            ServedBy::Program(program) => (Some(&program.path), None),
            ServedBy::Backend(backend) => (None, Some(backend.to_string())),
            ServedBy::Account(_) => (None, None),
        };
        // JSON object [`service`]:
        //   service: The service.
        //   port: Its port.
        //   style: `connection`, `user` or `shared`.
        //   program: The program that the keeper starts, or null.
        //   account: The account of the service's own processes, or null: they run as its users.
        //   identify: How connections are passed on to a server of the account, and its socket, or null.
        //   users: List of texts: the sets of users that it admits.
        //   hosts: List of texts: the hosts that it admits, or null: any.
        //   any_host: True if it admits every host.
        //   sessions: How many sessions it has now. Null: the keeper does not say.
        json!({
            "service": service.name, "port": service.listen, "style": service.style.word(),
            "program": program, "account": service.account(), "identify": identify, "users": service.user_blocks,
            "hosts": (!service.any_host).then_some(&service.hosts), "any_host": service.any_host,
            "sessions": sessions,
        })
    });
    // JSON of `usher service list`: a list of [`service`].
    output.print(&views.collect::<Vec<_>>(), || {
        let rows = services.iter().map(|(service, sessions)| {
            row![
                service.name,
                service.listen,
                service.style,
                served_by(service),
                joined(&service.user_blocks, ", "),
                if service.any_host {
                    "any".to_owned()
                } else {
                    joined(&service.hosts, ", ")
                },
                or_dash(*sessions),
            ]
        });
        let heading = [
            "SERVICE",
            "PORT",
            "STYLE",
            "SERVED BY",
            "USERS",
            "HOSTS",
            "SESSIONS",
        ];
        if services.is_empty() {
            "no services\n".to_owned()
        } else {
            table(heading, rows)
        }
    });
    Ok(())
}

fn served_by(service: &Service) -> String {
    match &service.served_by {
        ServedBy::Program(program) => match &program.account {
            Some(account) => format!("{} as {account}", program.path),
            None => program.path.clone(),
        },
        ServedBy::Account(account) => format!("account {account}"),
        ServedBy::Backend(Backend {
            account, socket, ..
        }) => format!("{socket} of {account}"),
    }
}
