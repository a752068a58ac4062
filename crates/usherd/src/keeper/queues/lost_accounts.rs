//! Accounts that vanish while their users have sessions. A deleted account, or one made again with another
//! number, no longer belongs to the authenticated user. This module reports such accounts, and then the
//! users' sessions and processes are ended.
//!
//! Only this module ends sessions for this reason. Other code that meets a missing account refuses its
//! request, and names the user here as a suspect.
//!
//! The name service is not asked about accounts in the file of local accounts. It is asked about the others,
//! several at a time, each with a time limit ([`Accounts`]). An account without an answer does not count as
//! missing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::Metadata;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use usher_base::UserName;
use usher_daemon::events;
use usher_proto::refusal::Refusal;

use super::{Key, Queues};
use crate::keeper::host::accounts::{Account, Standing};

/// The file of local accounts; when it changes, all accounts are looked up again.
const LOCAL: &str = "/etc/passwd";
/// The interval, in seconds, at which every account is looked up that the name service may get from
/// another source.
const ROUND: usize = 300;
/// How long an account must be missing before its sessions end. Accounts that go missing together wait only
/// once. A name service that is being restarted may report any account as missing.
const MISSING: Duration = Duration::from_secs(2);
/// Limit of look-ups at a time, and of accounts about which the name service has not answered: each of them
/// may hold a thread as long as the name service hangs.
const MOST: usize = 32;
/// The interval at which accounts without an answer are looked up again.
const RETRYING: Duration = Duration::from_secs(10);

/// An account as its user was authenticated: name and number.
type Known = (UserName, u32);

/// The accounts that are being looked at.
#[derive(Default)]
struct Watch {
    /// The local accounts, as their file had them when it was read last.
    local: HashSet<Known>,
    /// The state of that file when it was read last, or that it was missing; none if it was not read yet.
    read: Option<Option<FileState>>,
    /// The last account that had its turn.
    last: Option<Known>,
    /// To be asked about as soon as there is room.
    due: BTreeSet<Known>,
    asked: HashSet<Known>,
    /// Accounts about which the name service gave no answer when it was last asked.
    unanswered: HashSet<Known>,
    /// When the unanswered ones were last made due again.
    retried: Option<Instant>,
    /// Missing accounts, each with the time at which it was found missing.
    missing: HashMap<Known, Instant>,
}

/// Identifies the state of a file.
type FileState = (u64, i64, i64, u64);

impl Queues {
    /// Names a user whose account was missing when it was needed.
    pub fn suspect(&self, user: &UserName) {
        self.common.suspect(user);
    }

    /// The number of accounts about which the name service does not answer.
    pub fn unanswered(&self) -> usize {
        self.common.unanswered.load(Ordering::Relaxed)
    }

    /// Looks the accounts of all users and services up, for ever, and reports those that are gone.
    pub async fn watch_accounts(&self) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Watch::default();
        let mut answers: JoinSet<(Known, Option<Standing>)> = JoinSet::new();
        loop {
            tokio::select! {
                _ = second.tick() => {
                    let has_changed = watch.read_local();
                    let known = self.users().into_iter().map(|(_, account)| (account.name, account.uid));
                    let suspects = std::mem::take(&mut *self.common.suspects.lock());
                    watch.choose(&known.collect(), &suspects, has_changed, Instant::now());
                }
                Some(answer) = answers.join_next() => match answer {
                    Ok((known, standing)) => {
                        if let Some(refusal) = watch.note(&known, standing, Instant::now()) {
                            self.report_account(&known, refusal).await;
                        }
                    }
                    Err(error) => tracing::error!(%error, "cannot look up an account"),
                },
            }
            while let Some(known) = watch.next() {
                let host = Arc::clone(&self.common.host);
                answers.spawn(async move {
                    let (name, uid) = known.clone();
                    let standing = host.accounts.standing(&Account { name, uid }).await;
                    (known, standing)
                });
            }
            let unanswered = watch.unanswered.len();
            self.common.unanswered.store(unanswered, Ordering::Relaxed);
        }
    }

    async fn report_account(&self, (name, uid): &Known, refusal: Refusal) {
        tracing::warn!(name: events::ACCOUNT_GONE, user = %name, uid, reason = refusal.name(),
            "the user's account is gone, or no longer the same: the sessions end");
        let users = self.users().into_iter();
        let of_it = users.filter(|(_, account)| (&account.name, &account.uid) == (name, uid));
        let mut keys: Vec<Key> = of_it.map(|(key, _)| key).collect();
        for queue in self.list() {
            if queue.is_shared && keys.contains(&queue.key) {
                self.common.host.ports.lose(name);
                keys.extend(self.common.members.of(&queue));
            }
        }
        self.common.report_lost(keys, refusal).await;
    }

    /// The accounts of all queues and of all members of shared ones.
    fn users(&self) -> Vec<(Key, Account)> {
        let queues = self.list().into_iter();
        let queues = queues.map(|queue| (queue.key, queue.account.clone()));
        let members = self.common.members.list().into_iter();
        queues
            .chain(members.map(|(key, member)| (key, member.account)))
            .collect()
    }
}

