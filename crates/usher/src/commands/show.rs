//! `usher policy show`: the policy in force, in its canonical form.

use serde_json::json;
use usher_base::HostName;
use usher_local::applied::Applied;
use usher_policy::{Policy, Service, Source, joined};

use super::configuration;
use crate::failure::Failure;
use crate::output::Output;

/// Prints the policy in force.
///
/// # Errors
/// When no policy is in force, or it cannot be read.
pub fn run(output: &Output) -> Result<(), Failure> {
    let applied = configuration::in_force()?;
    if applied.generation == 0 {
        return Err(Failure::refused(
            "no configuration is in force on this host, so nothing is permitted; `usher policy \
             apply` puts one in force",
        ));
    }
    let policy = configuration::check_applied(&applied)?.policy;
    let host = own_name(&policy);
    let offers = policy.services.values();
    // JSON object [`offered_service`]:
    //   service: The service.
    //   port: Its port.
    let offers = offers.map(|service| json!({ "service": service.name, "port": service.listen }));
    let reaches = policy
        .client_services()
        // JSON object [`reached_service`]:
        //   service: The service.
        //   host: Its host.
        //   port: Its port.
        .map(|entry| json!({ "service": entry.service, "host": entry.host, "port": entry.port }));
    let files = applied.sources.iter().map(|file| &file.name);
    let canonical = canonical(&policy);
    // JSON of `usher policy show`:
    //   generation: The number of the configuration in force.
    //   host: This host's name in it, or null: no `host` block has this host's key.
    //   offers: List of [`offered_service`].
    //   reaches: List of [`reached_service`].
    //   files: List of texts: the files that the policy was read from.
    //   groups: Object: the accounts of each group as of the apply, a list of texts by name.
    //   policy: The policy in its canonical form.
    let view = json!({
        "generation": applied.generation, "host": host, "offers": offers.collect::<Vec<_>>(),
        "reaches": reaches.collect::<Vec<_>>(), "files": files.collect::<Vec<_>>(),
        // With their accounts at the time of the apply.
        "groups": applied.groups, "policy": canonical,
    });
    output.print(&view, || {
        head(&applied, &policy, host.as_ref()) + &canonical
    });
    Ok(())
}

/// The name of this host in the policy, by its key.
fn own_name(policy: &Policy) -> Option<HostName> {
    let key = configuration::host_key().ok()?;
    policy.host_by_key(&key).map(|host| host.name.clone())
}

fn canonical(policy: &Policy) -> String {
    let source = Source {
        name: String::new(),
        text: policy.to_text(),
    };
    // A text that is too long for one file stays as it is.
    usher_policy::format(&source).unwrap_or(source.text)
}

/// Comments before the policy, so that the whole is a valid policy.
fn head(applied: &Applied, policy: &Policy, host: Option<&HostName>) -> String {
    let host = host.map_or_else(
        || "this host, which has no `host` block in it".to_owned(),
        ToString::to_string,
    );
    let mut text = format!(
        "# configuration {} in force on {host}\n",
        applied.generation
    );
    for Service { name, listen, .. } in policy.services.values() {
        text += &format!("# offers {name} at port {listen}\n");
    }
    for entry in policy.client_services() {
        text += &format!("# reaches {}\n", entry.target());
    }
    for file in &applied.sources {
        text += &format!("# from {}\n", file.name);
    }
    for (group, accounts) in &applied.groups {
        text += &format!("# group {group}: {}\n", joined(accounts, ", "));
    }
    text.push('\n');
    text
}
