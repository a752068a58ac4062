//! The calls of a service's own processes: pre_accept, set_net_user, accept_by_user. Tests
//! that need LSM programs are skipped, with a message, on kernels without them; the virtual machines
//! run them.
#![forbid(unsafe_code)]

mod destinations;
mod examples;
mod service;
mod serving;
