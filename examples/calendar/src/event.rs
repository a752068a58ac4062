//! The meaning of an event's properties: its time and its recurrence (RFC 5545).

use chrono::{DateTime, Days, Duration, LocalResult, NaiveDate, NaiveDateTime, TimeZone, Utc};
use rrule::{RRuleSet, Tz};
use serde::{Deserialize, Serialize};

use crate::recurrence::{MAXIMUM_DATES, rule};
use crate::text::{Component, Property};

/// Reasons that a component cannot be shown as an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// A required property is missing.
    #[error("the event has no {0}")]
    Missing(&'static str),
    /// A property's value is malformed.
    #[error("{name}: '{value}' is no {expected}")]
    Value {
        /// The property.
        name: String,
        /// Its value.
        value: String,
        /// The expected kind of value.
        expected: &'static str,
    },
    /// A time zone that only the calendar itself describes.
    #[error("time zone '{0}' is not one of the IANA database")]
    TimeZone(String),
    /// The rule is malformed, or would take too long to follow.
    #[error("RRULE: {0}")]
    Rule(String),
    /// RDATE or EXDATE have too many values.
    #[error("more than {MAXIMUM_DATES} dates in RDATE or EXDATE")]
    TooManyDates,
    /// It ends before it begins, or lasts longer than a hundred years.
    #[error("the event ends before it begins, or lasts too long")]
    Duration,
}

/// The kind of an event's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeKind {
    /// An instant.
    Instant,
    /// The same clock time everywhere; given as if it were UTC.
    Floating,
    /// Whole days, everywhere; given as midnights of UTC.
    Day,
}

/// One VEVENT.
#[derive(Clone, Debug)]
pub struct Event {
    /// Identifies the event, together with `recurrence`.
    pub uid: String,
    /// The occurrence of the event of the same UID that this one replaces.
    pub recurrence: Option<DateTime<Utc>>,
    /// The version of the event.
    pub sequence: u32,
    /// The user who may change it.
    pub organizer: Option<String>,
    /// Its title.
    pub summary: String,
    /// Its location.
    pub location: Option<String>,
    /// The kind of its times.
    pub time: TimeKind,
    /// Cancelled, but kept to show that.
    pub cancelled: bool,
    start: DateTime<Tz>,
    duration: Duration,
    rule: Option<RRuleSet>,
}

/// Occurrences of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrences {
    /// Beginning and end of each.
    pub times: Vec<(DateTime<Utc>, DateTime<Utc>)>,
    /// There may be more: following the rule further would have taken too long.
    pub cut: bool,
}

impl Event {
    /// Reads a VEVENT.
    ///
    /// # Errors
    /// [`EventError`]: the event is malformed, or of an unsupported kind.
    pub fn read(component: &Component) -> Result<Self, EventError> {
        let needed = |name| component.property(name).ok_or(EventError::Missing(name));
        let (start, time) = moment(needed("DTSTART")?)?;
        let sequence = match component.property("SEQUENCE") {
            None => 0,
            Some(property) => match property.value.trim().parse() {
                Ok(sequence) => sequence,
                Err(_) => return Err(no(property, "number")),
            },
        };
        Ok(Self {
            uid: needed("UID")?.text(),
            recurrence: component
                .property("RECURRENCE-ID")
                .map(moment)
                .transpose()?
                .map(|(at, _)| at.to_utc()),
            sequence,
            organizer: component.property("ORGANIZER").map(organizer),
            summary: component.text("SUMMARY").unwrap_or_default(),
            location: component.text("LOCATION").filter(|text| !text.is_empty()),
            cancelled: component
                .property("STATUS")
                .is_some_and(|status| status.value.trim().eq_ignore_ascii_case("CANCELLED")),
            duration: duration(component, start, time)?,
            rule: rule(component, start, time)?,
            start,
            time,
        })
    }

    /// Whether it has a rule or dates of its own.
    #[must_use]
    pub fn is_recurring(&self) -> bool {
        self.rule.is_some()
    }

    /// Its occurrences at least partly between `from` and `to`. Deducts the cost of finding them from
    /// `steps`, and stops when nothing is left.
    #[must_use]
    pub fn occurrences(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        steps: &mut usize,
    ) -> Occurrences {
        let mut found = Occurrences {
            times: Vec::new(),
            cut: false,
        };
        let mut keep = |start: DateTime<Utc>| {
            let Some(end) = start.checked_add_signed(self.duration) else {
                return;
            };
            if start < to && (end > from || (start == end && start >= from)) {
                found.times.push((start, end));
            }
        };
        match &self.rule {
            None => keep(self.start.to_utc()),
            Some(rule) => {
                for start in &rule.clone().limit() {
                    if start >= to {
                        break;
                    }
                    keep(start.to_utc());
                    *steps = steps.saturating_sub(1);
                    if *steps == 0 {
                        found.cut = true;
                        break;
                    }
                }
            }
        }
        found
    }
}

