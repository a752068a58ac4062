//! The system accounts of the roles.

use nix::unistd::User;
use usher_daemon::role::Role;

use crate::failure::Failure;

/// The account of a role.
pub fn of(role: &Role) -> Result<User, Failure> {
    let name = role.account.unwrap_or("root");
    look_up(name)?
        .ok_or_else(|| Failure::Refused(format!("there is no account {name}; run `usher init`")))
}

/// An account, if there is one.
pub fn look_up(name: &str) -> Result<Option<User>, Failure> {
    User::from_name(name)
        .map_err(|error| Failure::Refused(format!("cannot look up the account {name}: {error}")))
}
