//! The clients of the calendar server: one command for each.
#![forbid(unsafe_code)]

mod feed;
mod remind;
mod view;

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use usher::{HostName, ServiceName};
use usher_calendar::client::{Client, ClientError};
use usher_calendar::mail::MailError;
use usher_calendar::protocol::{Answer, MAXIMUM_ADDED, Request};

/// Your calendars on another host, read and changed as yourself.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The host on which the calendars are, by its name in the policy.
    #[arg(long, env = "CALENDAR_HOST")]
    host: HostName,
    /// The service there, by its name in the policy.
    #[arg(long, env = "CALENDAR_SERVICE", default_value = "calendar")]
    service: ServiceName,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the events of the days to come.
    View(view::Arguments),
    /// Print events that begin soon, or run a command for them.
    Remind(remind::Arguments),
    /// Follow the invitations and cancellations in a mail message on standard input.
    Feed(feed::Arguments),
    /// Add the events of an iCalendar file.
    Add {
        /// The calendar to add to, made if it is missing.
        #[arg(long, default_value = "personal")]
        calendar: String,
        /// The file; standard input if not given.
        file: Option<PathBuf>,
    },
    /// Remove an event with all its occurrences.
    Remove {
        /// From this calendar only.
        #[arg(long)]
        calendar: Option<String>,
        /// The event's UID, as `view --json` prints it.
        uid: String,
    },
}

/// The failure of a command.
#[derive(Debug)]
enum Failure {
    Client(ClientError),
    Mail(MailError),
    Local(&'static str, io::Error),
    /// Events are missing; one reason per line.
    Incomplete(Vec<String>),
}

impl Failure {
    /// The exit status from sysexits.h, so that a mail system knows whether to try again.
    fn exit_code(&self) -> ExitCode {
        const EX_DATAERR: u8 = 65;
        const EX_TEMPFAIL: u8 = 75;
        match self {
            Self::Client(ClientError::Refused { .. }) | Self::Mail(_) => EX_DATAERR.into(),
            Self::Client(_) => EX_TEMPFAIL.into(),
            Self::Local(..) | Self::Incomplete(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => error.fmt(formatter),
            Self::Mail(error) => error.fmt(formatter),
            Self::Local(what, error) => write!(formatter, "{what}: {error}"),
            Self::Incomplete(why) if why.is_empty() => {
                formatter.write_str("there is more than the server shows; ask for less")
            }
            Self::Incomplete(why) => {
                formatter.write_str("some events are not shown:")?;
                why.iter()
                    .try_for_each(|line| write!(formatter, "\n  {line}"))
            }
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("calendar: {failure}");
            failure.exit_code()
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let connect = || Client::connect(&arguments.host, &arguments.service);
    match &arguments.command {
        Command::View(options) => view::run(&mut connect()?, options),
        Command::Remind(options) => remind::run(&mut connect()?, options),
        Command::Feed(options) => feed::run(options, connect),
        Command::Add { calendar, file } => {
            let request = Request::Add {
                calendar: calendar.clone(),
                text: text(file.as_ref())?,
            };
            let Answer::Added { uids } = connect()?.ask(&request)? else {
                return Err(ClientError::Mismatch.into());
            };
            uids.iter().for_each(|uid| println!("{}", printable(uid)));
            Ok(())
        }
        Command::Remove { calendar, uid } => {
            let request = Request::Remove {
                uid: uid.clone(),
                calendar: calendar.clone(),
                organizer: None,
                sequence: None,
            };
            let Answer::Removed { calendars } = connect()?.ask(&request)? else {
                return Err(ClientError::Mismatch.into());
            };
            calendars
                .iter()
                .for_each(|name| println!("{}", printable(name)));
            Ok(())
        }
    }
}

fn text(file: Option<&PathBuf>) -> Result<String, Failure> {
    let mut text = String::new();
    let limit = MAXIMUM_ADDED as u64 + 1;
    match file {
        Some(path) => std::fs::File::open(path)
            .and_then(|file| file.take(limit).read_to_string(&mut text))
            .map_err(|error| Failure::Local("the file", error))?,
        None => io::stdin()
            .take(limit)
            .read_to_string(&mut text)
            .map_err(|error| Failure::Local("standard input", error))?,
    };
    Ok(text)
}

/// Untrusted text without characters that a terminal would obey.
fn printable(text: &str) -> String {
    let visible = |character: char| {
        if character.is_control() {
            ' '
        } else {
            character
        }
    };
    text.chars().map(visible).collect()
}