pub(crate) fn no(property: &Property, expected: &'static str) -> EventError {
    EventError::Value {
        name: property.name.clone(),
        value: property.value.chars().take(100).collect(),
        expected,
    }
}

/// Makes addresses comparable: they are mostly written as `mailto:` URIs, in any case.
fn organizer(property: &Property) -> String {
    let address = property.value.trim().to_ascii_lowercase();
    address
        .strip_prefix("mailto:")
        .unwrap_or(&address)
        .to_owned()
}

/// The value of DTSTART, DTEND, RECURRENCE-ID: a date, or a date with a time.
fn moment(property: &Property) -> Result<(DateTime<Tz>, TimeKind), EventError> {
    moment_of(property, property.value.trim())
}

pub(crate) fn moment_of(
    property: &Property,
    value: &str,
) -> Result<(DateTime<Tz>, TimeKind), EventError> {
    if let Ok(date) = NaiveDate::parse_from_str(value, "%Y%m%d") {
        let midnight = local(date.into(), Tz::UTC).ok_or_else(|| no(property, "date"))?;
        return Ok((midnight, TimeKind::Day));
    }
    let (clock, utc) = match value.strip_suffix('Z') {
        Some(clock) => (clock, true),
        None => (value, false),
    };
    let clock = NaiveDateTime::parse_from_str(clock, "%Y%m%dT%H%M%S")
        .map_err(|_| no(property, "date or date with time"))?;
    let (zone, kind) = match property.parameter("TZID") {
        _ if utc => (Tz::UTC, TimeKind::Instant),
        None => (Tz::UTC, TimeKind::Floating),
        Some(name) => {
            let zone: chrono_tz::Tz = name
                .trim_start_matches('/')
                .parse()
                .map_err(|_| EventError::TimeZone(name.chars().take(100).collect()))?;
            (zone.into(), TimeKind::Instant)
        }
    };
    let moment = local(clock, zone).ok_or_else(|| no(property, "time there"))?;
    Ok((moment, kind))
}

/// The instant of a clock time: of two the first, and for one that the clocks skip the instant by the
/// offset before (RFC 5545, section 3.3.5).
fn local(clock: NaiveDateTime, zone: Tz) -> Option<DateTime<Tz>> {
    match zone.from_local_datetime(&clock) {
        LocalResult::Single(at) | LocalResult::Ambiguous(at, _) => Some(at),
        LocalResult::None => {
            let before = clock.checked_sub_days(Days::new(1))?;
            let before = zone.from_local_datetime(&before).earliest()?;
            before.checked_add_signed(Duration::days(1))
        }
    }
}

/// The duration of each occurrence.
fn duration(
    component: &Component,
    start: DateTime<Tz>,
    time: TimeKind,
) -> Result<Duration, EventError> {
    let duration = if let Some(end) = component.property("DTEND") {
        moment(end)?.0.signed_duration_since(start)
    } else if let Some(length) = component.property("DURATION") {
        duration_value(length.value.trim()).ok_or_else(|| no(length, "duration"))?
    } else if time == TimeKind::Day {
        Duration::days(1)
    } else {
        Duration::zero()
    };
    if duration < Duration::zero() || duration > Duration::days(36_525) {
        return Err(EventError::Duration);
    }
    Ok(duration)
}

