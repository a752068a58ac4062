//! Each user's quota of a daemon's messages: users and hosts cause many lines, as often as they like. A
//! journal that is full of one user's lines loses those of all others.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tracing::Event;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};

/// Lines of one kind about one user within [`WINDOW`].
const LINES: u32 = 100;

/// How many of these lines may have the same reason for a refusal, so that one reason does not hide another.
const LINES_OF_A_REASON: u32 = 20;

/// Lines of one kind about all strangers together, within [`WINDOW`]. A line about a stranger has only an
/// address, and one stranger may have any number of addresses.
const LINES_ABOUT_STRANGERS: u32 = 200;

/// Lines of one kind without a user, within [`WINDOW`].
const LINES_ABOUT_NO_ONE: u32 = 1000;

const WINDOW: Duration = Duration::from_secs(60);

/// Limit of users and kinds that are counted at one time. Further users share one count for each kind of
/// line.
const COUNTED: usize = 16_384;

/// The field with the reason of a refusal.
const REASON: &str = "reason";

/// Fields that name the user or host of a line. If a line has several, the first in this order counts.
const ABOUT: [&str; 4] = ["user", "uid", "address", "host"];

/// The index of `address` in [`ABOUT`]. Lines about strangers have no other of these fields.
const ADDRESS: usize = 2;

/// The key of all strangers together, in place of a user.
const STRANGERS: &str = "of unknown hosts";

/// The decision about a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The line is written.
    Written,
    /// The line is written, as the last of its quota.
    Last,
    /// The line is left out.
    LeftOut,
}

/// Recent lines, by kind (the place in the program) and user.
#[derive(Default)]
pub(super) struct Quotas {
    counts: HashMap<(Identifier, String), Count>,
    swept: Option<Instant>,
    left_out: Vec<(String, u32)>,
}

struct Count {
    begun: Instant,
    lines: u32,
    most: u32,
    /// The line's constant text.
    message: String,
}

/// The fields of an event.
#[derive(Default)]
struct Content {
    about: Option<(usize, String)>,
    /// The event has a field of [`ABOUT`] besides the address: it names somebody whom the policy knows.
    is_of_known: bool,
    reason: Option<String>,
    message: String,
}

impl Content {
    /// The user or host that the line is about.
    fn about(&self) -> Option<String> {
        let (rank, value) = self.about.as_ref()?;
        // Without the port, which differs between connections.
        let address = value.parse().ok().filter(|_| *rank == ADDRESS);
        let value = address.map_or(value.clone(), |address: SocketAddr| {
            address.ip().to_string()
        });
        Some(format!("{}={value}", ABOUT[*rank]))
    }

    /// Takes notice of one of the fields of [`ABOUT`].
    fn note(&mut self, rank: usize, value: String) {
        self.is_of_known |= rank != ADDRESS;
        if self.about.as_ref().is_none_or(|(other, _)| rank < *other) {
            self.about = Some((rank, value));
        }
    }

    /// Whether the line is about somebody of whom nothing but an address is known.
    fn is_about_stranger(&self) -> bool {
        self.about.is_some() && !self.is_of_known
    }
}

impl Visit for Content {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            REASON => self.reason = refusal_name(value),
            _ => {}
        }
        let Some(rank) = ABOUT.iter().position(|name| *name == field.name()) else {
            return;
        };
        self.note(rank, format!("{value:?}"));
    }
}

/// The name of a refusal; none for other text, such as that of an error. Others may choose parts of such
/// text, and lines that all differ would have no quota.
fn refusal_name(reason: &dyn fmt::Debug) -> Option<String> {
    let text = format!("{reason:?}");
    let name = text.trim_matches('"');
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    name.bytes().all(is_name).then(|| name.to_owned())
}

impl Quotas {
    /// Counts a line.
    pub(super) fn admit(&mut self, event: &Event<'_>, now: Instant) -> Fate {
        let mut content = Content::default();
        event.record(&mut content);
        let kind = event.metadata().callsite();
        let (about, is_about_stranger) = (content.about(), content.is_about_stranger());
        let (reason, message) = (content.reason.as_deref(), &content.message);
        let fate = self.admit_at(kind.clone(), about.as_deref(), reason, message, now);
        match fate {
            Fate::Written | Fate::Last if is_about_stranger => {
                self.of_strangers(kind, message, now).unwrap_or(fate)
            }
            fate => fate,
        }
    }

