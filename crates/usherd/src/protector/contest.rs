//! Other programs that keep changing Usher's entries of the SPD: how often the protector then compares
//! the SPD, and how it reports the contest.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long changes are gathered before the SPD is compared.
const GATHERING: Duration = Duration::from_millis(200);

/// A comparison lists the whole SPD. The next one waits this many times the duration of the last.
const REST: u32 = 9;

/// The longest wait. While entries are missing, the programs of the monitor drop plaintext.
const LONGEST: Duration = Duration::from_secs(5);

/// The period in which changes are counted.
const PERIOD: Duration = Duration::from_secs(60);

/// The SPD counts as contested when this many comparisons within [`PERIOD`] have found changes.
const MANY: usize = 10;

/// The pace of comparisons while changes go on.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// No comparison before this moment.
    rested: Option<Instant>,
}

impl Pace {
    /// Notes that a comparison has ended, and how long it took.
    pub(super) fn note(&mut self, ended: Instant, took: Duration) {
        self.rested = Some(ended + took.saturating_mul(REST).min(LONGEST));
    }

    /// The moment of the next comparison, for a change that is seen now.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let gathered = now + GATHERING;
        self.rested.map_or(gathered, |rested| rested.max(gathered))
    }
}

/// The last comparisons that found changes by others.
#[derive(Debug, Default)]
pub(super) struct Contest(VecDeque<Instant>);

impl Contest {
    /// Notes that a comparison has found changes.
    pub(super) fn note(&mut self, now: Instant) {
        self.0.push_back(now);
        if self.0.len() > MANY {
            self.0.pop_front();
        }
    }

    /// Returns whether the SPD is contested.
    pub(super) fn is_on(&self, now: Instant) -> bool {
        let first = self.0.front().filter(|_| self.0.len() >= MANY);
        first.is_some_and(|first| now.duration_since(*first) < PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Threat model: P12
    #[test]
    fn comparing_takes_at_most_a_tenth_of_the_time() {
        let (mut pace, ended) = (Pace::default(), Instant::now());
        assert_eq!(pace.next(ended), ended + GATHERING);
        for milliseconds in [100, 400] {
            let took = Duration::from_millis(milliseconds);
            pace.note(ended, took);
            assert_eq!(pace.next(ended), ended + took * REST);
            // The twin: after a time without changes the next comparison is soon.
            let later = ended + LONGEST;
            assert_eq!(pace.next(later), later + GATHERING);
        }
        pace.note(ended, Duration::from_secs(100));
        assert_eq!(pace.next(ended), ended + LONGEST);
        pace.note(ended, Duration::from_millis(1));
        assert_eq!(pace.next(ended), ended + GATHERING);
    }

    #[test]
    fn a_contest_needs_many_changes_in_a_minute() {
        let (mut contest, begun) = (Contest::default(), Instant::now());
        for second in 1..MANY as u32 {
            contest.note(begun + Duration::from_secs(1) * second);
        }
        let now = begun + Duration::from_secs(20);
        assert!(!contest.is_on(now));
        contest.note(now);
        assert!(contest.is_on(now));
        assert!(!contest.is_on(now + PERIOD));
    }
}
