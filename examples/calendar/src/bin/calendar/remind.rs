//! `calendar remind` reports events that begin soon.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;

use chrono::{DateTime, Duration, Local, TimeZone, Utc};
use usher_calendar::client::{Client, ClientError};
use usher_calendar::event::TimeKind;
use usher_calendar::protocol::{Answer, MAXIMUM_WAIT, Occurrence, Request};

use crate::view::when;
use crate::{Failure, printable};

#[derive(clap::Args)]
pub struct Arguments {
    /// Minutes before an event begins.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=10_080))]
    before: u32,
    /// A program to run instead of printing. It gets the event in CALENDAR_SUMMARY,
    /// CALENDAR_LOCATION, CALENDAR_START (RFC 3339) and CALENDAR_UID.
    #[arg(long)]
    command: Option<PathBuf>,
    /// Remind of the events due now, then exit.
    #[arg(long)]
    once: bool,
}

pub fn run(client: &mut Client<impl Read + Write>, arguments: &Arguments) -> Result<(), Failure> {
    let before = Duration::minutes(arguments.before.into());
    let mut reminded: BTreeSet<(DateTime<Utc>, String)> = BTreeSet::new();
    loop {
        let now = Utc::now();
        // Far enough to know how long to wait, and to see floating times of every zone.
        let request = Request::Events {
            from: now - Duration::days(1),
            to: now + before + Duration::days(2),
            calendar: None,
        };
        let Answer::Events {
            events, version, ..
        } = client.ask(&request)?
        else {
            return Err(ClientError::Mismatch.into());
        };
        let mut next = now + Duration::seconds(MAXIMUM_WAIT.cast_signed());
        let coming = events.iter().filter(|event| event.time != TimeKind::Day);
        for (event, start) in coming.map(|event| (event, start(event))) {
            if start < now {
                continue;
            }
            if start - before > now {
                next = next.min(start - before);
            } else if reminded.insert((start, event.uid.clone())) {
                remind(event, start, arguments)?;
            }
        }
        if arguments.once {
            return Ok(());
        }
        reminded.retain(|(start, _)| *start >= now);
        let left = (next - Utc::now())
            .num_milliseconds()
            .max(0)
            .cast_unsigned();
        let wait = Request::Wait {
            version,
            seconds: left.div_ceil(1_000),
        };
        client.ask(&wait)?;
    }
}

/// When it begins here.
fn start(event: &Occurrence) -> DateTime<Utc> {
    match event.time {
        TimeKind::Instant | TimeKind::Day => event.start,
        TimeKind::Floating => {
            let clock = event.start.naive_utc();
            Local
                .from_local_datetime(&clock)
                .earliest()
                .map_or(event.start, |at| at.to_utc())
        }
    }
}

fn remind(event: &Occurrence, start: DateTime<Utc>, arguments: &Arguments) -> Result<(), Failure> {
    let Some(command) = &arguments.command else {
        let at = when(event, event.start, "%H:%M");
        println!("{at} {}", printable(&event.summary));
        return Ok(());
    };
    let without_zeros = |text: &str| text.replace('\0', " ");
    let status = Command::new(command)
        .env("CALENDAR_SUMMARY", without_zeros(&event.summary))
        .env(
            "CALENDAR_LOCATION",
            without_zeros(event.location.as_deref().unwrap_or_default()),
        )
        .env("CALENDAR_START", start.to_rfc3339())
        .env("CALENDAR_UID", without_zeros(&event.uid))
        .status()
        .map_err(|error| Failure::Local("the command of --command", error))?;
    if !status.success() {
        // The next event's reminder may succeed.
        eprintln!("calendar: the command of --command ended with {status}");
    }
    Ok(())
}
