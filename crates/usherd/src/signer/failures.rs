//! Connections of this host's users whose program on the server has failed at once. A server reports such
//! failures within its own sessions only, as a number, never a text. They are shown to the program that asks
//! about its own connection, and by `usher who` and `usher doctor`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use usher_base::{HostName, ServiceName, UserName};
use usher_daemon::clock::unix_time;
use usher_local::requests::FailureView;
use usher_proto::program_end::ProgramEnd;

use super::sessions::SessionKey;

/// Limits of known failures: of all users, and of one user. The oldest failure makes room.
const MOST: usize = 256;
const OF_USER: usize = 32;
/// The time that a question waits for the server's report, which comes beside the connection.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a report answers a question; later the port may belong to another connection.
const FRESH: Duration = Duration::from_secs(10);

/// The known failures, oldest first.
#[derive(Default)]
pub struct Failures {
    known: Mutex<VecDeque<Failure>>,
    changed: Notify,
}

/// A user's connection to a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub uid: u32,
    pub host: HostName,
    pub service: ServiceName,
    /// This host's endpoint.
    pub client: SocketAddr,
}

struct Failure {
    subject: Subject,
    user: UserName,
    end: ProgramEnd,
    since: Instant,
    at: u64,
}

impl Failures {
    /// Notes that the program for a connection of this session has failed. The server may report it more than
    /// once. The journal gets at most one line in [`FRESH`] for a user at a service, because servers choose
    /// the number of reports.
    pub fn note(&self, key: &SessionKey, uid: u32, client: SocketAddr, end: ProgramEnd) {
        let subject = Subject {
            uid,
            host: key.host.clone(),
            service: key.service.clone(),
            client,
        };
        let mut known = self.known.lock();
        let is_told = known.iter().any(|known| {
            let of = &known.subject;
            let is_same = of.uid == uid && of.host == key.host && of.service == key.service;
            is_same && known.since.elapsed() < FRESH
        });
        let is_of_user = |failure: &Failure| failure.subject.uid == uid;
        let place = match known.iter().position(|known| known.subject == subject) {
            Some(same) => Some(same),
            None if known.iter().filter(|known| is_of_user(known)).count() >= OF_USER => {
                known.iter().position(is_of_user)
            }
            None => (known.len() >= MOST).then_some(0),
        };
        place.and_then(|place| known.remove(place));
        if !is_told {
            tracing::warn!(host = %key.host, service = %key.service, user = %key.user, %client, %end,
                "the service's program for a connection has ended at once");
        }
        known.push_back(Failure {
            subject,
            user: key.user.clone(),
            end,
            since: Instant::now(),
            at: unix_time(),
        });
        drop(known);
        self.changed.notify_waiters();
    }

    /// How the program for a connection that has just ended has failed. Waits for the server's report; `None`
    /// if none comes.
    pub async fn of(&self, subject: &Subject) -> Option<ProgramEnd> {
        let reported = async {
            loop {
                let changed = self.changed.notified();
                if let Some(end) = self.find(subject) {
                    return end;
                }
                changed.await;
            }
        };
        timeout(PATIENCE, reported).await.ok()
    }

    fn find(&self, subject: &Subject) -> Option<ProgramEnd> {
        let known = self.known.lock();
        let found = known.iter().find(|known| known.subject == *subject)?;
        (found.since.elapsed() < FRESH).then_some(found.end)
    }

    /// The last failure of each user at each service, oldest first.
    pub fn view(&self) -> Vec<FailureView> {
        let mut views: Vec<FailureView> = Vec::new();
        for failure in self.known.lock().iter() {
            let Subject { host, service, .. } = &failure.subject;
            views.retain(|view| {
                (&view.user, &view.host, &view.service) != (&failure.user, host, service)
            });
            views.push(FailureView {
                user: failure.user.clone(),
                host: host.clone(),
                service: service.clone(),
                ended: failure.end.to_string(),
                at: failure.at,
            });
        }
        views
    }
}

#[cfg(test)]
mod tests {
    use super::super::sessions::tests::{configuration, pair};
    use super::*;

    const END: ProgramEnd = ProgramEnd {
        by_signal: false,
        number: 89,
    };

    fn key() -> SessionKey {
        pair(&configuration("", None).checked).key
    }

    fn client(port: u16) -> SocketAddr {
        ([10, 77, 0, 1], port).into()
    }

    fn subject(uid: u32, port: u16) -> Subject {
        let (host, service) = (key().host, key().service);
        let client = client(port);
        Subject {
            uid,
            host,
            service,
            client,
        }
    }

    // Threat model: A37
    #[tokio::test(start_paused = true)]
    async fn a_question_waits_for_its_own_connections_report() {
        let failures = Failures::default();
        let late = async {
            tokio::task::yield_now().await;
            failures.note(&key(), 1001, client(40_001), END);
            failures.note(&key(), 1001, client(40_000), END);
        };
        let asked = subject(1001, 40_000);
        let (answer, ()) = tokio::join!(failures.of(&asked), late);
        assert_eq!(answer, Some(END));
        // Not answered: another connection, another user, and a report of long ago.
        assert_eq!(failures.of(&subject(1001, 40_002)).await, None);
        assert_eq!(failures.of(&subject(1002, 40_000)).await, None);
        assert_eq!(failures.of(&asked).await, Some(END));
        tokio::time::advance(FRESH).await;
        assert_eq!(failures.of(&asked).await, None);
    }

    // Threat model: A37
    #[tokio::test]
    async fn one_users_failures_leave_others_known() {
        let failures = Failures::default();
        failures.note(&key(), 1002, client(1), END);
        for port in 0..500 {
            failures.note(&key(), 1001, client(1 + port), END);
        }
        assert_eq!(failures.known.lock().len(), OF_USER + 1);
        assert_eq!(failures.of(&subject(1002, 1)).await, Some(END));
        assert_eq!(failures.of(&subject(1001, 500)).await, Some(END));
        for uid in 0..1000 {
            failures.note(&key(), 2000 + uid, client(1), END);
        }
        assert_eq!(failures.known.lock().len(), MOST);
        // The view tells users apart by name, and all these have the same name.
        assert_eq!(failures.view().len(), 1);
    }

    #[test]
    fn a_report_that_comes_twice_counts_once() {
        let failures = Failures::default();
        for _ in 0..2 {
            failures.note(&key(), 1001, client(1), END);
        }
        assert_eq!(failures.known.lock().len(), 1);
        assert_eq!(failures.view()[0].ended, "with status 89");
    }
}