impl Watch {
    /// Reads the local accounts if their file has changed. Returns whether it has; false the first time.
    fn read_local(&mut self) -> bool {
        let present = state();
        if self.read == Some(present) {
            return false;
        }
        // An unreadable file counts as empty, so the name service is asked about all accounts.
        let text = std::fs::read_to_string(LOCAL).unwrap_or_default();
        self.local = local_accounts(&text);
        self.read.replace(present).is_some()
    }

    /// Makes due: all accounts after a change of the local ones, else those whose turn it is; suspects; those
    /// that have been missing for long enough; and, at intervals, those without an answer.
    fn choose(
        &mut self,
        known: &BTreeSet<Known>,
        suspects: &HashSet<UserName>,
        has_changed: bool,
        now: Instant,
    ) {
        self.missing.retain(|one, _| known.contains(one));
        self.unanswered.retain(|one| known.contains(one));
        self.due.retain(|one| known.contains(one));
        let count = if has_changed {
            known.len()
        } else {
            known.len().div_ceil(ROUND)
        };
        let after = match self.last.take() {
            Some(last) => (Bound::Excluded(last), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        // Accounts after the last one, then from the beginning again.
        for one in known.range(after).chain(known).take(count) {
            self.last = Some(one.clone());
            if self.local.contains(one) {
                self.missing.remove(one);
            } else {
                self.due.insert(one.clone());
            }
        }
        let suspected = known.iter().filter(|(name, _)| suspects.contains(name));
        self.due.extend(suspected.cloned());
        let missing = self.missing.iter();
        let missing = missing.filter(|(_, since)| now.duration_since(**since) >= MISSING);
        self.due.extend(missing.map(|(one, _)| one.clone()));
        if self
            .retried
            .is_none_or(|at| now.duration_since(at) >= RETRYING)
        {
            self.retried = Some(now);
            self.due.extend(self.unanswered.iter().cloned());
        }
    }

    /// The next account to ask about; none if no account is due, or if there is no room.
    fn next(&mut self) -> Option<Known> {
        if self.asked.len() >= MOST {
            return None;
        }
        let hangs = self.unanswered.len() >= MOST;
        let mut due = self.due.iter();
        let may_be_asked =
            |one: &&Known| !self.asked.contains(*one) && (!hangs || self.unanswered.contains(*one));
        let next = due.find(may_be_asked)?.clone();
        self.due.remove(&next);
        self.asked.insert(next.clone());
        Some(next)
    }

    /// Notes the standing of an account; none if it could not be found out. Returns the reason if the
    /// account's sessions must end now.
    fn note(&mut self, one: &Known, standing: Option<Standing>, now: Instant) -> Option<Refusal> {
        self.asked.remove(one);
        match standing {
            Some(_) => self.unanswered.remove(one),
            None => self.unanswered.insert(one.clone()),
        };
        if let Some(Standing::Missing) = standing {
            let since = *self.missing.entry(one.clone()).or_insert(now);
            if now.duration_since(since) < MISSING {
                return None;
            }
        }
        self.missing.remove(one);
        match standing {
            Some(Standing::Missing) => Some(Refusal::NoLocalAccount),
            Some(Standing::Another(refusal)) => Some(refusal),
            Some(Standing::Stands) | None => None,
        }
    }
}

fn state() -> Option<FileState> {
    let state = |file: Metadata| (file.ino(), file.mtime(), file.mtime_nsec(), file.size());
    std::fs::metadata(LOCAL).ok().map(state)
}

/// The accounts of a file in the form of passwd(5).
fn local_accounts(text: &str) -> HashSet<Known> {
    let known = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.parse().ok()?;
        let uid = fields.nth(1)?.parse().ok()?;
        Some((name, uid))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(count: usize) -> BTreeSet<Known> {
        let one = |number: usize| {
            let uid = u32::try_from(number).unwrap();
            (format!("user{number}").parse().unwrap(), uid)
        };
        (0..count).map(one).collect()
    }

    /// Asks about all accounts that are due, and answers `standing` for each. Returns the lost accounts.
    fn answer(watch: &mut Watch, standing: Option<Standing>, now: Instant) -> Vec<Known> {
        let mut lost = Vec::new();
        while let Some(one) = watch.next() {
            if watch.note(&one, standing, now).is_some() {
                lost.push(one);
            }
        }
        lost
    }

    #[test]
    fn all_that_are_missed_together_have_one_grace_period() {
        let (all, now) = (known(100), Instant::now());
        let mut watch = Watch::default();
        watch.choose(&all, &HashSet::new(), true, now);
        assert!(answer(&mut watch, Some(Standing::Missing), now).is_empty());
        // Before the grace period ends, only accounts whose turn it is are asked about again.
        let soon = now + MISSING / 2;
        watch.choose(&all, &HashSet::new(), false, soon);
        assert!(answer(&mut watch, Some(Standing::Missing), soon).is_empty());
        let then = now + MISSING;
        watch.choose(&all, &HashSet::new(), false, then);
        assert_eq!(answer(&mut watch, Some(Standing::Missing), then).len(), 100);
        // The twin: accounts that are back when the grace period ends.
        watch.choose(&all, &HashSet::new(), true, now);
        answer(&mut watch, Some(Standing::Missing), now);
        watch.choose(&all, &HashSet::new(), false, then);
        assert!(answer(&mut watch, Some(Standing::Stands), then).is_empty());
    }

    #[test]
    fn no_answer_is_not_a_missing_account() {
        let (all, now) = (known(2), Instant::now());
        let mut watch = Watch::default();
        let ask = |watch: &mut Watch, standing, at| {
            watch.choose(&all, &HashSet::new(), true, at);
            answer(watch, standing, at).len()
        };
        assert_eq!(ask(&mut watch, Some(Standing::Missing), now), 0);
        assert_eq!(ask(&mut watch, None, now + MISSING), 0);
        assert_eq!(watch.unanswered.len(), 2);
        // The grace period begins anew.
        assert_eq!(
            ask(&mut watch, Some(Standing::Missing), now + 2 * MISSING),
            0
        );
        assert_eq!(watch.unanswered.len(), 0);
        assert_eq!(
            ask(&mut watch, Some(Standing::Missing), now + 3 * MISSING),
            2
        );
    }

    #[test]
    fn a_name_service_that_hangs_holds_few_threads_and_no_one_up() {
        let (all, now) = (known(1000), Instant::now());
        let mut watch = Watch::default();
        watch.choose(&all, &HashSet::new(), true, now);
        let asked: Vec<Known> = std::iter::from_fn(|| watch.next()).collect();
        assert_eq!(asked.len(), MOST);
        for one in &asked {
            watch.note(one, None, now);
        }
        // No other account is asked about until one of these is answered.
        assert_eq!(watch.next(), None);
        let later = now + RETRYING;
        watch.choose(&all, &HashSet::new(), false, later);
        let again: HashSet<Known> = std::iter::from_fn(|| watch.next()).collect();
        assert_eq!(again, asked.iter().cloned().collect());
        watch.note(&asked[0], Some(Standing::Stands), later);
        assert!(watch.next().is_some_and(|one| !again.contains(&one)));
    }

    #[test]
    fn a_local_account_needs_no_name_service_and_has_its_number() {
        let text = "root:x:0:0::/:\nuser0:x:0:0::/:\nuser1:x:7:7::/:\n+::::::\n";
        let mut watch = Watch {
            local: local_accounts(text),
            ..Watch::default()
        };
        let all = known(3);
        watch.choose(&all, &HashSet::new(), true, Instant::now());
        let asked: BTreeSet<Known> = std::iter::from_fn(|| watch.next()).collect();
        let others = all.iter().filter(|(_, uid)| *uid != 0).cloned();
        assert_eq!(asked, others.collect());
        // A suspect is asked about all the same.
        let suspects = HashSet::from(["user0".parse().unwrap()]);
        watch.choose(&all, &suspects, false, Instant::now());
        assert_eq!(watch.next().map(|one| one.1), Some(0));
    }

    #[test]
    fn every_account_has_its_turn() {
        let (all, now) = (known(ROUND * 2), Instant::now());
        let (mut watch, mut asked) = (Watch::default(), BTreeSet::new());
        for _ in 0..ROUND {
            watch.choose(&all, &HashSet::new(), false, now);
            while let Some(one) = watch.next() {
                watch.note(&one, Some(Standing::Stands), now);
                asked.insert(one);
            }
        }
        assert_eq!(asked, all);
    }
}
