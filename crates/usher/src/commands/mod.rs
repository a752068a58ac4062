//! One file a command.
//!
//! Room: with the caller's rights, files of the configuration, standard output, control sockets; `setup` runs
//! other programs, here and by ssh.

pub mod agent;
pub mod analysis;
pub mod completions;
pub mod configuration;
pub mod connect;
mod connected_sockets;
pub mod disable;
pub mod doctor;
pub mod dry_run;
pub mod format;
mod governed_scripts;
mod governed_sockets;
pub mod groups;
pub mod history;
pub mod host;
pub mod host_key;
pub mod init;
pub mod kept;
pub mod key_exchange;
pub mod key_list;
pub mod keys;
mod listed_programs;
pub mod log;
mod mentions;
mod owners;
pub mod policy;
mod ports_in_use;
mod readmission;
pub mod removal;
pub mod rename;
pub mod service;
pub mod setup;
pub mod show;
mod this_host;
pub mod user;
mod warning;
pub mod who;
pub mod whois;
