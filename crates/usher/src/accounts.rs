//! Accounts of this host: those of the roles, and those that a policy names.

use nix::unistd::{Group, User};
use usher_daemon::role::Role;

use crate::failure::Failure;

/// The account of a role.
pub fn account_of_role(role: &Role) -> Result<User, Failure> {
    let name = role.account.unwrap_or("root");
    look_up(name)?
        .ok_or_else(|| Failure::Refused(format!("there is no account {name}; run `usher init`")))
}

/// An account, if there is one.
pub fn look_up(name: &str) -> Result<Option<User>, Failure> {
    User::from_name(name)
        .map_err(|error| Failure::Refused(format!("cannot look up the account {name}: {error}")))
}

/// A group, if there is one.
pub fn look_up_group(name: &str) -> Result<Option<Group>, Failure> {
    Group::from_name(name)
        .map_err(|error| Failure::Refused(format!("cannot look up the group {name}: {error}")))
}
