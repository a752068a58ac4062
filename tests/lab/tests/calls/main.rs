//! The calls of a service's own processes: pre_accept, set_net_user, accept_by_user. What takes a
//! kernel with LSM programs is skipped, and said, on others; the virtual machines run it.
#![forbid(unsafe_code)]

mod destinations;
mod examples;
mod service;
mod serving;
