//! Frames, authenticators, chain elements and announcements that are not right, each refused with
//! its own reason in the answer and in the log, beside the right one of the same client, which is
//! served.
#![forbid(unsafe_code)]

mod announcements;
#[path = "../attack/mod.rs"]
mod attack;
mod frames;
mod sessions;
mod statements;
