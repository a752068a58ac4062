//! Users who are let in by a certificate of an authority that the server trusts. Keys, certificates
//! and lists of revoked ones are made by ssh-keygen.

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
