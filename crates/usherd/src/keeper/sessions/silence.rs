//! Connections whose client hosts are silent. The kernel ends them after the policy's `keepalive`, but
//! reports that only to the worker, by an error that few programs log. This module logs it. It also ends
//! connections whose client owes an ACK for data: Linux sends no keepalive probes for these, and would send
//! the data again for a quarter of an hour or more (tcp_retries2, tcp(7)).
//!
//! A connection that has left the table while its last probes were unanswered has ended for that reason.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use usher_base::ConnectionTuple;
use usher_kernel::admission::{AdmissionRow, AdmissionState};
use usher_kernel::listener::PROBES;
use usher_proto::session_id::SessionId;
use usher_system::connections::{Silence, silence_of_client};

use super::Sessions;
use super::table::{is_closed, is_live};

/// Limit of connections that are looked at in one go. Each costs a question of about 7 us to the kernel. The
/// others are looked at in the next go, so that a full table on a network that is down delays nothing else.
const MOST_LOOKS: usize = 1000;

/// A client host counts as silent only after so many unanswered retransmissions. A single one may still be on
/// its way: while a client does not read, the kernel probes its window, in the end only every two minutes.
const AGAIN: u8 = 2;

/// The connections in the table, and whether their hosts answer.
#[derive(Default)]
pub struct Silent(HashMap<ConnectionTuple, Look>);

impl Silent {
    /// The connections whose turn has come, at most `most`: those that have waited longest.
    fn due(&self, now: Instant, most: usize) -> Vec<ConnectionTuple> {
        let looks = self.0.iter().filter(|(_, look)| look.next <= now);
        let mut due: Vec<_> = looks
            .map(|(connection, look)| (look.next, *connection))
            .collect();
        if due.len() > most {
            due.select_nth_unstable_by_key(most, |(next, _)| *next);
            due.truncate(most);
        }
        due.into_iter().map(|(_, connection)| connection).collect()
    }
}

struct Look {
    session: SessionId,
    silence: Duration,
    /// The probes that were unanswered at the last look.
    unanswered: u8,
    /// Whether data was unanswered for too long at the last look.
    is_overdue: bool,
    next: Instant,
}

impl Look {
    fn new(session: SessionId, silence: Duration, now: Instant) -> Self {
        Self {
            session,
            silence,
            unanswered: 0,
            is_overdue: false,
            next: now + silence / 4,
        }
    }

    /// Looks at the connection. The next look follows after a quarter of the time that its host may be
    /// silent, or in the next go if a packet is unanswered. Returns whether the connection has to be ended.
    fn look(&mut self, connection: &ConnectionTuple, now: Instant) -> bool {
        match silence_of_client(connection) {
            Ok(Some(seen)) => self.take(seen, now),
            // The connection is ending.
            Ok(None) => {
                self.next = now + self.silence / 4;
                false
            }
            Err(error) => {
                tracing::debug!(%error, "whether a client host answers is unknown");
                self.next = now + self.silence / 4;
                false
            }
        }
    }

    /// Notes the result of a look. Returns whether the connection has to be ended: in two consecutive looks,
    /// its host owed an answer to data for longer than it may. So it had at least five seconds to answer what
    /// was sent before the first look.
    fn take(&mut self, seen: Silence, now: Instant) -> bool {
        self.unanswered = seen.probes;
        let is_overdue =
            seen.again >= AGAIN && seen.lasts.is_some_and(|lasts| lasts >= self.silence);
        let has_ended = is_overdue && self.is_overdue;
        self.is_overdue = is_overdue;
        self.next = if seen.probes > 0 || seen.again > 0 {
            now
        } else {
            now + self.silence / 4
        };
        has_ended
    }

    /// Whether a connection that is gone has ended because its host did not answer. The last probe may have
    /// come after the last look.
    fn was_silent(&self) -> bool {
        self.unanswered + 1 >= PROBES
    }
}

