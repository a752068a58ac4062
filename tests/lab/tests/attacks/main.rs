//! Attacks on the calls and on what guards them, each beside its permitted twin. Those that need the
//! fence are skipped, and said, on a kernel without LSM programs.
#![forbid(unsafe_code)]

mod attackers;
mod on_calls;
mod on_host;
mod on_network;
mod on_root;
mod on_service;
#[path = "../calls/service.rs"]
mod service;
