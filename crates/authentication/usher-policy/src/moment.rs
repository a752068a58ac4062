//! Points in time as a policy writes them: `2026-12-31T18:00Z`, in UTC.

use std::fmt;
use std::str::FromStr;

use der::DateTime;
use serde::{Serialize, Serializer};

/// A point in time, in UTC, in whole seconds from 1970 to 9999. Written with its seconds or, where
/// they are zero, without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    time: DateTime,
    shows_seconds: bool,
}

/// The text is not a [`Moment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time is written as 2026-12-31T18:00Z, in UTC, with seconds or without")]
pub struct InvalidMoment;

impl Moment {
    /// Seconds since 1970, without leap seconds.
    pub fn unix_time(self) -> u64 {
        self.time.unix_duration().as_secs()
    }
}

impl FromStr for Moment {
    type Err = InvalidMoment;

    fn from_str(text: &str) -> Result<Self, InvalidMoment> {
        let shows_seconds = text.len() != "2026-12-31T18:00Z".len();
        let whole = match text.strip_suffix('Z') {
            Some(minutes) if !shows_seconds => format!("{minutes}:00Z"),
            _ => text.to_owned(),
        };
        let time = whole.parse().map_err(|_| InvalidMoment)?;
        Ok(Self {
            time,
            shows_seconds,
        })
    }
}

impl fmt::Display for Moment {
    /// As it was written.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.time.to_string();
        let minutes = text.strip_suffix(":00Z").filter(|_| !self.shows_seconds);
        match minutes {
            Some(minutes) => write!(formatter, "{minutes}Z"),
            None => formatter.write_str(&text),
        }
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_to_the_seconds_that_date_1_says_and_back() {
        for (text, seconds) in [
            ("1970-01-01T00:00Z", 0),
            ("1999-12-31T23:59:59Z", 946_684_799),
            ("2000-02-29T12:00Z", 951_825_600),
            ("2026-12-31T18:00Z", 1_798_740_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
        ] {
            let moment: Moment = text.parse().expect("a time");
            assert_eq!(moment.unix_time(), seconds, "{text}");
            assert_eq!(moment.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_time_or_leaves_open_which_is_refused() {
        for text in [
            "",
            "2026-12-31",
            "2026-12-31T18Z",
            "2026-12-31T18:00",
            "2026-12-31T18:00+01:00",
            "2026-12-31t18:00z",
            "2026-12-31T24:00Z",
            "2026-12-31T23:60Z",
            "2026-12-31T23:59:60Z",
            "2026-12-31T18:00:00.5Z",
            "2026-02-29T18:00Z",
            "2100-02-29T18:00Z",
            "2026-04-31T18:00Z",
            "2026-00-01T18:00Z",
            "2026-13-01T18:00Z",
            "2026-01-00T18:00Z",
            "1969-12-31T23:59Z",
            "26-12-31T18:00Z",
            "2026-1-1T18:00Z",
            "+026-12-31T18:00Z",
            "2026-12-31-01T18:00Z",
            "2026-12-31T18:00:00:00Z",
            "10000-01-01T00:00Z",
        ] {
            assert_eq!(text.parse::<Moment>(), Err(InvalidMoment), "{text}");
        }
    }
}
