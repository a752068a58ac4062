//! The last answers for the names in `network` statements, in memory and in a file, because they stay in
//! force while a name cannot be resolved, also over restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use usher_base::HostName;
use usher_daemon::files::write_atomically;
use usher_local::requests::NameView;
use usher_policy::protection::{MAXIMUM_ADDRESSES, Names, ResolverReply};

/// Largest file: more than 256 names with 64 addresses take.
const LARGEST_FILE: u64 = 4 << 20;

/// How often the file learns that answers have been confirmed. Changed ones it learns at once.
const SAVING: Duration = Duration::from_secs(60);

/// The age from which an answer is reported as a trouble.
const OLD: Duration = Duration::from_secs(3600);

/// The last answers for names.
#[derive(Debug, Default)]
pub(super) struct LastAnswers {
    /// The names that the policy in force has looked up.
    wanted: BTreeSet<HostName>,
    answers: BTreeMap<HostName, Answer>,
    /// Reasons that names could not be looked up the last time.
    failures: BTreeMap<HostName, String>,
    /// When the file is to be written; none: it has the answers.
    save_at: Option<Instant>,
}

/// The last answer for a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    /// In their order, each once.
    addresses: Vec<IpAddr>,
    /// When it came, in seconds since 1970.
    at: u64,
}

impl LastAnswers {
    /// Reads the file. Without one there are no answers. A file that cannot be read counts as none, so
    /// the names wait for an answer, and the log says so.
    pub(super) fn load(path: &Path) -> Self {
        let answers = match read(path) {
            Ok(answers) => answers,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                tracing::error!(
                    %error,
                    "{} is unusable: names have no last answers, until they are looked up again",
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
    /// The system's error. It is tried again later.
    pub(super) fn save(&mut self, path: &Path) -> io::Result<()> {
        let now = Instant::now();
        if self.save_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        self.save_at = Some(now + SAVING);
        write_atomically(path, &serde_json::to_vec(&self.answers)?, 0o600)?;
        self.save_at = None;
        Ok(())
    }

    /// The policy in force has these names. The answers for others are forgotten.
    pub(super) fn keep_only(&mut self, wanted: BTreeSet<HostName>) {
        let before = self.answers.len();
        self.answers.retain(|name, _| wanted.contains(name));
        self.failures.retain(|name, _| wanted.contains(name));
        if self.answers.len() < before {
            self.save_at = Some(Instant::now());
        }
        self.wanted = wanted;
    }

    /// Takes an answer of the resolver. Returns whether it changes the addresses of a name.
    pub(super) fn take(&mut self, reply: ResolverReply, now: u64) -> bool {
        match reply {
            ResolverReply::Found { name, addresses }
                if self.wanted.contains(&name) && !addresses.is_empty() =>
            {
                self.failures.remove(&name);
                let addresses = canonical(addresses);
                let former = self.answers.get(&name);
                let changed = former.is_none_or(|former| former.addresses != addresses);
                if changed {
                    tracing::info!(%name, ?addresses, "the name stands for other addresses now");
                    self.save_at = Some(Instant::now());
                }
                self.save_at.get_or_insert_with(|| Instant::now() + SAVING);
                self.answers.insert(name, Answer { addresses, at: now });
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
        for (name, Answer { addresses, at }) in &self.answers {
            let age = Duration::from_secs(now.saturating_sub(*at));
            names.answer(name.clone(), addresses.iter().copied(), age);
        }
        names
    }

    /// The names of the policy with their answers, for an administrator.
    pub(super) fn view(&self, now: u64) -> Vec<NameView> {
        let views = self.wanted.iter().map(|name| {
            let answer = self.answers.get(name);
            NameView {
                name: name.clone(),
                addresses: answer.map_or_else(Vec::new, |answer| answer.addresses.clone()),
                age: answer.map(|answer| now.saturating_sub(answer.at)),
                why_not: self.failures.get(name).cloned(),
            }
        });
        views.collect()
    }
}

/// Troubles of the answers that are shown, each for people.
pub(super) fn troubles(views: &[NameView]) -> impl Iterator<Item = String> {
    views.iter().filter_map(|view| {
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
    })
}

fn read(path: &Path) -> io::Result<BTreeMap<HostName, Answer>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?
        .take(LARGEST_FILE + 1)
        .read_to_end(&mut bytes)?;
    if read as u64 > LARGEST_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut answers: BTreeMap<HostName, Answer> = serde_json::from_slice(&bytes)?;
    for answer in answers.values_mut() {
        answer.addresses = canonical(std::mem::take(&mut answer.addresses));
    }
    answers.retain(|_, answer| !answer.addresses.is_empty());
    Ok(answers)
}

/// As [`Names::answer`] keeps them, so that equal answers are equal.
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
        again.save(&path).unwrap();
        let mut last = LastAnswers::load(&path);
        last.keep_only([name("a"), name("b")].into());
        let ages: Vec<_> = last.view(130).into_iter().map(|view| view.age).collect();
        assert_eq!(ages, [Some(30), None]);
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
