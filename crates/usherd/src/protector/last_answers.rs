//! The last answers for the names in `network` statements, in memory and in a file, because they stay in
//! force while a name cannot be resolved, also over restarts.
//!
//! Many servers answer each question with only some of a name's addresses. So no answer removes an address at
//! once: a connection to a removed address would fall under another network of its block, perhaps into the
//! clear. An address stays in force for an hour after the first answer that lacks it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use usher_base::HostName;
use usher_local::requests::{FormerAddress, NameView};
use usher_policy::protection::{MAXIMUM_ADDRESSES, Names, ResolverReply};

use crate::kept;

/// The largest file, in bytes: more than 256 names with 64 addresses each need.
const LARGEST_FILE: u64 = 4 << 20;

/// How often confirmations of answers are written to the file. Changed answers are written at once.
const SAVING: Duration = Duration::from_secs(60);

/// The age from which an answer is reported as a trouble.
const OLD: Duration = Duration::from_secs(3600);

/// How long an address stays in force after the first answer that lacks it. Only another answer removes it:
/// while there are none, it stays longer.
const KEEPING: Duration = Duration::from_secs(3600);

/// The last answers for names.
#[derive(Debug, Default)]
pub(super) struct LastAnswers {
    /// The names in the policy in force, which the resolver looks up.
    wanted: BTreeSet<HostName>,
    answers: BTreeMap<HostName, Answer>,
    /// Reasons that names could not be looked up the last time.
    failures: BTreeMap<HostName, String>,
    /// Names with more addresses than are kept, at their last answer.
    crowded: BTreeSet<HostName>,
    /// When the file is to be written; `None`: it has the present answers.
    save_at: Option<Instant>,
}

/// The last answer for a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    /// In their order, each once.
    addresses: Vec<IpAddr>,
    /// When the answer came, in seconds since 1970.
    at: u64,
    /// Addresses of earlier answers that are still in force, and when an answer lacked them first.
    #[serde(default)]
    former: BTreeMap<IpAddr, u64>,
}

impl Answer {
    /// The answer that follows `before`, and whether addresses are left out because there are too many.
    fn after(before: Option<&Self>, addresses: Vec<IpAddr>, now: u64) -> (Self, bool) {
        let mut former = before.map_or_else(BTreeMap::new, |before| before.former.clone());
        for address in before.into_iter().flat_map(|before| &before.addresses) {
            former.insert(*address, now);
        }
        former.retain(|address, since| {
            // The clock may have been set back.
            *since = now.min(*since);
            now - *since < KEEPING.as_secs() && !addresses.contains(address)
        });
        let room = MAXIMUM_ADDRESSES.saturating_sub(addresses.len());
        let is_crowded = former.len() > room;
        if is_crowded {
            let mut latest: Vec<(IpAddr, u64)> = former.into_iter().collect();
            latest.sort_by_key(|(_, since)| std::cmp::Reverse(*since));
            latest.truncate(room);
            former = latest.into_iter().collect();
        }
        let at = now;
        let answer = Self {
            addresses,
            at,
            former,
        };
        (answer, is_crowded)
    }

    /// The addresses for which the name stands, in their order.
    fn in_force(&self) -> BTreeSet<IpAddr> {
        let answered = self.addresses.iter();
        answered.chain(self.former.keys()).copied().collect()
    }
}

