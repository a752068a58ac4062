//! The data that programs and this crate share, generated from the headers of `bpf/include`.
#![allow(dead_code, reason = "a header may declare what only programs use")]

use std::os::fd::{AsRawFd, BorrowedFd};

/// The key for storage of tasks and sockets: a descriptor.
pub fn key(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().unsigned_abs()
}

macro_rules! headers {
    ($($module:ident: $file:literal,)*) => {$(
        pub mod $module {
            #[allow(unused_imports, reason = "what other headers declare")]
            use super::*;
            include!(concat!(env!("OUT_DIR"), "/", $file, ".rs"));
        }
    )*};
}

headers! {
    admission: "usher_shared",
    token: "usher_token",
    ticket: "usher_ticket",
    destinations: "usher_destinations",
    ports: "usher_ports",
    protected: "usher_protected",
    guard: "usher_guard",
    ownership: "usher_ownership",
    mac_label: "usher_mac_label",
}

use admission::Connection;
