//! The protocol between server and clients, documented in `PROTOCOL.md`: a request is a line, its
//! answer is a line, and both are JSON objects.

use std::io::{self, BufRead, Read, Write};

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::event::TimeKind;

/// Longest request in bytes, including its line end.
pub const MAXIMUM_REQUEST: usize = 512 << 10;
/// Longest answer, likewise.
pub const MAXIMUM_ANSWER: usize = 8 << 20;
/// Longest calendar text in a request, in bytes.
pub const MAXIMUM_ADDED: usize = 256 << 10;
/// Most occurrences in an answer.
pub const MAXIMUM_OCCURRENCES: usize = 10_000;
/// Longest wait, in seconds.
pub const MAXIMUM_WAIT: u64 = 300;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Lists the calendars.
    Calendars {},
    /// Lists the occurrences between two instants.
    Events {
        /// Begins before it ends.
        from: DateTime<Utc>,
        /// Excluded.
        to: DateTime<Utc>,
        /// Of this calendar only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        calendar: Option<String>,
    },
    /// Adds the events of an iCalendar text, or replaces those they are newer versions of.
    Add {
        /// Made if there is none of this name.
        calendar: String,
        /// One VCALENDAR.
        text: String,
    },
    /// Removes an event with all its occurrences.
    Remove {
        /// Of the event.
        uid: String,
        /// From this calendar only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        calendar: Option<String>,
        /// Only if the event has this organizer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        organizer: Option<String>,
        /// Only if the event's SEQUENCE is not higher.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sequence: Option<u32>,
    },
    /// Answers as soon as the calendars differ from `version`, or after `seconds`.
    Wait {
        /// As answered before.
        version: String,
        /// At most [`MAXIMUM_WAIT`].
        seconds: u64,
    },
}

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// To `calendars`.
    Calendars {
        /// By name.
        calendars: Vec<CalendarSummary>,
        /// The version of all calendars together.
        version: String,
    },
    /// To `events`.
    Events {
        /// By time.
        events: Vec<Occurrence>,
        /// Nothing is missing: no limit was met, and every event was understood.
        complete: bool,
        /// As above.
        version: String,
    },
    /// To `add`: the UIDs of the added events.
    Added {
        /// Each once.
        uids: Vec<String>,
    },
    /// To `remove`.
    Removed {
        /// The names of the calendars it was in.
        calendars: Vec<String>,
    },
    /// To `wait`.
    Version {
        /// The present one.
        version: String,
    },
    /// To any refused request.
    Refused {
        /// For programs.
        code: Code,
        /// For people.
        text: String,
    },
}

/// Reasons to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The line is not a request, or exceeds a limit.
    Request,
    /// No such calendar or event.
    Unknown,
    /// The text is not a calendar with events, or exceeds a limit.
    Text,
    /// There is a newer version, or one of another organizer.
    Outdated,
    /// The files could not be read or written.
    Files,
}

/// A calendar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalendarSummary {
    /// The name of its file, without `.ics`.
    pub name: String,
    /// The number of its events; a recurring one counts once.
    pub events: usize,
    /// Parts that were not understood, and so are not shown.
    pub problems: Vec<String>,
}

/// An occurrence of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occurrence {
    /// When it begins.
    pub start: DateTime<Utc>,
    /// When it ends.
    pub end: DateTime<Utc>,
    /// The kind of these times.
    pub time: TimeKind,
    /// The calendar it is in.
    pub calendar: String,
    /// Of the event.
    pub uid: String,
    /// Its title.
    pub summary: String,
    /// Its location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// It is one of several.
    pub recurring: bool,
}

/// Reads a line of at most `limit` bytes; `None` at the end of the connection.
///
/// # Errors
/// As reading; `InvalidData` when the line is too long, incomplete, or malformed.
pub fn read<T: DeserializeOwned>(from: &mut impl BufRead, limit: usize) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(limit as u64).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop() != Some(b'\n') {
        let why = format!("a line breaks off or is longer than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let message = serde_json::from_slice(&line)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some(message))
}

/// Writes a line.
///
/// # Errors
/// As writing.
pub fn write<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&line(message)?)
}

/// Writes an answer; replaces one that is too long by a refusal.
///
/// # Errors
/// As writing.
pub fn write_answer(to: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let line = line(answer)?;
    if line.len() <= MAXIMUM_ANSWER {
        return to.write_all(&line);
    }
    let refused = Answer::Refused {
        code: Code::Request,
        text: format!("the answer is longer than {MAXIMUM_ANSWER} bytes; ask for less"),
    };
    write(to, &refused)
}

fn line<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_long_is_refused_and_the_longest_is_not() -> io::Result<()> {
        let answer = |length: usize| Answer::Version {
            version: "x".repeat(length),
        };
        let around = line(&answer(0))?.len();
        for (length, told) in [
            (MAXIMUM_ANSWER - around, true),
            (MAXIMUM_ANSWER - around + 1, false),
        ] {
            let mut written = Vec::new();
            write_answer(&mut written, &answer(length))?;
            match read::<Answer>(&mut written.as_slice(), MAXIMUM_ANSWER)? {
                Some(Answer::Version { .. }) => assert!(told),
                Some(Answer::Refused {
                    code: Code::Request,
                    ..
                }) => assert!(!told),
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }

    #[test]
    fn requests_are_lines_and_what_is_none_is_refused() -> io::Result<()> {
        let request = Request::Remove {
            uid: "1\n2".to_owned(),
            calendar: None,
            organizer: None,
            sequence: Some(3),
        };
        let mut line = Vec::new();
        write(&mut line, &request)?;
        assert_eq!(
            line,
            b"{\"ask\":\"remove\",\"uid\":\"1\\n2\",\"sequence\":3}\n"
        );
        assert_eq!(read(&mut line.as_slice(), MAXIMUM_REQUEST)?, Some(request));
        assert_eq!(read::<Request>(&mut &b""[..], MAXIMUM_REQUEST)?, None);
        for wrong in [
            "{\"ask\":\"calendars\"}",
            "{\"ask\":\"calendars\",\"more\":1}\n",
            "{\"ask\":\"other\"}\n",
            "{\"ask\":\"wait\",\"version\":\"1\",\"seconds\":-1}\n",
            "\n",
            "[[[[\n",
        ] {
            let error = read::<Request>(&mut wrong.as_bytes(), MAXIMUM_REQUEST).expect_err(wrong);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{wrong}");
        }
        let right = "{\"ask\":\"calendars\"}\n";
        assert!(read::<Request>(&mut right.as_bytes(), right.len())?.is_some());
        assert!(read::<Request>(&mut right.as_bytes(), right.len() - 1).is_err());
        Ok(())
    }
}
