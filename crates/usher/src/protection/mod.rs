//! `usher protection`: how the traffic of programs is protected, and with which hosts.

mod key;
mod peers;
mod show;
mod sockets;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;

/// Commands about the protection of traffic.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what is protected, live sockets, and what the kernel has counted
    Show {
        /// Show at most so many live sockets [default: 50; all with --json]
        #[arg(long, value_name = "N")]
        sockets: Option<u64>,
    },
    /// Show the hosts with which security associations are negotiated
    Peers,
    /// Make the IKE key that is to take the present one's place
    NewKey,
    /// Put the next IKE key in the present one's place
    UseKey,
}

/// Runs a command.
///
/// # Errors
/// When the protector does not answer, or a key cannot be replaced.
pub fn run(output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Show { sockets } => show::run(output, *sockets),
        Command::Peers => peers::run(output),
        Command::NewKey => key::make_next(output),
        Command::UseKey => key::use_next(output),
    }
}
