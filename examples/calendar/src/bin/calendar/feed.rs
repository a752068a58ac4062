//! `calendar feed` reads a mail message on standard input, for instance from a `.forward` file or a
//! Sieve pipe.

use std::io::{self, Read, Write};

use usher_calendar::client::{Client, ClientError};
use usher_calendar::mail::{self, MAXIMUM_MESSAGE};
use usher_calendar::protocol::{Answer, Code};

use crate::{Failure, printable};

#[derive(clap::Args)]
pub struct Arguments {
    /// The calendar that invitations change.
    #[arg(long, default_value = "invitations")]
    calendar: String,
}

/// Connects only if the message asks for a change; most do not.
pub fn run<S: Read + Write>(
    arguments: &Arguments,
    connect: impl FnOnce() -> Result<Client<S>, ClientError>,
) -> Result<(), Failure> {
    let mut message = Vec::new();
    io::stdin()
        .take(MAXIMUM_MESSAGE as u64 + 1)
        .read_to_end(&mut message)
        .map_err(|error| Failure::Local("standard input", error))?;
    if message.len() > MAXIMUM_MESSAGE {
        let too_long = io::Error::other(format!("longer than {MAXIMUM_MESSAGE} bytes"));
        return Err(Failure::Local("the message", too_long));
    }
    let requests = mail::requests(&message, &arguments.calendar).map_err(Failure::Mail)?;
    if requests.is_empty() {
        return Ok(());
    }
    let mut client = connect()?;
    for request in requests {
        match client.ask(&request) {
            Ok(Answer::Added { uids }) => {
                uids.iter()
                    .for_each(|uid| println!("added {}", printable(uid)));
            }
            Ok(Answer::Removed { .. }) => println!("removed"),
            Ok(_) => return Err(ClientError::Mismatch.into()),
            // The event was cancelled before it was known, or by a message that came twice.
            Err(ClientError::Refused {
                code: Code::Unknown,
                text,
            }) => {
                println!("nothing to do: {}", printable(&text));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