/// A duration of RFC 5545, section 3.3.6: `P1W`, `P1DT2H`, `PT15M`.
#[must_use]
pub fn duration_value(text: &str) -> Option<Duration> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut rest = text.strip_prefix('P')?;
    if rest.is_empty() {
        return None;
    }
    let mut in_time = false;
    let mut seconds: i64 = 0;
    while !rest.is_empty() {
        if let Some(time) = rest.strip_prefix('T') {
            if in_time || time.is_empty() {
                return None;
            }
            (in_time, rest) = (true, time);
            continue;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let unit = match (after.chars().next()?, in_time) {
            ('W', false) => 7 * 86_400,
            ('D', false) => 86_400,
            ('H', true) => 3_600,
            ('M', true) => 60,
            ('S', true) => 1,
            _ => return None,
        };
        let number: i64 = number.parse().ok()?;
        seconds = seconds.checked_add(number.checked_mul(unit)?)?;
        rest = &after[1..];
    }
    Duration::try_seconds(seconds.checked_mul(sign)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Calendar;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    fn event(properties: &str) -> Result<Event, EventError> {
        let text = format!(
            "BEGIN:VCALENDAR\nBEGIN:VEVENT\nUID:1\n{properties}\nEND:VEVENT\nEND:VCALENDAR\n"
        );
        let calendar: Calendar = text.parse().expect("a calendar");
        Event::read(calendar.components().next().expect("an event"))
    }

    /// The beginnings within a year of 2026-01-01.
    fn starts(properties: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let from = "2026-01-01T00:00:00Z".parse()?;
        let to = "2027-01-01T00:00:00Z".parse()?;
        let found = event(properties)?.occurrences(from, to, &mut 1_000);
        assert!(!found.cut);
        let text = |(start, _): &(DateTime<Utc>, _)| start.format("%m-%dT%H:%M").to_string();
        Ok(found.times.iter().map(text).collect())
    }

    #[test]
    fn an_event_every_week_keeps_its_clock_time_when_the_clocks_change() -> Outcome {
        let weekly = "DTSTART;TZID=Europe/Berlin:20260320T090000\nDURATION:PT1H\n\
            RRULE:FREQ=WEEKLY;COUNT=4\nEXDATE;TZID=Europe/Berlin:20260403T090000";
        assert_eq!(
            starts(weekly)?,
            ["03-20T08:00", "03-27T08:00", "04-10T07:00"]
        );
        Ok(())
    }

    #[test]
    fn a_time_that_the_clocks_skip_is_taken_with_the_offset_before() -> Outcome {
        let skipped = "DTSTART;TZID=Europe/Berlin:20260329T023000";
        assert_eq!(starts(skipped)?, ["03-29T01:30"]);
        let twice = "DTSTART;TZID=Europe/Berlin:20261025T023000";
        assert_eq!(starts(twice)?, ["10-25T00:30"]);
        Ok(())
    }

    #[test]
    fn days_and_floating_times_are_told_apart_from_instants() -> Outcome {
        let day = event("DTSTART;VALUE=DATE:20260105\nRRULE:FREQ=DAILY;UNTIL=20260107")?;
        assert_eq!(day.time, TimeKind::Day);
        let to = "2026-01-06T12:00:00Z".parse()?;
        let found = day.occurrences("2026-01-05T23:59:59Z".parse()?, to, &mut 100);
        assert_eq!(found.times.len(), 2);
        assert_eq!(event("DTSTART:20260105T120000")?.time, TimeKind::Floating);
        assert_eq!(event("DTSTART:20260105T120000Z")?.time, TimeKind::Instant);
        Ok(())
    }

    #[test]
    fn additional_dates_go_with_the_first_one() -> Outcome {
        let dates = "DTSTART:20260105T120000Z\nRDATE:20260107T120000Z,20260109T120000Z/PT1H";
        assert_eq!(
            starts(dates)?,
            ["01-05T12:00", "01-07T12:00", "01-09T12:00"]
        );
        Ok(())
    }

    #[test]
    fn a_rule_that_would_keep_the_server_busy_is_refused_or_cut() -> Outcome {
        let refused = |rule: &str| {
            let properties = format!("DTSTART:20260105T120000Z\nRRULE:{rule}");
            matches!(event(&properties), Err(EventError::Rule(_)))
        };
        assert!(refused("FREQ=SECONDLY"));
        assert!(refused("FREQ=DAILY;BYHOUR=1,2,3,4,5;BYMINUTE=1,2,3,4,5"));
        assert!(refused("FREQ=DAILY;UNTIL=20250101T000000Z"));
        assert!(refused("nonsense"));
        assert!(!refused("FREQ=DAILY"));
        // 30 February.
        let never = "DTSTART:20260105T120000Z\nRRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30";
        assert_eq!(starts(never)?, Vec::<String>::new());
        let daily = event("DTSTART:19000101T120000Z\nRRULE:FREQ=DAILY")?;
        let (from, to) = (
            "2026-01-01T00:00:00Z".parse()?,
            "2027-01-01T00:00:00Z".parse()?,
        );
        let mut steps = 10_000;
        assert!(daily.occurrences(from, to, &mut steps).cut);
        assert_eq!(steps, 0);
        Ok(())
    }

    #[test]
    fn malformed_events_are_explained() {
        let why = |properties: &str| event(properties).expect_err(properties).to_string();
        assert_eq!(why("SUMMARY:x"), "the event has no DTSTART");
        assert!(why("DTSTART:tomorrow").contains("'tomorrow' is no date"));
        assert!(why("DTSTART;TZID=Nowhere:20260105T120000").contains("'Nowhere'"));
        assert!(why("DTSTART:20260105T120000Z\nDTEND:20260104T120000Z").contains("ends before"));
        assert!(why("DTSTART:20260105T120000Z\nDURATION:PT").contains("no duration"));
        assert!(why("DTSTART:20260105T120000Z\nSEQUENCE:-1").contains("no number"));
    }

    #[test]
    fn durations_are_read() {
        let seconds = |text: &str| duration_value(text).map(|duration| duration.num_seconds());
        assert_eq!(seconds("P1W"), Some(604_800));
        assert_eq!(seconds("-P1DT2H3M4S"), Some(-93_784));
        for text in [
            "",
            "P",
            "PT",
            "P1H",
            "PT1D",
            "P1",
            "PTT1S",
            "P99999999999999999999D",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
