//! Members of groups: by this host's name service, or by a copy of a host's /etc/usher.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use nix::unistd::{Group, User};
use usher_local::applied::Applied;
use usher_local::copy::ConfigurationCopy;
use usher_local::paths;
use usher_policy::GroupName;
use usher_system::accounts::with_primary_group;

use crate::failure::Failure;

/// Looks up the groups of a configuration in this host's name service.
pub fn look_up(applied: &mut Applied) {
    // A damaged file is reported when it is to be replaced; here it means that former members are unknown.
    let in_force = Applied::load(Path::new(paths::APPLIED));
    let former = in_force.ok().flatten().unwrap_or_default().groups;
    applied.look_up_groups(|name| accounts(name, former.get(name)));
}

/// The accounts in a group now. `former` has the accounts that were in it before.
pub fn accounts(
    name: &GroupName,
    former: Option<&BTreeSet<String>>,
) -> Result<BTreeSet<String>, Failure> {
    let fails = |error: &dyn Display| {
        Failure::Refused(format!(
            "the name service cannot look up the group: {error}"
        ))
    };
    let group = Group::from_name(name.as_ref()).map_err(|error| fails(&error))?;
    let group = group.ok_or_else(|| Failure::refused("there is no such group"))?;
    let mut accounts = with_primary_group(group.gid.as_raw()).map_err(|error| fails(&error))?;
    accounts.extend(group.mem.into_iter().filter(|member| !member.is_empty()));
    // While a directory does not answer, the list is shorter without an error. Accounts must not leave
    // the group for that reason.
    for account in former.into_iter().flatten() {
        if accounts.contains(account) {
            continue;
        }
        let found = User::from_name(account).map_err(|error| {
            Failure::Refused(format!(
                "cannot look up its former member {account}: {error}"
            ))
        })?;
        if found.is_some_and(|user| user.gid == group.gid) {
            accounts.insert(account.clone());
        }
    }
    Ok(accounts)
}

/// The accounts of a group by a copy of a host's configuration. Its file `groups` has lines of `getent
/// group`. Its file `passwd`, which may be missing, has lines of `getent passwd`, for primary groups.
pub fn accounts_in_copy(
    copy: &ConfigurationCopy,
    name: &GroupName,
) -> Result<BTreeSet<String>, Failure> {
    let path = copy.folder().join("groups");
    let lacks = |what: &str| Failure::Refused(format!("{} {what}", path.display()));
    let text = copy.text("groups")?;
    let text = text.ok_or_else(|| lacks("does not exist"))?;
    let mut groups = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = groups.find_map(|fields| match fields[..] {
        [group, _, gid, members] if group == name.as_ref() => Some((gid, members)),
        _ => None,
    });
    let (gid, members) = found.ok_or_else(|| lacks("has no line for it"))?;
    let members = members.split(',').filter(|member| !member.is_empty());
    let mut accounts: BTreeSet<String> = members.map(str::to_owned).collect();
    for line in copy.text("passwd")?.unwrap_or_default().lines() {
        let mut fields = line.split(':');
        if let (Some(account), Some(primary)) = (fields.next(), fields.nth(2))
            && primary == gid
        {
            accounts.insert(account.to_owned());
        }
    }
    Ok(accounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_who_is_in_a_group_and_what_it_lacks_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let copy = ConfigurationCopy::open(folder.path()).unwrap();
        let ask = |name: &str| {
            let found = accounts_in_copy(&copy, &name.parse().unwrap());
            found.map_err(|error| error.to_string())
        };
        let is_there = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        assert!(ask("ops").unwrap_err().ends_with("groups does not exist"));
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
                .ends_with("groups has no line for it")
        );
        is_there(
            "passwd",
            "carol:x:1003:70:Carol:/home/carol:/bin/sh\ndave:x:70:7:::\n",
        );
        assert_eq!(ask("ops"), names(&["alice", "bob", "carol"]));
    }

    #[test]
    fn the_name_service_decides_the_members_of_a_group() {
        let root: GroupName = "root".parse().unwrap();
        let former = ["no-such-account".to_owned()].into();
        let found = accounts(&root, Some(&former)).unwrap();
        assert!(found.contains("root") && !found.contains("no-such-account"));
        let unknown = accounts(&"no-such-group".parse().unwrap(), None);
        assert_eq!(unknown.unwrap_err().to_string(), "there is no such group");
    }
}