    /// Counts a line about a stranger among those about all strangers. Returns none if there is room.
    fn of_strangers(&mut self, kind: Identifier, message: &str, now: Instant) -> Option<Fate> {
        let key = (kind, STRANGERS.to_owned());
        let fate = self.count(key, LINES_ABOUT_STRANGERS, message, now);
        (fate != Fate::Written).then_some(fate)
    }

    /// Counts a line of a kind about a user, and also among the lines with the same reason.
    fn admit_at(
        &mut self,
        kind: Identifier,
        about: Option<&str>,
        reason: Option<&str>,
        message: &str,
        now: Instant,
    ) -> Fate {
        self.sweep(now);
        let Some(about) = about else {
            let key = (kind, String::new());
            return self.count(key, LINES_ABOUT_NO_ONE, message, now);
        };
        let of_reason = reason.map_or(Fate::Written, |reason| {
            let key = (kind.clone(), format!("{about} {REASON}={reason}"));
            self.count(key, LINES_OF_A_REASON, message, now)
        });
        if of_reason == Fate::LeftOut {
            return Fate::LeftOut;
        }
        match self.count((kind, about.to_owned()), LINES, message, now) {
            Fate::Written => of_reason,
            fate => fate,
        }
    }

    fn count(
        &mut self,
        mut key: (Identifier, String),
        most: u32,
        message: &str,
        now: Instant,
    ) -> Fate {
        if self.counts.len() >= COUNTED && !self.counts.contains_key(&key) {
            key.1 = "others".into();
        }
        let count = self.counts.entry(key).or_insert_with(|| Count {
            begun: now,
            lines: 0,
            most,
            message: message.into(),
        });
        count.lines = count.lines.saturating_add(1);
        match count.lines {
            lines if lines < count.most => Fate::Written,
            lines if lines == count.most => Fate::Last,
            _ => Fate::LeftOut,
        }
    }

    /// Kinds of lines that were left out in windows that are over, with the number of lines; each once.
    pub(super) fn summaries(&mut self, now: Instant) -> Vec<(String, u32)> {
        self.swept = None;
        self.sweep(now);
        std::mem::take(&mut self.left_out)
    }

