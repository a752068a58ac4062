//! Connections whose client hosts are silent. The kernel ends them (`keepalive` of the policy), and tells
//! only the worker, by an error that few programs report. This module says so.
//!
//! A connection that has left the table while its last probes were unanswered has ended for that reason.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use usher_base::ConnectionTuple;
use usher_kernel::admission::{AdmissionRow, AdmissionState};
use usher_kernel::listener::PROBES;
use usher_proto::session_id::SessionId;
use usher_system::connections::unanswered_probes;

use super::Sessions;
use super::table::{is_closed, is_live};

/// The connections in the table, and whether their hosts answer.
#[derive(Default)]
pub struct Silent(HashMap<ConnectionTuple, Look>);

struct Look {
    session: SessionId,
    silence: Duration,
    /// The probes that were unanswered at the last look.
    unanswered: u8,
    next: Instant,
}

impl Look {
    /// Looks at the connection if its turn has come: four times in the time that its host may be silent,
    /// and each time this is called from the first unanswered probe on.
    fn look(&mut self, connection: &ConnectionTuple, now: Instant) {
        if now < self.next {
            return;
        }
        match unanswered_probes(connection) {
            Ok(Some(unanswered)) => self.unanswered = unanswered,
            // It is ending.
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "whether a client host answers is unknown"),
        }
        if self.unanswered == 0 {
            self.next = now + self.silence / 4;
        }
    }

    /// Whether it has ended because its host did not answer. The last probe but one may be the last that a
    /// look has seen.
    fn was_silent(&self) -> bool {
        self.unanswered + 1 >= PROBES
    }
}

impl Sessions {
    /// Looks at the connections, and reports those that have ended because of `keepalive`. Called every five
    /// seconds, less than the last two probes of the shortest one take.
    pub fn look_for_silence(&self) {
        let rows = match self.host.admissions() {
            Ok(rows) => rows,
            Err(error) => return tracing::error!(%error, "cannot read the admission table"),
        };
        let mut silent = self.silent.lock();
        let present: HashSet<ConnectionTuple> = rows.iter().map(|row| row.connection).collect();
        let mut ended: BTreeMap<SessionId, (usize, Duration)> = BTreeMap::new();
        silent.0.retain(|connection, look| {
            let stays = present.contains(connection);
            if !stays && look.was_silent() {
                ended.entry(look.session).or_insert((0, look.silence)).0 += 1;
            }
            stays
        });
        for (session, (connections, silence)) in ended {
            self.report_silence(&session, connections, silence);
        }
        let (configuration, now) = (self.host.configuration.get(), Instant::now());
        let established = |row: &&AdmissionRow| row.state == AdmissionState::Established;
        for row in rows.iter().filter(established) {
            let Some(service) = configuration.checked.service(row.service) else {
                continue;
            };
            let look = silent.0.entry(row.connection).or_insert_with(|| Look {
                session: row.session,
                silence: service.keepalive,
                unanswered: 0,
                next: now + service.keepalive / 4,
            });
            look.look(&row.connection, now);
        }
    }

    fn report_silence(&self, session: &SessionId, connections: usize, silence: Duration) {
        let record = match self.host.admission.session(session) {
            Ok(record) => record,
            Err(error) => return tracing::error!(%error, "cannot read the session table"),
        };
        // Connections of sessions that ended otherwise were cut.
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
