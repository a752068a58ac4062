//! Users who are admitted by a certificate of an authority that the server trusts. ssh-keygen makes the
//! keys, certificates and revocation lists.

mod admitting;
#[path = "../agent/mod.rs"]
mod agent;
#[path = "../attack/mod.rs"]
mod attack;
mod authority;
mod ending;
#[path = "../reading/mod.rs"]
mod reading;
mod roles;
mod telling;
#[path = "../users/mod.rs"]
mod users;
