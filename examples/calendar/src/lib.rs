//! A calendar server with one process for each user, and its clients: the application that the
//! netAuth paper's figure 1b draws (USENIX Security 2008).
//!
//! The server has no accounts, no passwords and no code that decides whose calendar is read. A
//! worker waits with Usher for the next user who has no process, becomes that user for good, and
//! only then reads and parses anything: what a user sends can harm that user's process only. All
//! of a user's applications talk to the same process, which keeps the parsed calendars.
//!
//! [`protocol`] is told in `PROTOCOL.md`; `examples/calendar.py` speaks it, too.
#![forbid(unsafe_code)]

pub mod client;
pub mod event;
pub mod mail;
pub mod protocol;
pub mod service;
pub mod store;
pub mod text;
pub mod worker;
