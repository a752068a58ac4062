//! Attacks from inside: a user against the signer, one daemon's account against another's sockets,
//! one user against another's announced port.
#![forbid(unsafe_code)]

#[path = "../attack/mod.rs"]
mod attack;
mod on_keeper;
mod on_keys;
mod on_port;
mod on_signer;
mod programs;