impl LastAnswers {
    /// Reads the file. Without one there are no answers. A file that cannot be read counts as none, so
    /// the names wait for an answer, and the log says so.
    pub(super) fn load(path: &Path) -> Self {
        let answers = match read_last_answers(path) {
            Ok(answers) => answers,
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot use {}: names have no last answers until they are looked up again",
                    path.display()
                );
                BTreeMap::new()
            }
        };
        Self {
            answers,
            ..Self::default()
        }
    }

    /// Writes the file, if an answer has changed, or was confirmed some time ago.
    ///
    /// # Errors
    /// The system's error. A later call tries again.
    pub(super) fn save(&mut self, path: &Path) -> io::Result<()> {
        let now = Instant::now();
        if self.save_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        self.save_at = Some(now + SAVING);
        kept::save(path, &self.answers)?;
        self.save_at = None;
        Ok(())
    }

    /// Notes that the policy in force has these names, and forgets the answers for all others.
    pub(super) fn keep_only(&mut self, wanted: BTreeSet<HostName>) {
        let before = self.answers.len();
        self.answers.retain(|name, _| wanted.contains(name));
        self.failures.retain(|name, _| wanted.contains(name));
        self.crowded.retain(|name| wanted.contains(name));
        if self.answers.len() < before {
            self.save_at = Some(Instant::now());
        }
        self.wanted = wanted;
    }

    /// Takes an answer of the resolver. Returns whether it changes the addresses in force for a name.
    pub(super) fn take(&mut self, reply: ResolverReply, now: u64) -> bool {
        match reply {
            ResolverReply::Found { name, addresses }
                if self.wanted.contains(&name) && !addresses.is_empty() =>
            {
                self.failures.remove(&name);
                let before = self.answers.get(&name);
                let (answer, is_crowded) = Answer::after(before, canonical(addresses), now);
                let in_force = answer.in_force();
                let changed = before.is_none_or(|before| before.in_force() != in_force);
                if changed {
                    tracing::info!(
                        %name,
                        addresses = ?in_force,
                        "the name stands for other addresses now"
                    );
                    self.save_at = Some(Instant::now());
                }
                self.save_at.get_or_insert_with(|| Instant::now() + SAVING);
                self.answers.insert(name.clone(), answer);
                if is_crowded {
                    self.crowded.insert(name)
                } else {
                    self.crowded.remove(&name)
                };
                changed
            }
            ResolverReply::Failed { name, reason } if self.wanted.contains(&name) => {
                let reason = printable(&reason);
                if self.failures.get(&name) != Some(&reason) {
                    tracing::warn!(%name, reason, "the name cannot be looked up");
                    self.failures.insert(name, reason);
                }
                false
            }
            // The policy has changed meanwhile, or the resolver does not keep to the format.
            ResolverReply::Found { .. } | ResolverReply::Failed { .. } => false,
        }
    }

    /// The addresses of the names.
    pub(super) fn names(&self, now: u64) -> Names {
        let mut names = Names::default();
        for (name, answer) in &self.answers {
            let age = Duration::from_secs(now.saturating_sub(answer.at));
            names.answer(name.clone(), answer.in_force(), age);
        }
        names
    }

    /// The names of the policy with their answers, for an administrator.
    pub(super) fn view(&self, now: u64) -> Vec<NameView> {
        let views = self.wanted.iter().map(|name| {
            let answer = self.answers.get(name);
            let former = answer.into_iter().flat_map(|answer| &answer.former);
            let former = former.map(|(address, since)| FormerAddress {
                address: *address,
                age: now.saturating_sub(*since),
            });
            NameView {
                name: name.clone(),
                addresses: answer.map_or_else(Vec::new, |answer| answer.addresses.clone()),
                former: former.collect(),
                is_crowded: self.crowded.contains(name),
                age: answer.map(|answer| now.saturating_sub(answer.at)),
                why_not: self.failures.get(name).cloned(),
            }
        });
        views.collect()
    }
}

/// The troubles with the answers in these views, for people.
pub(super) fn troubles(views: &[NameView]) -> impl Iterator<Item = String> {
    let ages = views.iter().filter_map(|view| {
        let name = &view.name;
        let why = view.why_not.as_ref();
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        match view.age {
            None => Some(format!(
                "{name} has never been looked up{why}: traffic that may be with it is discarded, \
                 unless it is trusted"
            )),
            Some(age) if age >= OLD.as_secs() => Some(format!(
                "the last answer for {name}, which is in force, is {age} s old{why}"
            )),
            Some(_) => None,
        }
    });
    let crowded = views.iter().filter(|view| view.is_crowded).map(|view| {
        format!(
            "{} has had more than {MAXIMUM_ADDRESSES} addresses within the last hour: those that were \
             answered longest ago belong to the networks after the name; write networks instead of \
             the name",
            view.name
        )
    });
    ages.chain(crowded)
}

