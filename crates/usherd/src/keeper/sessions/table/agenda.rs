//! The effects of the clock on sessions: they expire, must be authenticated again, and are forgotten. A
//! session is checked only when something is due, so a million sessions cost nothing in between.

use std::collections::{BTreeMap, HashSet};

use parking_lot::Mutex;
use usher_daemon::clock::unix_time;
use usher_kernel::admission::SessionRecord;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::Notice;

use super::{Ending, Table, is_closed, with_connections};

/// The time for which an ended session stays in the table, in seconds: longer than its authenticator
/// could be presented again (maximum age and skew together), so that a replay is detected.
pub const REMEMBERED: u64 = 300;

/// The times at which sessions must be checked, in seconds since 1970. A session has one entry for each
/// time that it was opened, closed or ended, so at most three for each session in the table.
#[derive(Default)]
pub struct Agenda(Mutex<BTreeMap<u64, HashSet<SessionId>>>);

impl Agenda {
    /// Enters a session for a check at this time.
    pub fn enter(&self, time: u64, session: SessionId) {
        self.0.lock().entry(time).or_default().insert(session);
    }

    /// Forgets all entries, because sessions are entered anew.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Takes the sessions that are due.
    fn due(&self, now: u64) -> HashSet<SessionId> {
        let mut entered = self.0.lock();
        let later = entered.split_off(&(now + 1));
        let due = std::mem::replace(&mut *entered, later);
        due.into_values().flatten().collect()
    }
}

/// The result of a check of a session.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    /// It stays as it is until this time.
    Nothing { until: u64 },
    /// The user must be authenticated again; the session is checked again at this time.
    Ask { again: u64 },
    /// It ends.
    End(Refusal),
    /// It can be forgotten.
    Forget,
}

/// The facts about a session besides its record.
struct Circumstances {
    /// The time at which its user was last authenticated at the service from the host.
    authenticated: u64,
    /// The interval that the service demands, in seconds.
    interval: Option<u64>,
    /// It has announced or established connections.
    connected: bool,
}

/// Decides what is due for a session. The client has half an interval to answer, and is asked eight
/// times.
fn due(record: &SessionRecord, circumstances: &Circumstances, now: u64) -> Due {
    if let Some(ended) = record.ended
        && !(is_closed(record) && circumstances.connected)
    {
        let until = ended.at + REMEMBERED + 1;
        return match (until <= now, ended.recorded) {
            (true, true) => Due::Forget,
            (false, _) => Due::Nothing { until },
            // The table keeps ends that the log does not have yet.
            (true, false) => Due::Nothing {
                until: now + REMEMBERED,
            },
        };
    }
    if record.expires <= now {
        return Due::End(Refusal::Expired);
    }
    let Some(interval) = circumstances.interval else {
        return Due::Nothing {
            until: in_sight(record, now, record.expires),
        };
    };
    let latest = circumstances.authenticated.saturating_add(interval);
    if latest <= now {
        return Due::End(Refusal::NotAuthenticatedAgain);
    }
    let latest = latest.min(record.expires);
    let half = circumstances.authenticated + interval.div_ceil(2);
    if record.ended.is_some() {
        // The client of a closed session has dropped the chain, so another session of the user is asked.
        Due::Nothing {
            until: in_sight(record, now, latest),
        }
    } else if half <= now {
        Due::Ask {
            again: latest.min(now + (interval / 16).max(1)),
        }
    } else {
        Due::Nothing {
            until: half.min(latest),
        }
    }
}

/// The time of the next check: `until`, or sooner for a closed session, which is forgotten when its
/// connections are gone.
fn in_sight(record: &SessionRecord, now: u64, until: u64) -> u64 {
    match record.ended {
        Some(_) => until.min(now + REMEMBERED),
        None => until,
    }
}

impl Table {
    fn circumstances(&self, record: &SessionRecord, connected: bool) -> Circumstances {
        let configuration = self.host.configuration.get();
        let service = configuration.checked.service(record.service);
        Circumstances {
            authenticated: self.presences.last_authenticated(record),
            interval: service
                .and_then(|service| service.reauthenticate)
                .map(|interval| interval.as_secs()),
            connected,
        }
    }

    /// Enters a session for its next check.
    pub fn schedule(&self, session: SessionId, record: &SessionRecord) {
        let time = match due(record, &self.circumstances(record, true), unix_time()) {
            Due::Nothing { until } => until,
            Due::Ask { .. } | Due::End(_) | Due::Forget => 0,
        };
        self.agenda.enter(time, session);
    }

