//! `usher policy check` and `usher policy apply`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_daemon::control::ask_daemon;
use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_local::requests::Protection;
use usher_local::{paths, roles, writers};
use usher_policy::{Need, Policy};

use super::configuration::{self, OnRefusal};
use super::connected_sockets::{self, Connected};
use super::warning::{Warning, said, with_places};
use super::{groups, kept, ports_in_use, this_host};
use crate::accounts;
use crate::failure::Failure;
use crate::output::{Output, warn};

/// Checks the given files, or the policy folder and the users' keys.
pub fn check_files(output: &Output, files: &[PathBuf]) -> Result<(), Failure> {
    let applied = if files.is_empty() {
        configuration::collect()?
    } else {
        let mut applied = Applied::default();
        applied.read_policy(files)?;
        groups::look_up(&mut applied);
        applied
    };
    let mut checked = configuration::check_applied(&applied)?;
    let unresolved = configuration::look_up_names(&mut checked.policy);
    let policy = &checked.policy;
    let now = unix_time();
    let summary = summary(policy);
    let mut warnings = warnings_of(policy, now);
    warnings.extend(unresolved.into_iter().map(Warning::from));
    if applied.sources.is_empty() {
        warnings.push(no_file().into());
    } else if summary.is_none() {
        let text = "these files have no block: nothing is permitted";
        warnings.push(text.to_owned().into());
    }
    warnings.extend(policy.needs.unmet().into_iter().map(|need| {
        let Need { says, needs, place } = need;
        let text = format!(
            "{place}: {says} needs {needs}, which this version does not have: `usher policy apply` \
             refuses the policy"
        );
        Warning::from(text)
    }));
    if files.is_empty() {
        warnings.extend(this_host::warnings(policy));
        warnings.extend(users_without_accounts(policy));
        warnings.extend(this_host::unknown_accounts(policy));
        // Only the whole configuration has the users' keys.
        warnings.extend(principals_of_no_authority(&checked, now));
        warnings.extend(users_without_keys(&checked, now));
        warnings.extend(writers::warnings(&applied).into_iter().map(Warning::from));
    }
    let warnings = with_places(warnings, &applied);
    for warning in &warnings {
        warn(warning);
    }
    // JSON of `usher policy check`:
    //   hosts: The number of hosts.
    //   users: The number of sets of users.
    //   services: The number of services.
    //   clients: The number of `client` blocks.
    //   applications: The number of `application` blocks.
    //   mac: The number of `mac` blocks.
    //   expectations: The number of `expect` statements.
    //   warnings: List of texts, each with its place.
    let value = serde_json::json!({
        "hosts": policy.hosts.len(), "users": policy.users.len(),
        "services": policy.services.len(), "clients": policy.clients.len(),
        "applications": policy.applications.len(), "mac": policy.mac.len(),
        "expectations": policy.expectations.len(), "warnings": warnings,
    });
    output.print(&value, || {
        let summary = summary.as_deref().unwrap_or("it is empty");
        format!("the policy is sound: {summary}")
    });
    Ok(())
}

fn no_file() -> String {
    format!(
        "{} has no *.policy file: nothing is permitted",
        paths::POLICY_DIRECTORY
    )
}

/// How many blocks of each kind a policy has; none: it has no block.
fn summary(policy: &Policy) -> Option<String> {
    let counts = [
        ("host", "hosts", policy.hosts.len()),
        ("set of users", "sets of users", policy.users.len()),
        ("service", "services", policy.services.len()),
        ("client block", "client blocks", policy.clients.len()),
        (
            "application block",
            "application blocks",
            policy.applications.len(),
        ),
        ("mac block", "mac blocks", policy.mac.len()),
        ("expectation", "expectations", policy.expectations.len()),
    ];
    let counts = counts
        .iter()
        .filter_map(|(one, several, count)| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{count} {several}")),
        });
    let counts: Vec<String> = counts.collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

/// Puts the policy folder in force. `take_ssh_port`: also if a service has the port of an SSH server.
pub fn apply(output: &Output, take_ssh_port: bool) -> Result<(), Failure> {
    let lock = configuration::lock()?;
    let (fresh, checked) = candidate()?;
    if !take_ssh_port {
        spare_ssh(&checked)?;
    }
    let (former, sources) = (configuration::former()?, fresh.sources.clone());
    let connected = Connected::of_former(&former.applied);
    let outcome = configuration::put_in_force(&lock, fresh, OnRefusal::RollBack)?;
    if former.damage.is_some() {
        warn(&format!(
            "{} was damaged, and has been written anew: who gains and who loses by this is unknown",
            paths::APPLIED
        ));
    }
    kept::keep(&former.applied, &sources, outcome.generation);
    // Users choose how long the rest takes, and others may change the configuration meanwhile.
    drop(lock);
    connected_sockets::mark(&checked.policy, connected);
    // JSON of `usher policy apply`: [`Outcome`].
    output.print(&outcome, || configuration::describe(&outcome));
    for trouble in troubles_of_protection(&checked.policy) {
        warn(&trouble);
    }
    Ok(())
}

