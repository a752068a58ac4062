//! `calendar view` shows the events of the days to come.

use std::io::{Read, Write};

use chrono::{DateTime, Days, Local, NaiveDate, Utc};
use usher_calendar::client::{Client, ClientError};
use usher_calendar::event::TimeKind;
use usher_calendar::protocol::{Answer, Occurrence, Request};

use crate::{Failure, printable};

#[derive(clap::Args)]
pub struct Arguments {
    /// The first day; today if not given.
    #[arg(long, value_name = "YYYY-MM-DD")]
    from: Option<NaiveDate>,
    /// Number of days.
    #[arg(long, default_value_t = 7)]
    days: u16,
    /// Only this calendar.
    #[arg(long)]
    calendar: Option<String>,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

pub fn run(client: &mut Client<impl Read + Write>, arguments: &Arguments) -> Result<(), Failure> {
    let first = arguments.from.unwrap_or_else(|| Local::now().date_naive());
    let from = midnight(first)?;
    let to = midnight(
        first
            .checked_add_days(Days::new(arguments.days.into()))
            .unwrap_or(first),
    )?;
    let request = Request::Events {
        from,
        to,
        calendar: arguments.calendar.clone(),
    };
    let Answer::Events {
        events, complete, ..
    } = client.ask(&request)?
    else {
        return Err(ClientError::Mismatch.into());
    };
    if arguments.json {
        let json = serde_json::to_string_pretty(&events);
        println!(
            "{}",
            json.map_err(|error| Failure::Local("JSON", error.into()))?
        );
    } else {
        print(&events);
    }
    if complete {
        return Ok(());
    }
    let Answer::Calendars { calendars, .. } = client.ask(&Request::Calendars {})? else {
        return Err(ClientError::Mismatch.into());
    };
    let why = calendars.iter().flat_map(|calendar| {
        let name = &calendar.name;
        calendar
            .problems
            .iter()
            .map(move |problem| printable(&format!("{name}: {problem}")))
    });
    Err(Failure::Incomplete(why.collect()))
}

/// The instant at which a day begins here.
fn midnight(day: NaiveDate) -> Result<DateTime<Utc>, Failure> {
    let begins = day.and_hms_opt(0, 0, 0).and_then(|clock| {
        // If the clocks change at midnight, the day begins an hour later.
        let first = clock.and_local_timezone(Local).earliest();
        first.or_else(|| {
            (clock + chrono::Duration::hours(1))
                .and_local_timezone(Local)
                .earliest()
        })
    });
    let no_day = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    Ok(begins
        .ok_or_else(|| Failure::Local("--from", no_day()))?
        .to_utc())
}

fn print(events: &[Occurrence]) {
    let mut last = None;
    for event in events {
        let day = when(event, event.start, "%A, %-d %B %Y");
        if last.as_ref() != Some(&day) {
            println!("{day}");
            last = Some(day);
        }
        let hours = match event.time {
            TimeKind::Day => "all day".to_owned(),
            _ => format!(
                "{}-{}",
                when(event, event.start, "%H:%M"),
                when(event, event.end, "%H:%M")
            ),
        };
        let place = event.location.as_deref().map(|place| format!(" ({place})"));
        let line = format!("{}{}", event.summary, place.unwrap_or_default());
        println!(
            "  {hours:<11}  {}  [{}]",
            printable(&line),
            printable(&event.calendar)
        );
    }
}

/// A time as its reader's clock shows it.
pub fn when(event: &Occurrence, time: DateTime<Utc>, format: &str) -> String {
    match event.time {
        TimeKind::Instant => time.with_timezone(&Local).format(format).to_string(),
        TimeKind::Floating | TimeKind::Day => time.format(format).to_string(),
    }
}
