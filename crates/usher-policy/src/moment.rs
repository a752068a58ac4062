//! Points in time as a policy writes them: `2026-12-31T18:00Z`, in UTC.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A point in time, in UTC, in whole seconds from 1970 to 9999. Written with its seconds or, where
/// they are zero, without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    unix_time: u64,
    shows_seconds: bool,
}

/// The text is not a [`Moment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a time is written as 2026-12-31T18:00Z, in UTC, with seconds or without")]
pub struct InvalidMoment;

impl Moment {
    /// Seconds since 1970, without leap seconds.
    pub fn unix_time(self) -> u64 {
        self.unix_time
    }
}

/// `DIGITS` of this many characters.
fn number(text: &str, digits: usize) -> Option<u64> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Seconds since 1970 of a text, and whether it has seconds.
fn read(text: &str) -> Option<Moment> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-');
    let (year, month, day) = (date.next()?, date.next()?, date.next()?);
    let (year, month, day) = (number(year, 4)?, number(month, 2)?, number(day, 2)?);
    let mut time = time.split(':');
    let (hour, minute) = (number(time.next()?, 2)?, number(time.next()?, 2)?);
    let (second, shows_seconds) = match time.next() {
        Some(second) => (number(second, 2)?, true),
        None => (0, false),
    };
    let is_time = hour < 24 && minute < 60 && second < 60;
    let is_date = year >= 1970 && (1..=12).contains(&month);
    if !is_date || !is_time || date.next().is_some() || time.next().is_some() {
        return None;
    }
    if !(1..=days_of_month(year, month)).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(days_of_year).sum();
    let months: u64 = (1..month).map(|month| days_of_month(year, month)).sum();
    let days = years + months + day - 1;
    Some(Moment {
        unix_time: ((days * 24 + hour) * 60 + minute) * 60 + second,
        shows_seconds,
    })
}

impl FromStr for Moment {
    type Err = InvalidMoment;

    fn from_str(text: &str) -> Result<Self, InvalidMoment> {
        read(text).ok_or(InvalidMoment)
    }
}

impl fmt::Display for Moment {
    /// As it was written.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut days, seconds) = (self.unix_time / 86_400, self.unix_time % 86_400);
        let (mut year, mut month) = (1970, 1);
        while days >= days_of_year(year) {
            days -= days_of_year(year);
            year += 1;
        }
        while days >= days_of_month(year, month) {
            days -= days_of_month(year, month);
            month += 1;
        }
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(
            formatter,
            "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}",
            days + 1
        )?;
        if self.shows_seconds {
            write!(formatter, ":{second:02}")?;
        }
        formatter.write_str("Z")
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
