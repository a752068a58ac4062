//! The hosts, host keys and users that an earlier policy brings back. They may have been removed for cause: a
//! host whose key is stolen, or a user who was disabled and then removed with the mark, after the policy had
//! stopped naming the user.

use std::collections::BTreeSet;

use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_policy::{Host, Policy, Users};

use super::removal::by_certificate;

/// The parts of a policy that the one in force lacks, in words for people: each host and host key, each user,
/// group and principal of a set, and each user without an entry whom certificates admit by it. `fresh` is the
/// configuration with that policy, and `checked` is `fresh`, checked.
pub(super) fn returning(former: &Applied, fresh: &Applied, checked: &Checked) -> Vec<String> {
    // If this version cannot read the policy in force, everything counts as coming back.
    let present = former.check().ok();
    let nothing = Policy::default();
    let in_force = present.as_ref().map_or(&nothing, |present| &present.policy);
    let mut found = of_policy(in_force, &checked.policy, unix_time());
    let users = checked.policy.users.values().flat_map(Users::users);
    let unlisted: BTreeSet<&UserName> = users
        .filter(|user| !fresh.users.contains_key(*user))
        .collect();
    let by_certificate = unlisted.into_iter().filter_map(|user| {
        let before = present.as_ref().and_then(|one| by_certificate(one, user));
        by_certificate(checked, user).filter(|_| before.is_none())
    });
    found.extend(by_certificate);
    found
}

fn of_policy(present: &Policy, fresh: &Policy, now: u64) -> Vec<String> {
    let hosts = fresh.hosts.values();
    let mut found: Vec<String> = hosts
        .flat_map(|host| keys_of(present.hosts.get(&host.name), host))
        .collect();
    for set in fresh.users.values() {
        let back = members_of(present.users.get(&set.name), set, now).into_iter();
        found.extend(back.map(|who| format!("{who} in `users {}`", set.name)));
    }
    found
}

fn keys_of(known: Option<&Host>, host: &Host) -> Vec<String> {
    let keys = host.keys.iter();
    let keys = keys.filter(|key| known.is_none_or(|known| !known.keys.contains(key)));
    let keys = keys.map(|key| ("key", key.fingerprint()));
    let ike_keys = host.ike_keys.iter();
    let ike_keys = ike_keys.filter(|key| known.is_none_or(|known| !known.ike_keys.contains(key)));
    let ike_keys = ike_keys.map(|key| ("ike-key", key.fingerprint()));
    keys.chain(ike_keys)
        .map(|(word, fingerprint)| format!("`host {}` with the {word} {fingerprint}", host.name))
        .collect()
}

/// The users of a set, guests whose time is not over, and groups and principals.
fn members_of(known: Option<&Users>, set: &Users, now: u64) -> Vec<String> {
    let lasting =
        |user: &UserName| known.is_some_and(|known| known.lasting().any(|one| one == user));
    let members = set.members.iter().filter(|user| !lasting(user));
    let mut found: Vec<String> = members.map(|user| format!("the user {user}")).collect();
    for (user, until) in &set.guests {
        let before = known.and_then(|known| known.guests.get(user));
        let before = before.map_or(now, |before| before.unix_time());
        if until.unix_time() > before.max(now) && !lasting(user) {
            found.push(format!("the guest {user} until {until}"));
        }
    }
    for group in set.groups.keys() {
        if known.is_none_or(|known| !known.groups.contains_key(group)) {
            found.push(format!("the group {group}"));
        }
    }
    for principal in &set.principals {
        if known.is_none_or(|known| !known.principals.contains(principal)) {
            found.push(format!("the principal {principal}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use usher_policy::{Source, parse_policy};

    use super::*;

    fn policy(text: &str) -> Policy {
        let (name, text) = ("a.policy".into(), text.into());
        parse_policy(&[Source { name, text }]).unwrap()
    }

    const HOST: &str = "host a { address 10.0.0.1; key \"ssh-ed25519 \
                        AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t\"; }\n";

    #[test]
    fn hosts_keys_and_members_that_come_back_are_named() {
        let before = policy(&format!(
            "{HOST}users staff {{ member alice, bob; guest carol until 2030-01-01T00:00Z; principal ops; }}\n"
        ));
        let now = policy(
            "users staff { member alice; guest carol until 2029-01-01T00:00Z; }\nusers other { member \
             bob; }\n",
        );
        let found = of_policy(&now, &before, 1_700_000_000);
        let [host, bob, carol, ops] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(host.starts_with("`host a` with the key SHA256:"), "{host}");
        assert_eq!(bob, "the user bob in `users staff`");
        assert_eq!(
            carol,
            "the guest carol until 2030-01-01T00:00Z in `users staff`"
        );
        assert_eq!(ops, "the principal ops in `users staff`");
        // The guest's time is over by then.
        assert_eq!(of_policy(&now, &before, 2_000_000_000).len(), 3);
        assert_eq!(of_policy(&before, &before, 0), [""; 0]);
        // Users whom only the policy in force has do not come back.
        assert_eq!(of_policy(&before, &policy(""), 0), [""; 0]);
        assert_eq!(of_policy(&policy(""), &before, 1_700_000_000).len(), 5);
    }

    #[test]
    fn another_key_of_a_known_host_is_named() {
        let other = HOST.replace("E1t\"", "E1u\"");
        let (before, now) = (policy(HOST), policy(&other));
        assert_eq!(of_policy(&now, &before, 0).len(), 1);
        assert_eq!(of_policy(&now, &now, 0), [""; 0]);
    }
}