    /// Handles the sessions that are due, and returns those that have to end. Called every second.
    pub fn look(&self) -> Vec<Ending> {
        let now = unix_time();
        let sessions = self.agenda.due(now);
        if sessions.is_empty() {
            return Vec::new();
        }
        let rows = match self.host.admissions() {
            Ok(rows) => rows,
            Err(error) => {
                tracing::error!(%error, "cannot read the admission table");
                for session in sessions {
                    self.agenda.enter(now + 1, session);
                }
                return Vec::new();
            }
        };
        let connected = with_connections(&rows);
        let mut ending = Vec::new();
        for session in sessions {
            let record = match self.host.admission.session(&session) {
                Ok(Some(record)) => record,
                // It is already forgotten.
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(%error, "cannot read the session table");
                    self.agenda.enter(now + 1, session);
                    continue;
                }
            };
            let found = self.circumstances(&record, connected.contains(&session));
            match due(&record, &found, now) {
                Due::Nothing { until } => self.agenda.enter(until, session),
                Due::Ask { again } => {
                    self.ask(session, &record);
                    self.agenda.enter(again, session);
                }
                Due::End(reason) => {
                    let reason = match reason {
                        Refusal::Expired => self.expiry(&session, &record),
                        reason => reason,
                    };
                    ending.push(Ending::new(session, record, reason));
                }
                Due::Forget => match self.host.admission.remove_session(&session) {
                    Ok(()) => self.presences.forget(&record),
                    Err(error) => {
                        tracing::error!(%error, "cannot remove a session from the session table");
                        self.agenda.enter(now + REMEMBERED, session);
                    }
                },
            }
        }
        ending
    }

    /// The reason for the end of an expired session: its certificate, its key, or its user as a guest
    /// has expired.
    pub(super) fn expiry(&self, session: &SessionId, record: &SessionRecord) -> Refusal {
        let configuration = self.host.configuration.get();
        let certificate = self.certificate(session, record);
        if let Ok(Some(certificate)) = &certificate
            && certificate.valid_before <= record.expires
        {
            return Refusal::ExpiredCertificate;
        }
        let keys = configuration
            .checked
            .keys
            .get(&record.user)
            .into_iter()
            .flatten();
        let mut of_session = keys.filter(|key| key.fingerprint == record.key_fingerprint);
        if of_session.any(|key| key.options.expires == Some(record.expires)) {
            return Refusal::ExpiredKey;
        }
        let service = configuration.checked.service(record.service);
        let until = service.and_then(|service| service.users.until(&record.user));
        // A guest whose time was already over was a user by the certificate.
        if until == Some(record.expires) {
            Refusal::GuestOver
        } else {
            Refusal::Expired
        }
    }

    /// Asks the client host for another element of the session's chain. A lost request does not
    /// matter: it is repeated, and the session ends if no answer comes.
    fn ask(&self, session: SessionId, record: &SessionRecord) {
        let notice = Notice::Reauthenticate { session };
        if !self.notices.send(record.host.clone(), notice) {
            tracing::debug!(%session, "cannot ask the verifier to authenticate a user again");
        }
    }
}

#[cfg(test)]
mod tests {
    use usher_kernel::admission::Ended;

    use super::*;
    use crate::keeper::sessions::table::example;

    const OPENED: u64 = 1_000_000;

    fn record(ended: Option<(u64, Refusal)>) -> SessionRecord {
        SessionRecord {
            opened: OPENED,
            expires: OPENED + 1000,
            ended: ended.map(|(after, reason)| Ended {
                at: OPENED + after,
                reason,
                recorded: true,
            }),
            ..example::record()
        }
    }

    fn due_after(
        seconds: u64,
        record: &SessionRecord,
        interval: Option<u64>,
        connected: bool,
    ) -> Due {
        let circumstances = Circumstances {
            authenticated: OPENED,
            interval,
            connected,
        };
        due(record, &circumstances, OPENED + seconds)
    }

    fn until(seconds: u64) -> Due {
        Due::Nothing {
            until: OPENED + seconds,
        }
    }

    #[test]
    fn a_session_ends_in_the_second_in_which_it_expires() {
        let live = record(None);
        assert_eq!(due_after(0, &live, None, false), until(1000));
        assert_eq!(due_after(999, &live, None, true), until(1000));
        let expired = Due::End(Refusal::Expired);
        assert_eq!(due_after(1000, &live, None, true), expired);
        assert_eq!(due_after(1000, &live, Some(5000), true), expired);
    }

    #[test]
    fn a_user_is_asked_at_half_the_interval_and_has_until_its_end() {
        let live = record(None);
        assert_eq!(due_after(1, &live, Some(160), false), until(80));
        let again = OPENED + 90;
        assert_eq!(due_after(80, &live, Some(160), true), Due::Ask { again });
        let again = OPENED + 160;
        assert_eq!(due_after(159, &live, Some(160), true), Due::Ask { again });
        let failed = Due::End(Refusal::NotAuthenticatedAgain);
        assert_eq!(due_after(160, &live, Some(160), false), failed);
        // The shortest interval.
        let again = OPENED + 4;
        assert_eq!(due_after(3, &live, Some(5), true), Due::Ask { again });
    }

    #[test]
    fn a_closed_session_is_cut_at_its_time_without_a_request() {
        let closed = record(Some((10, Refusal::SessionEnded)));
        assert_eq!(due_after(20, &closed, None, true), until(320));
        assert_eq!(due_after(900, &closed, None, true), until(1000));
        assert_eq!(
            due_after(1000, &closed, None, true),
            Due::End(Refusal::Expired)
        );
        assert_eq!(due_after(100, &closed, Some(160), true), until(160));
        let failed = Due::End(Refusal::NotAuthenticatedAgain);
        assert_eq!(due_after(160, &closed, Some(160), true), failed);
    }

    #[test]
    fn what_has_ended_is_remembered_for_a_while_and_ends_once() {
        let closed = record(Some((10, Refusal::SessionEnded)));
        let cut = record(Some((10, Refusal::Expired)));
        for (ended, connected) in [(&closed, false), (&cut, false), (&cut, true)] {
            let (before, after) = (10 + REMEMBERED, 11 + REMEMBERED);
            assert_eq!(due_after(before, ended, Some(20), connected), until(after));
            assert_eq!(due_after(after, ended, Some(20), connected), Due::Forget);
        }
    }

    #[test]
    fn the_agenda_gives_what_is_due_once() {
        let agenda = Agenda::default();
        let [first, second] = [1, 2].map(|number| SessionId::from_bytes([number; _]));
        agenda.enter(5, first);
        agenda.enter(5, first);
        agenda.enter(6, second);
        assert!(agenda.due(4).is_empty());
        assert_eq!(agenda.due(5), [first].into());
        assert_eq!(agenda.due(7), [second].into());
        assert!(agenda.due(u64::MAX - 1).is_empty());
    }
}
