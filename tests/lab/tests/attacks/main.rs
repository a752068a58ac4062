//! Attacks on the calls and their guards, each beside its permitted twin. On a kernel without LSM
//! programs, tests that need the fence are skipped, and report it.
#![forbid(unsafe_code)]

mod attackers;
mod on_calls;
mod on_host;
mod on_network;
mod on_root;
mod on_service;
#[path = "../calls/service.rs"]
mod service;