fn read_last_answers(path: &Path) -> io::Result<BTreeMap<HostName, Answer>> {
    let mut answers: BTreeMap<HostName, Answer> = kept::load_kept(path, LARGEST_FILE)?;
    for answer in answers.values_mut() {
        answer.addresses = canonical(std::mem::take(&mut answer.addresses));
        let room = MAXIMUM_ADDRESSES - answer.addresses.len();
        let former = std::mem::take(&mut answer.former).into_iter();
        answer.former = former.take(room).collect();
    }
    answers.retain(|_, answer| !answer.addresses.is_empty());
    Ok(answers)
}

/// Addresses as [`Names::answer`] keeps them, so that answers with the same addresses are equal.
fn canonical(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let addresses = addresses.into_iter();
    let mut addresses: Vec<IpAddr> = addresses.map(|address| address.to_canonical()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MAXIMUM_ADDRESSES);
    addresses
}

/// The resolver's text, fit for a terminal.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let fit = |character: char| match character {
        ' '..='~' => character,
        _ => '?',
    };
    text.chars().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    fn found(text: &str, last: u8) -> ResolverReply {
        ResolverReply::found(name(text), vec![IpAddr::from([192, 0, 2, last])])
    }

    fn following(names: &[&str]) -> LastAnswers {
        let mut answers = LastAnswers::default();
        answers.keep_only(names.iter().copied().map(name).collect());
        answers
    }

    #[test]
    fn only_another_answer_for_a_wanted_name_is_a_change() {
        let mut answers = following(&["a"]);
        assert!(answers.take(found("a", 1), 100));
        assert!(!answers.take(found("a", 1), 160));
        assert!(!answers.take(found("b", 1), 160));
        assert_eq!(answers.view(170)[0].age, Some(10));
        assert!(answers.take(found("a", 2), 180));
        assert_eq!(answers.names(180).get(&name("b")), None);
    }

    fn in_force(answers: &LastAnswers, now: u64) -> Vec<u8> {
        let names = answers.names(now);
        let addresses = names.get(&name("a")).map(|answer| answer.addresses.clone());
        let last = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        addresses
            .unwrap_or_default()
            .into_iter()
            .map(last)
            .collect()
    }

    fn some_of(text: &str, last: impl IntoIterator<Item = u8>) -> ResolverReply {
        let addresses = last.into_iter().map(|last| [192, 0, 2, last].into());
        ResolverReply::found(name(text), addresses.collect())
    }

    // Threat model: P59
    #[test]
    fn an_answer_that_lacks_addresses_takes_none_away_for_an_hour() {
        let mut answers = following(&["a"]);
        assert!(answers.take(some_of("a", [1, 2, 3]), 1000));
        // Each answer has one of the three addresses, so nothing changes.
        for (round, last) in [1, 2, 3, 1, 2, 3].into_iter().enumerate() {
            let now = 1015 + 15 * round as u64;
            assert!(!answers.take(some_of("a", [last]), now), "{last}");
            assert_eq!(in_force(&answers, now), [1, 2, 3]);
        }
        // A new address is in force at once, beside the others.
        assert!(answers.take(some_of("a", [4]), 1200));
        assert_eq!(in_force(&answers, 1200), [1, 2, 3, 4]);
        let view = &answers.view(1210)[0];
        assert_eq!(view.addresses, [IpAddr::from([192, 0, 2, 4])]);
        let ages: Vec<u64> = view.former.iter().map(|former| former.age).collect();
        assert_eq!(ages, [1210 - 1075, 1210 - 1090, 10], "{view:?}");
        // An address goes an hour after the first answer without it, and only by another answer.
        assert!(!answers.take(some_of("a", [4]), 1075 + 3599));
        assert_eq!(in_force(&answers, 9000), [1, 2, 3, 4]);
        assert!(answers.take(some_of("a", [4]), 1075 + 3600));
        assert!(!in_force(&answers, 9000).contains(&1));
        assert!(answers.take(some_of("a", [4]), 9000));
        assert_eq!(in_force(&answers, 9000), [4]);
    }

    #[test]
    fn addresses_of_the_last_answer_outlive_a_time_without_answers() {
        let mut answers = following(&["a"]);
        assert!(answers.take(found("a", 1), 1000));
        assert!(!answers.take(ResolverReply::failed(name("a"), "no server"), 90_000));
        assert_eq!(in_force(&answers, 90_000), [1]);
        assert!(answers.take(found("a", 2), 100_000));
        assert_eq!(in_force(&answers, 100_000), [1, 2]);
        // A clock that is set back keeps no address for longer than an hour.
        assert!(!answers.take(found("a", 2), 50_000));
        assert!(answers.take(found("a", 2), 53_600));
        assert_eq!(in_force(&answers, 53_600), [2]);
    }

    // Threat model: P59
    #[test]
    fn of_too_many_addresses_those_that_were_answered_last_stay() {
        let mut answers = following(&["a"]);
        assert!(answers.take(some_of("a", 0..40), 1000));
        assert!(answers.take(some_of("a", 40..64), 1015));
        assert!(!answers.view(1015)[0].is_crowded);
        assert_eq!(in_force(&answers, 1015).len(), 64);
        assert!(answers.take(some_of("a", 64..74), 1030));
        assert_eq!(in_force(&answers, 1030).len(), 64);
        assert!((40..74).all(|last| in_force(&answers, 1030).contains(&last)));
        let view = answers.view(1030);
        assert!(view[0].is_crowded);
        let told: Vec<String> = troubles(&view).collect();
        assert!(told[0].contains("more than 64 addresses"), "{told:?}");
        assert!(!answers.take(some_of("a", 64..74), 1045));
        assert!(!answers.view(1045)[0].is_crowded);
    }

    #[test]
    fn a_failure_keeps_the_last_answer() {
        let mut answers = following(&["a"]);
        assert!(answers.take(found("a", 1), 100));
        let failed = ResolverReply::failed(name("a"), "no\u{1b}[1m");
        assert!(!answers.take(failed, 110));
        let view = &answers.view(110)[0];
        assert_eq!(view.addresses, [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(view.why_not.as_deref(), Some("no?[1m"));
        assert!(!answers.take(found("a", 1), 120));
        assert_eq!(answers.view(120)[0].why_not, None);
    }

    #[test]
    fn answers_outlive_the_process_and_no_policy_without_their_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let mut answers = following(&["a", "b"]);
        for text in ["a", "b"] {
            answers.take(found(text, 1), 100);
        }
        answers.save(&path).unwrap();
        let mut again = LastAnswers::load(&path);
        again.keep_only([name("a")].into());
        assert_eq!(
            again.names(130).get(&name("a")).unwrap().age,
            Duration::from_secs(30)
        );
        again.take(found("a", 2), 100);
        again.save(&path).unwrap();
        let mut last = LastAnswers::load(&path);
        last.keep_only([name("a"), name("b")].into());
        let ages: Vec<_> = last.view(130).into_iter().map(|view| view.age).collect();
        assert_eq!(ages, [Some(30), None]);
        let former = last.view(130)[0].former[0];
        assert_eq!(
            (former.address, former.age),
            (IpAddr::from([192, 0, 2, 1]), 30)
        );
    }

    #[test]
    fn a_damaged_file_is_no_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers");
        let whole = r#"{"a":{"addresses":["192.0.2.1"],"at":100}}"#;
        std::fs::write(&path, whole).unwrap();
        assert!(
            LastAnswers::load(&path)
                .names(100)
                .get(&name("a"))
                .is_some()
        );
        for damaged in [
            &whole[..20],
            "{\"../a\":{\"addresses\":[\"192.0.2.1\"],\"at\":1}}",
            "",
        ] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(LastAnswers::load(&path).names(100), Names::default());
        }
    }

    #[test]
    fn names_without_an_answer_and_old_answers_are_troubles() {
        let mut answers = following(&["a", "b", "c"]);
        answers.take(found("a", 1), 100);
        answers.take(found("b", 1), 5000);
        let told: Vec<String> = troubles(&answers.view(5000)).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].contains("for a, which is in force, is 4900 s old"),
            "{told:?}"
        );
        assert!(told[1].contains("c has never been looked up"), "{told:?}");
    }
}
