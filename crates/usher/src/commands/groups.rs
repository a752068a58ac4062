//! Who is in a group: by this host's name service, or by what a copy of a host's /etc/usher says of
//! it.

use std::collections::BTreeSet;
use std::path::Path;

use nix::unistd::{Group, User};
use usher_local::applied::Applied;
use usher_local::copy::ConfigurationCopy;
use usher_local::paths;
use usher_policy::GroupName;
use usher_system::accounts::with_primary_group;

/// Has this host's name service say who is in the groups that a configuration names.
pub fn look_up(applied: &mut Applied) {
    // One that is damaged is told where it is to be replaced; here it says nothing of who was in.
    let in_force = Applied::load(Path::new(paths::APPLIED));
    let former = in_force.ok().flatten().unwrap_or_default().groups;
    applied.look_up_groups(|name| accounts(name, former.get(name)));
}

/// The accounts that are in a group now; `former` were.
///
/// # Errors
/// Why that cannot be said.
pub fn accounts(
    name: &GroupName,
    former: Option<&BTreeSet<String>>,
) -> Result<BTreeSet<String>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("the name service says: {error}");
    let group = Group::from_name(name.as_ref())
        .map_err(|error| failed(&error))?
        .ok_or("there is no such group")?;
    let mut accounts = with_primary_group(group.gid.as_raw()).map_err(|error| failed(&error))?;
    accounts.extend(group.mem.into_iter().filter(|member| !member.is_empty()));
    // The list of accounts is shorter, without a word, while a directory does not answer: nobody
    // leaves a group by that.
    for account in former.into_iter().flatten() {
        if accounts.contains(account) {
            continue;
        }
        let found = User::from_name(account)
            .map_err(|error| format!("whether {account} is still in it: {}", failed(&error)))?;
        if found.is_some_and(|user| user.gid == group.gid) {
            accounts.insert(account.clone());
        }
    }
    Ok(accounts)
}

/// The accounts of a group by a copy of a host's configuration: its file `groups` has lines of
/// `getent group`, and `passwd`, which may be missing, those of `getent passwd` for who has it as
/// primary group.
///
/// # Errors
/// Why that cannot be said.
pub fn accounts_in_copy(
    copy: &ConfigurationCopy,
    name: &GroupName,
) -> Result<BTreeSet<String>, String> {
    let path = copy.folder().join("groups");
    let text = copy.text("groups").map_err(|error| error.to_string())?;
    let text = text.ok_or_else(|| format!("{} is not there", path.display()))?;
    let (gid, members) = lines(&text, name.as_ref())
        .find_map(|fields| match fields.as_slice() {
            [_, gid, members] => Some((*gid, *members)),
            _ => None,
        })
        .ok_or_else(|| format!("{} has no line of it", path.display()))?;
    let members = members.split(',').filter(|member| !member.is_empty());
    let mut accounts: BTreeSet<String> = members.map(str::to_owned).collect();
    let text = copy.text("passwd").map_err(|error| error.to_string())?;
    let text = text.unwrap_or_default();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (account, primary) = (fields.next(), fields.nth(2));
        if let (Some(account), Some(primary)) = (account, primary)
            && primary == gid
        {
            accounts.insert(account.to_owned());
        }
    }
    Ok(accounts)
}

/// The lines of a name, without it: their fields between `:`.
fn lines<'t>(text: &'t str, name: &'t str) -> impl Iterator<Item = Vec<&'t str>> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(rest.split(':').collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_who_is_in_a_group_and_what_it_lacks_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let copy = ConfigurationCopy::open(folder.path()).unwrap();
        let ask = |name: &str| accounts_in_copy(&copy, &name.parse().unwrap());
        let is_there = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        assert!(ask("ops").unwrap_err().ends_with("groups is not there"));
        is_there(
            "groups",
            "opsx:x:7:mallory\nops:x:70:alice,bob\nempty:x:71:\nodd\n",
        );
        let names = |names: &[&str]| Ok(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(ask("ops"), names(&["alice", "bob"]));
        assert_eq!(ask("empty"), names(&[]));
        assert!(
            ask("odd")
                .unwrap_err()
                .ends_with("groups has no line of it")
        );
        is_there(
            "passwd",
            "carol:x:1003:70:Carol:/home/carol:/bin/sh\ndave:x:70:7:::\n",
        );
        assert_eq!(ask("ops"), names(&["alice", "bob", "carol"]));
    }

    #[test]
    fn the_name_service_says_who_is_in_a_group_and_whom_it_no_longer_knows_has_left() {
        let root: GroupName = "root".parse().unwrap();
        let former = ["no-such-account".to_owned()].into();
        let found = accounts(&root, Some(&former)).unwrap();
        assert!(found.contains("root") && !found.contains("no-such-account"));
        let unknown = accounts(&"no-such-group".parse().unwrap(), None);
        assert_eq!(unknown, Err("there is no such group".into()));
    }
}
