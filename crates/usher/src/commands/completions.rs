//! `usher completions`: what a shell needs to complete this command's words.
//!
//! The words come from the declaration of the command line, so that no list is kept by hand. Names of the
//! policy (users, hosts, services) are not completed: the policy would have to be read at each key.

use std::io::Write;

use clap::{Command, ValueEnum};
use clap_complete::aot::{Bash, Fish, Zsh, generate};

use crate::failure::Failure;

/// Shells that load a file of completions by the command's name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the script of a shell.
///
/// # Errors
/// When standard output cannot be written to.
pub fn print(shell: Shell, mut command: Command) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    match shell {
        Shell::Bash => generate(Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(Fish, &mut command, name, &mut script),
    }
    match std::io::stdout().write_all(&script) {
        // A reader may close early.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::Attempt {
            what: "cannot write the completions",
            error,
        }),
        _ => Ok(()),
    }
}