/// The reasons that traffic is not protected as the new policy says, for instance programs that the
/// protector has not found.
pub(super) fn troubles_of_protection(policy: &Policy) -> Vec<String> {
    if !policy.has_protection() {
        return Vec::new();
    }
    // The command has warned of these before.
    let told = this_host::unmatched_ike_keys(policy);
    match ask_daemon(roles::Protector, &Protection {}) {
        Ok(mut view) => {
            view.troubles.retain(|trouble| !told.contains(trouble));
            view.troubles
        }
        Err(error) => vec![error.to_string()],
    }
}

/// The configuration below /etc/usher, checked and ready to be put in force. Prints its warnings.
///
/// # Errors
/// When this host is not prepared, a file cannot be read, the configuration is wrong, or this version cannot
/// enforce it.
pub fn candidate() -> Result<(Applied, Checked), Failure> {
    if !configuration::is_prepared() {
        return Err(Failure::refused(configuration::NOT_PREPARED));
    }
    let fresh = configuration::collect()?;
    if fresh.sources.is_empty() {
        return Err(Failure::Refused(format!(
            "{}; if that is meant, put an empty file there: touch {}/empty.policy",
            no_file(),
            paths::POLICY_DIRECTORY
        )));
    }
    checked(fresh)
}

/// A configuration that is about to be put in force, checked. Prints its warnings.
///
/// # Errors
/// When the configuration is wrong, or this version cannot enforce it.
pub fn checked(fresh: Applied) -> Result<(Applied, Checked), Failure> {
    let checked = configuration::check_applied(&fresh)?;
    let policy = &checked.policy;
    let mut warnings = warnings_of(policy, unix_time());
    warnings.extend(this_host::warnings(policy));
    warnings.extend(this_host::services_without_fence(policy));
    warnings.extend(this_host::marks_of_others(policy));
    warnings.extend(writers::warnings(&fresh).into_iter().map(Warning::from));
    for warning in with_places(warnings, &fresh) {
        warn(&warning);
    }
    Ok((fresh, checked.enforceable()?))
}

/// Refuses a configuration that would take the port by which administrators log in, unless the one in force
/// has it already.
///
/// # Errors
/// As [`ports_in_use::spare_ssh`], or when the configuration in force cannot be read.
pub fn spare_ssh(checked: &Checked) -> Result<(), Failure> {
    // A configuration that this version cannot read counts as one without services.
    let in_force = configuration::former()?.applied.check().ok();
    ports_in_use::spare_ssh(
        &checked.policy,
        in_force.as_ref().map(|present| &present.policy),
    )
}

/// Warnings about the policy itself, at this time.
fn warnings_of(policy: &Policy, now: u64) -> Vec<Warning> {
    let warnings = policy.warnings().into_iter();
    let warnings = warnings.chain(policy.guests_over(now));
    warnings.map(Warning::from).collect()
}

/// Users of services who have no valid key for them.
fn users_without_keys(checked: &Checked, now: u64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for service in checked.policy.services.values() {
        let purpose = service.keys.as_ref();
        let users = service.users.names().iter();
        let users = users.filter(|user| service.users.has(user, now));
        for user in users.filter(|user| !checked.has_way_in(user, purpose, now)) {
            let option = purpose.map_or_else(String::new, |purpose| format!(" --key {purpose}"));
            let which = match checked.keys_for(user, purpose).next() {
                None => "no public key here for it",
                Some(_) => "no valid public key here for it: each has expired or is revoked",
            };
            let text = format!(
                "`service {}` admits {user}, who has {which}: `usher user add {user} --public-key \
                 FILE{option}`",
                service.name
            );
            warnings.push(Warning::about(said(service, "users"), text));
        }
    }
    warnings
}

/// Members and guests without an account on this host: nothing can run as them, or ask as them.
fn users_without_accounts(policy: &Policy) -> Vec<Warning> {
    let named: BTreeSet<&UserName> = policy
        .users
        .values()
        .flat_map(|set| set.members.iter().chain(set.guests.keys()))
        .collect();
    let mut missing = BTreeSet::new();
    for user in named {
        match accounts::look_up(user.as_ref()) {
            Ok(Some(_)) => {}
            Ok(None) => {
                missing.insert(user);
            }
            Err(failure) => return vec![failure.to_string().into()],
        }
    }
    let clauses = policy.users.values().flat_map(|set| {
        let users = missing.iter().filter_map(|user| {
            let clause = set.clauses_of(user).into_iter();
            let mut clause = clause.filter(|clause| clause.keyword != "group");
            Some((user, clause.next()?))
        });
        users.collect::<Vec<_>>()
    });
    clauses
        .map(|(user, clause)| {
            let text = format!(
                "{user} has no account on this host: the user is refused until there is one"
            );
            Warning::about(clause, text)
        })
        .collect()
}

/// Principals that no certificate can name for a service that admits them.
fn principals_of_no_authority(checked: &Checked, now: u64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for service in checked.policy.services.values() {
        let purpose = service.keys.as_ref();
        let principals = service.users.principals().iter();
        for principal in principals.filter(|one| !checked.can_certify(one.as_ref(), purpose, now)) {
            let list = match purpose {
                Some(purpose) => format!("a `cert-authority` line in authorized_keys.{purpose}"),
                None => format!(
                    "an authority in {}, or a `cert-authority` line",
                    paths::USER_AUTHORITIES
                ),
            };
            let text = format!(
                "`service {}` admits holders of certificates with the principal {principal}, and \
                 no authority is trusted to name it: add {list}",
                service.name
            );
            warnings.push(Warning::about(said(service, "users"), text));
        }
    }
    warnings
}
