//! The calendar server; see the library.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use usher_calendar::worker::{self, WorkerError};

/// Serves each user's calendars (~/.calendars/*.ics) in a process of that user.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Listen, as the service's account, and keep workers waiting for users.
    Serve {
        /// The port that the policy has for the service.
        #[arg(long, default_value_t = 5231)]
        port: u16,
        /// The number of waiting workers.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
        idle: u16,
    },
    /// Serve the connection that is standard input, as the user this process is: for a service
    /// with `program` and style `connection`.
    Connection {
        /// The folder of the calendars, instead of ~/.calendars.
        #[arg(long)]
        directory: Option<PathBuf>,
    },
    /// Wait for a user at the listener that is standard input. Started by `serve`.
    #[command(hide = true)]
    Worker,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("calendar-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), WorkerError> {
    match arguments.command {
        Command::Serve { port, idle } => worker::supervise(port, idle.into()),
        Command::Connection { directory } => worker::serve_standard_input(directory),
        Command::Worker => worker::work(),
    }
}
