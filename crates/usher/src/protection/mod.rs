//! `usher protection`: how the traffic of programs is protected, and with which hosts.

mod peers;
mod show;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

/// Commands about the protection of traffic.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what is protected, and what the kernel has counted
    Show,
    /// Show the hosts with which security associations are negotiated
    Peers,
}

/// Runs a command.
///
/// # Errors
/// When the protector does not answer.
pub fn run(output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Show => show::run(output),
        Command::Peers => peers::run(output),
    }
}