    fn sweep(&mut self, now: Instant) {
        let due = |swept: Instant| now.duration_since(swept) >= Duration::from_secs(1);
        if !self.swept.is_none_or(due) {
            return;
        }
        self.swept = Some(now);
        let left_out = &mut self.left_out;
        self.counts.retain(|(_, about), count| {
            let goes_on = now.duration_since(count.begun) < WINDOW;
            let more = count.lines.saturating_sub(count.most);
            if !goes_on && more > 0 && left_out.len() < COUNTED {
                let separator = if about.is_empty() { "" } else { " " };
                left_out.push((format!("{}{separator}{about}", count.message), more));
            }
            goes_on
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Identifier {
        static CALLSITE: tracing::callsite::DefaultCallsite =
            tracing::callsite::DefaultCallsite::new(&METADATA);
        static METADATA: tracing::Metadata<'static> = tracing::metadata! {
            name: "test", target: "test", level: tracing::Level::INFO, fields: &[],
            callsite: &CALLSITE, kind: tracing::metadata::Kind::EVENT
        };
        METADATA.callsite()
    }

    fn admit(quotas: &mut Quotas, about: &str, now: Instant) -> Fate {
        quotas.admit_at(place(), Some(about), None, "m", now)
    }

    // Threat model: A96, A116, M19
    #[test]
    fn one_users_lines_end_with_the_quota_and_others_go_on() {
        let (mut quotas, now) = (Quotas::default(), Instant::now());
        for _ in 1..LINES {
            assert_eq!(admit(&mut quotas, "user=alice", now), Fate::Written);
        }
        assert_eq!(admit(&mut quotas, "user=alice", now), Fate::Last);
        for _ in 0..7 {
            assert_eq!(admit(&mut quotas, "user=alice", now), Fate::LeftOut);
        }
        assert_eq!(admit(&mut quotas, "user=bob", now), Fate::Written);
        assert_eq!(
            quotas.admit_at(place(), None, None, "m", now),
            Fate::Written
        );
        assert_eq!(quotas.summaries(now), []);
        let later = now + WINDOW;
        assert_eq!(quotas.summaries(later), [("m user=alice".to_owned(), 7)]);
        assert_eq!(quotas.summaries(later), []);
        assert_eq!(admit(&mut quotas, "user=alice", later), Fate::Written);
    }

    #[test]
    fn a_reason_ends_early_and_all_reasons_with_the_quota() {
        let (mut quotas, now) = (Quotas::default(), Instant::now());
        let mut lines = |reason: &str, about| {
            let admitted = (0..2 * LINES_OF_A_REASON).map(|_| {
                quotas.admit_at(place(), Some(about), Some(reason), "m", now) != Fate::LeftOut
            });
            admitted.filter(|admitted| *admitted).count()
        };
        let one_reason = LINES_OF_A_REASON as usize;
        assert_eq!(lines("malformed", "uid=1000"), one_reason);
        assert_eq!(lines("malformed", "uid=1001"), one_reason);
        let reasons = (0..20).map(|reason| lines(&format!("reason_{reason}"), "uid=1000"));
        assert_eq!(one_reason + reasons.sum::<usize>(), LINES as usize);
    }

    #[test]
    fn only_names_of_refusals_are_reasons_and_ports_are_left_out() {
        let about = |field, value: &str| {
            let rank = ABOUT.iter().position(|name| *name == field);
            let about = rank.zip(Some(value.into()));
            let content = Content {
                about,
                ..Content::default()
            };
            content.about().unwrap()
        };
        assert_eq!(about("uid", "1000"), "uid=1000");
        assert_eq!(about("address", "10.0.0.1:4"), "address=10.0.0.1");
        assert_eq!(about("address", "[fd00::1]:4"), "address=fd00::1");
        assert_eq!(about("address", "fd00::1"), "address=fd00::1");
        assert_eq!(refusal_name(&"malformed"), Some("malformed".to_owned()));
        assert_eq!(refusal_name(&"received fatal alert: Unknown(0x80)"), None);
    }

    #[test]
    fn strangers_share_a_quota_whatever_their_addresses() {
        let content = |fields: &[(&str, &str)]| {
            let mut content = Content::default();
            for (field, value) in fields {
                let rank = ABOUT.iter().position(|name| name == field).unwrap();
                content.note(rank, (*value).to_owned());
            }
            content
        };
        assert!(content(&[("address", "10.0.0.1")]).is_about_stranger());
        assert!(!content(&[("address", "10.0.0.1"), ("host", "laptop")]).is_about_stranger());
        assert!(!content(&[]).is_about_stranger());
        let (mut quotas, now) = (Quotas::default(), Instant::now());
        let fates = (0..1_000).map(|_| quotas.of_strangers(place(), "m", now));
        let written = fates.filter(|fate| *fate != Some(Fate::LeftOut)).count();
        assert_eq!(written, LINES_ABOUT_STRANGERS as usize);
        let left_out = 1_000 - LINES_ABOUT_STRANGERS;
        let summary = (format!("m {STRANGERS}"), left_out);
        assert_eq!(quotas.summaries(now + WINDOW), [summary]);
    }

    #[test]
    fn users_beyond_the_table_share_one_count() {
        let (mut quotas, now) = (Quotas::default(), Instant::now());
        let mut fates = (0..COUNTED + LINES as usize + 1)
            .map(|uid| admit(&mut quotas, &format!("uid={uid}"), now));
        assert_eq!(fates.find(|fate| *fate != Fate::Written), Some(Fate::Last));
        assert_eq!(fates.next(), Some(Fate::LeftOut));
        drop(fates);
        assert!(quotas.counts.len() <= COUNTED + 1);
    }
}
