//! `usher policy check` and `usher policy apply`.

use std::path::PathBuf;

use usher_local::applied::{Applied, Checked, PolicyFile, read_bounded};
use usher_local::paths;
use usher_policy::{Policy, ServedBy, Service};
use usher_proto::name::UserName;

use super::configuration;
use crate::failure::Failure;
use crate::output::Output;

/// Checks the given files, or the policy folder and the users' keys.
///
/// # Errors
/// All errors of the policy.
pub fn check(output: &Output, files: &[PathBuf]) -> Result<(), Failure> {
    let applied = if files.is_empty() {
        configuration::collect()?
    } else {
        let sources = files
            .iter()
            .map(|path| {
                Ok(PolicyFile {
                    name: path.display().to_string(),
                    text: read_bounded(path)?,
                })
            })
            .collect::<Result<_, Failure>>()?;
        Applied {
            sources,
            ..Applied::default()
        }
    };
    let Checked { policy, keys, .. } = configuration::check(&applied)?;
    let mut warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    if applied.sources.is_empty() {
        warnings.push(format!(
            "{} has no *.policy file: nothing is permitted",
            paths::POLICY_DIRECTORY
        ));
    }
    if files.is_empty() {
        warnings.extend(services_that_cannot_run(&policy));
        // Only the whole configuration says who has keys.
        warnings.extend(
            policy
                .services
                .values()
                .flat_map(|service| service.users.iter().map(move |user| (service, user)))
                .filter(|(service, user)| {
                    let keys = keys.get(*user).map_or(&[][..], Vec::as_slice);
                    !keys.iter().any(|key| key.purpose == service.keys)
                })
                .map(|(service, user)| {
                    let purpose = service
                        .keys
                        .as_ref()
                        .map_or_else(String::new, |purpose| format!(" --key {purpose}"));
                    format!(
                        "`service {}` admits {user}, who has no public key here for it: `usher \
                         user add {user} --public-key FILE{purpose}`",
                        service.name
                    )
                }),
        );
    }
    for warning in &warnings {
        eprintln!("warning: {warning}");
    }
    let value = serde_json::json!({
        "hosts": policy.hosts.len(), "users": policy.users.len(),
        "services": policy.services.len(), "clients": policy.clients.len(),
        "warnings": warnings,
    });
    output.print(&value, || {
        format!(
            "the policy is sound: {} host(s), {} users block(s), {} service(s), {} client block(s)",
            policy.hosts.len(),
            policy.users.len(),
            policy.services.len(),
            policy.clients.len()
        )
    });
    Ok(())
}

/// Puts the policy folder in force.
///
/// # Errors
/// As [`configuration::put_in_force`].
pub fn apply(output: &Output) -> Result<(), Failure> {
    let lock = configuration::lock()?;
    let fresh = configuration::collect()?;
    let policy = configuration::check(&fresh)?.policy;
    for warning in policy.warnings() {
        eprintln!("warning: {warning}");
    }
    for warning in services_that_cannot_run(&policy)
        .into_iter()
        .chain(services_without_fence(&policy))
    {
        eprintln!("warning: {warning}");
    }
    let outcome = configuration::put_in_force(&lock, fresh)?;
    output.print(&outcome, || configuration::describe(&outcome));
    Ok(())
}

/// Services of this host whose processes cannot run on it as things are.
fn services_that_cannot_run(policy: &Policy) -> Vec<String> {
    let services = policy.services.values();
    services.filter_map(why_it_cannot_run).collect()
}

/// Services whose sessions this host refuses, for want of the fence that they need.
fn services_without_fence(policy: &Policy) -> Option<String> {
    let of_accounts = |service: &&Service| matches!(service.served_by, ServedBy::Account(_));
    let services: Vec<String> = policy
        .services
        .values()
        .filter(of_accounts)
        .map(|service| format!("`service {}`", service.name))
        .collect();
    if services.is_empty() {
        return None;
    }
    let reason = usher_kernel::probe::lsm_programs_run().err()?;
    Some(format!(
        "sessions with {} are refused: {reason}",
        services.join(", ")
    ))
}

fn why_it_cannot_run(service: &Service) -> Option<String> {
    let reason = match &service.served_by {
        ServedBy::Program(program) => fault_of_program(&program.path),
        ServedBy::Account(account) => fault_of_account(account),
    }?;
    Some(format!("`service {}`: {reason}", service.name))
}

fn fault_of_program(path: &str) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let executable = std::fs::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    (!executable).then(|| format!("{path} is missing on this host or not executable"))
}

fn fault_of_account(account: &UserName) -> Option<String> {
    match nix::unistd::User::from_name(account.as_ref()) {
        Ok(Some(found)) if found.uid.is_root() => Some(format!(
            "the account {account} has user id 0, which no service may have; name another"
        )),
        Ok(Some(_)) => None,
        Ok(None) => Some(format!(
            "there is no account {account} on this host yet; make it first"
        )),
        Err(error) => Some(format!("cannot look up the account {account}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use usher_policy::{Source, parse};

    use super::*;

    fn warnings_with(served_by: &str) -> Vec<String> {
        let text = format!(
            "users u {{ member alice; }}
             service s {{ {served_by}; listen 143; users u; hosts any; style user; }}"
        );
        let name = "test.policy".into();
        services_that_cannot_run(&parse(&[Source { name, text }]).expect("a correct policy"))
    }

    #[test]
    fn a_program_or_account_that_does_not_exist_is_warned_of_and_one_that_does_is_not() {
        assert_eq!(warnings_with("program \"/bin/sh\""), [""; 0]);
        assert_eq!(
            warnings_with("program \"/nonexistent/program\""),
            ["`service s`: /nonexistent/program is missing on this host or not executable"]
        );
        assert_eq!(warnings_with("account nobody"), [""; 0]);
        assert_eq!(
            warnings_with("account no-such-account"),
            ["`service s`: there is no account no-such-account on this host yet; make it first"]
        );
    }
}
