//! One file a command.

pub mod agent;
pub mod configuration;
pub mod connect;
pub mod doctor;
pub mod host;
pub mod init;
pub mod key_list;
pub mod log;
pub mod policy;
pub mod user;
pub mod who;
