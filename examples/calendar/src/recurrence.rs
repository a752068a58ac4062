//! The recurrence of an event: RRULE, RDATE and EXDATE (RFC 5545).

use chrono::{DateTime, NaiveDateTime};
use rrule::{Frequency, RRule, RRuleSet, Tz};

use crate::event::{EventError, TimeKind, moment_of, no};
use crate::text::{Component, Property};

/// Most EXDATE and RDATE values of one event.
pub(crate) const MAXIMUM_DATES: usize = 2_000;
/// Longest RRULE value, in bytes.
const MAXIMUM_RULE: usize = 500;
/// Most times of one day that a rule may name (BYHOUR times BYMINUTE times BYSECOND).
const MAXIMUM_TIMES_A_DAY: usize = 24;

/// RRULE, RDATE and EXDATE together.
pub(crate) fn rule(
    component: &Component,
    start: DateTime<Tz>,
    time: TimeKind,
) -> Result<Option<RRuleSet>, EventError> {
    let mut set = RRuleSet::new(start);
    let mut recurs = false;
    for property in component.properties("RRULE") {
        let rule = readable_rule(property, time)?
            .validate(start)
            .map_err(|error| EventError::Rule(error.to_string()))?;
        set = set.rrule(rule);
        recurs = true;
    }
    let dates = |name| -> Result<Vec<DateTime<Tz>>, EventError> {
        let mut dates = Vec::new();
        for property in component.properties(name) {
            for value in property.value.split(',') {
                if dates.len() == MAXIMUM_DATES {
                    return Err(EventError::TooManyDates);
                }
                // For a period, its beginning.
                let value = value.split('/').next().unwrap_or_default().trim();
                dates.push(moment_of(property, value)?.0);
            }
        }
        Ok(dates)
    };
    let mut additional = dates("RDATE")?;
    if !additional.is_empty() && !recurs {
        // With a rule it is the first occurrence anyway.
        additional.push(start);
    }
    recurs |= !additional.is_empty();
    let set = set.set_rdates(additional).set_exdates(dates("EXDATE")?);
    Ok(recurs.then_some(set))
}

/// Refuses rules that no one would write by hand: following them could take minutes.
fn readable_rule(
    property: &Property,
    time: TimeKind,
) -> Result<RRule<rrule::Unvalidated>, EventError> {
    let refuse = |why: String| Err(EventError::Rule(why));
    if property.value.len() > MAXIMUM_RULE {
        return refuse(format!("longer than {MAXIMUM_RULE} bytes"));
    }
    let mut parts = Vec::new();
    for part in property
        .value
        .trim()
        .split(';')
        .filter(|part| !part.is_empty())
    {
        let part = part.to_ascii_uppercase();
        parts.push(match part.strip_prefix("UNTIL=") {
            Some(until) => format!("UNTIL={}", until_in_utc(property, until, time)?),
            None => part,
        });
    }
    let rule: RRule<rrule::Unvalidated> = match parts.join(";").parse() {
        Ok(rule) => rule,
        Err(error) => return refuse(format!("{error}")),
    };
    if matches!(
        rule.get_freq(),
        Frequency::Hourly | Frequency::Minutely | Frequency::Secondly
    ) {
        return refuse("more often than daily".to_owned());
    }
    let times = [
        rule.get_by_hour(),
        rule.get_by_minute(),
        rule.get_by_second(),
    ];
    let times_a_day: usize = times.iter().map(|numbers| numbers.len().max(1)).product();
    if times_a_day > MAXIMUM_TIMES_A_DAY {
        return refuse(format!("more than {MAXIMUM_TIMES_A_DAY} times a day"));
    }
    Ok(rule)
}

/// UNTIL in the form of the `rrule` crate. A date means its whole day; a clock time without zone is
/// allowed with floating times only, which are counted as UTC here.
fn until_in_utc(property: &Property, until: &str, time: TimeKind) -> Result<String, EventError> {
    let value = match (until.len(), until.ends_with('Z')) {
        (8, false) => format!("{until}T235959Z"),
        (_, true) => until.to_owned(),
        (_, false) if time != TimeKind::Instant => format!("{until}Z"),
        (_, false) => {
            return Err(EventError::Rule(format!(
                "UNTIL={until} has to be in UTC, with Z at its end"
            )));
        }
    };
    match NaiveDateTime::parse_from_str(&value, "%Y%m%dT%H%M%SZ") {
        Ok(_) => Ok(value),
        Err(_) => Err(no(property, "rule: its UNTIL is no time")),
    }
}
