//! A calendar server with one process for each user, and its clients: the application in figure 1b
//! of the netAuth paper (USENIX Security 2008).
//!
//! The server has no accounts, no passwords and no code that decides whose calendar to read. A
//! worker waits with Usher for the next user without a process, becomes that user for good, and
//! only then reads and parses anything: a user's input can harm only that user's process. All of a
//! user's programs talk to the same process, which keeps the parsed calendars.
//!
//! `PROTOCOL.md` documents [`protocol`]; `examples/calendar.py` speaks it, too.
#![forbid(unsafe_code)]

pub mod client;
pub mod event;
pub mod mail;
pub mod protocol;
mod recurrence;
pub mod service;
pub mod store;
pub mod text;
pub mod worker;
