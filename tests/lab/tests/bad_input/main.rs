//! Malformed or invalid frames, authenticators, chain elements and announcements. Each is refused with
//! its own reason in the answer and in the log, beside a correct one of the same client, which is
//! served.
#![forbid(unsafe_code)]

mod announcements;
#[path = "../attack/mod.rs"]
mod attack;
mod frames;
mod sessions;
mod statements;
