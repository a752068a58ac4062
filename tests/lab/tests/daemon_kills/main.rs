//! Daemons are killed while connections are announced: each connection is its user's all the same.
#![forbid(unsafe_code)]

mod disabling;
mod ports;
mod service;
mod storm;
