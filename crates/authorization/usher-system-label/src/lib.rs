//! The MAC labels that this system holds: those of files ([`mod@file`]), of processes ([`process`]), and the one
//! that a user gets at login ([`login`]). What a label is, and its text, is [`usher_label`], without I/O.
//!
//! Room: the attribute of files that the caller names, mac.conf; the iterators that show the labels of processes,
//! the label of the calling process; mac.login and the folders on the way to it, and the name service, which only
//! [`login`] asks. The C library, the commands for labels, pam_usher.so, the keeper and the labeller use it. It
//! knows no module; the kernel asks them.
#![forbid(unsafe_code)]

pub mod file;
pub mod login;
pub mod process;