impl Sessions {
    /// Looks at the connections, ends those whose hosts owe an ACK for longer than `keepalive`, and reports
    /// these and the ones that the kernel has ended. Called every five seconds: the last two probes take
    /// longer than that, even with the shortest `keepalive`.
    pub fn look_for_silence(&self) {
        let rows = match self.host.admissions() {
            Ok(rows) => rows,
            Err(error) => return tracing::error!(%error, "cannot read the admission table"),
        };
        let mut silent = self.silent.lock();
        let present: HashSet<ConnectionTuple> = rows.iter().map(|row| row.connection).collect();
        let mut ended: BTreeMap<SessionId, (usize, Duration)> = BTreeMap::new();
        let mut count = |look: &Look| ended.entry(look.session).or_insert((0, look.silence)).0 += 1;
        silent.0.retain(|connection, look| {
            let stays = present.contains(connection);
            if !stays && look.was_silent() {
                count(look);
            }
            stays
        });
        let (configuration, now) = (self.host.configuration.get(), Instant::now());
        let established = |row: &&AdmissionRow| row.state == AdmissionState::Established;
        for row in rows.iter().filter(established) {
            if let Some(service) = configuration.checked.service(row.service) {
                let look = || Look::new(row.session, service.keepalive, now);
                silent.0.entry(row.connection).or_insert_with(look);
            }
        }
        for connection in silent.due(now, MOST_LOOKS) {
            if let Some(look) = silent.0.get_mut(&connection)
                && look.look(&connection, now)
            {
                count(look);
                self.connections.destroy(&connection);
                silent.0.remove(&connection);
            }
        }
        for (session, (connections, silence)) in ended {
            self.report_silence(&session, connections, silence);
        }
    }

    fn report_silence(&self, session: &SessionId, connections: usize, silence: Duration) {
        let record = match self.host.admission.session(session) {
            Ok(record) => record,
            Err(error) => return tracing::error!(%error, "cannot read the session table"),
        };
        // The keeper itself has cut the connections of sessions that ended otherwise.
        let Some(record) = record.filter(|record| is_live(record) || is_closed(record)) else {
            return;
        };
        let configuration = self.host.configuration.get();
        let service = configuration.checked.service(record.service);
        tracing::warn!(user = %record.user, host = %record.host,
            service = service.map(|service| service.name.to_string()), connections, ?silence,
            "connections have ended because their client host has not answered (`keepalive`)");
    }
}

#[cfg(test)]
mod tests {
    use usher_proto::session_id::session_id;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn look(now: Instant) -> Look {
        Look::new(session_id(b"a statement"), 30 * SECOND, now)
    }

    fn seen(again: u8, seconds: u32) -> Silence {
        Silence {
            probes: 0,
            again,
            lasts: Some(seconds * SECOND),
        }
    }

    // Threat model: A82
    #[test]
    fn data_that_a_host_owes_an_ack_for_too_long_ends_it() {
        let now = Instant::now();
        let mut vanished = look(now);
        let looks = [(0, 9), (5, 25), (6, 29), (7, 30), (7, 35)];
        let ended = looks.map(|(again, lasts)| vanished.take(seen(again, lasts), now));
        assert_eq!(ended, [false, false, false, false, true]);
        assert_eq!(vanished.next, now, "the next go looks at it again");
    }

    // Threat model: A82
    #[test]
    fn a_host_that_answers_late_is_not_ended() {
        let now = Instant::now();
        // This host does not read, and is probed every two minutes: each probe is on its way at one look.
        let mut reader = look(now);
        let looks = [
            (0, 115),
            (1, 120),
            (0, 5),
            (1, 125),
            (1, 130),
            (2, 240),
            (0, 1),
        ];
        // This host is overdue only at single looks, and answers before the next one.
        let slow = [(7, 29), (0, 1), (7, 30), (0, 1), (7, 30), (7, 2), (7, 30)];
        for (again, lasts) in looks.into_iter().chain(slow) {
            assert!(!reader.take(seen(again, lasts), now), "{again} {lasts}");
        }
        // If the kernel does not tell the time since the last ACK, no connection is ended.
        let unknown = Silence {
            lasts: None,
            ..seen(9, 0)
        };
        assert!(!reader.take(unknown, now) && !reader.take(unknown, now));
    }

    #[test]
    fn every_connection_has_its_turn_among_many_silent_ones() {
        let begin = Instant::now();
        let connection = |port| ConnectionTuple {
            client: ([192, 0, 2, 1], port).into(),
            server: ([192, 0, 2, 2], 143).into(),
        };
        let mut silent = Silent::default();
        for port in 1..=2500 {
            silent.0.insert(connection(port), look(begin));
        }
        assert_eq!(silent.due(begin, MOST_LOOKS), [], "not yet");
        let mut looked: HashMap<ConnectionTuple, usize> = HashMap::new();
        for go in 1..=3 {
            let now = begin + go * 30 * SECOND;
            let due = silent.due(now, MOST_LOOKS);
            assert_eq!(due.len(), MOST_LOOKS);
            for connection in due {
                *looked.entry(connection).or_default() += 1;
                // None of them answers.
                silent.0.get_mut(&connection).unwrap().take(seen(1, 1), now);
            }
        }
        assert_eq!(looked.len(), 2500);
        assert!(looked.values().all(|times| *times <= 2));
    }
}
