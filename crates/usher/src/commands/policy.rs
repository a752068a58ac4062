//! `usher policy check` and `usher policy apply`.

use std::path::PathBuf;

use usher_local::applied::{Applied, PolicyFile, read_bounded};
use usher_local::paths;
use usher_policy::Policy;

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
    let policy = configuration::check(&applied)?.policy;
    let mut warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    if applied.sources.is_empty() {
        warnings.push(format!(
            "{} has no *.policy file: nothing is permitted",
            paths::POLICY_DIRECTORY
        ));
    }
    if files.is_empty() {
        warnings.extend(missing_programs(&policy));
        // Only the whole configuration says who has keys.
        warnings.extend(
            policy
                .services
                .values()
                .flat_map(|service| service.users.iter().map(move |user| (service, user)))
                .filter(|(_, user)| {
                    applied.users.get(*user).is_none_or(|entry| entry.authorized_keys.trim().is_empty())
                })
                .map(|(service, user)| {
                    format!("`service {}` admits {user}, who has no public key here: `usher user add {user} --public-key FILE`", service.name)
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
    for warning in missing_programs(&policy) {
        eprintln!("warning: {warning}");
    }
    let outcome = configuration::put_in_force(&lock, fresh)?;
    output.print(&outcome, || configuration::describe(&outcome));
    Ok(())
}

/// Services of this host whose program cannot be started.
fn missing_programs(policy: &Policy) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt;
    policy
        .services
        .values()
        .filter(|service| {
            !std::fs::metadata(&service.program)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
        .map(|service| {
            format!(
                "`service {}`: {} is missing on this host or not executable",
                service.name, service.program
            )
        })
        .collect()
}
