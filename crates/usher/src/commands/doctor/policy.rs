//! The needs of the policy in force, on this host.

use std::collections::BTreeSet;
use std::path::Path;

use usher_daemon::clock::unix_time;
use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_local::keys::private_key_name;
use usher_local::paths;
use usher_local::roles::{OFFERS, REACHES};
use usher_policy::joined;

use super::{Finding, Jobs, some};
use crate::commands::{configuration, groups};

/// Whether the policy in force has a `host` block with this host's key; none if nothing depends on it, or
/// this host has no key.
pub fn host_block(checked: &Checked, jobs: &Jobs) -> Option<Finding> {
    if !jobs.has(OFFERS) && !jobs.has(REACHES) {
        return None;
    }
    let outcome = match checked.policy.host_by_key(&configuration::host_key().ok()?) {
        Some(host) => (true, format!("by its key this host is {}", host.name)),
        None => (
            false,
            format!(
                "{}, or correct its `key`, then run `usher policy apply`",
                configuration::NO_HOST
            ),
        ),
    };
    let need = "sessions with other hosts, which know each other by these keys";
    Some(Finding::new("host block", need, outcome))
}

/// Whether each user of a `client` block has a key to sign with; none if no block names a user, or the
/// caller may not read the folder.
pub fn keys_to_sign_with(checked: &Checked) -> Option<Finding> {
    let folder = Path::new(paths::PRIVATE_KEYS_DIRECTORY);
    if std::fs::read_dir(folder).is_err_and(|e| e.kind() != std::io::ErrorKind::NotFound) {
        return None;
    }
    let now = unix_time();
    let (mut named, mut missing) = (BTreeSet::new(), BTreeSet::new());
    for service in checked.policy.client_services() {
        let users = service.users.names().iter();
        for user in users.filter(|user| service.users.has(user, now)) {
            named.insert(user);
            if !folder
                .join(private_key_name(user, service.key.as_ref()))
                .exists()
            {
                let purpose = service.key.as_ref();
                let key = purpose.map_or_else(String::new, |key| format!(" for {key}"));
                missing.insert(format!("{user}{key}"));
            }
        }
    }
    let missing: Vec<String> = missing.into_iter().collect();
    let detail = match missing.as_slice() {
        [] => format!("all {} user(s) of `client` blocks have one", named.len()),
        missing => format!(
            "missing for {}: `usher user add USER --private-key FILE`, or --agent-key",
            some(missing)
        ),
    };
    (!named.is_empty()).then(|| {
        let need = "these users to reach services of other hosts";
        let outcome = (missing.is_empty(), detail);
        Finding::optional("keys to sign with", Some(REACHES), need, outcome)
    })
}

/// Whether the groups in force have changed since the policy was applied; none if it names no group.
pub fn groups(in_force: &Applied) -> Option<Finding> {
    let changed: Vec<String> = in_force
        .groups
        .iter()
        .filter_map(
            |(name, accounts)| match groups::accounts(name, Some(accounts)) {
                Ok(now) if now == *accounts => None,
                Ok(now) => {
                    let come = now.difference(accounts).map(|name| format!("+{name}"));
                    let gone = accounts.difference(&now).map(|name| format!("-{name}"));
                    let accounts = joined(come.chain(gone).take(8), ", ");
                    Some(format!(
                        "{name} has changed ({accounts}): run `usher policy apply`"
                    ))
                }
                Err(error) => Some(format!("{name}: {error}")),
            },
        )
        .collect();
    let number = in_force.groups.len();
    let detail = match changed.as_slice() {
        [] => format!("{number} in force, unchanged in the name service"),
        changed => changed.join("; "),
    };
    (number > 0).then(|| {
        let need = "the policy in force to follow its groups";
        Finding::optional("groups", None, need, (changed.is_empty(), detail))
    })
}
