//! The session table: the kernel's rows, and what the keeper knows about each session besides. It
//! decides nothing about policy, and it touches neither connections nor queues.

mod agenda;
#[cfg(test)]
mod example;
mod notices;
mod presence;
mod recent;
mod tokens;
mod unrecorded;

use std::collections::HashSet;
use std::sync::Arc;

use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionRow, Ended, SessionError, SessionRecord};
use usher_proto::Certified;
use usher_proto::chain::ChainElement;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::Notice;

use crate::keeper::host::Host;
use agenda::{Agenda, REMEMBERED};
use notices::Notices;
pub use notices::Replies;
use presence::Presences;
use recent::Recent;
pub use tokens::{Unread, set_client_addresses};
use unrecorded::Unrecorded;

/// The session table.
pub struct Table {
    host: Arc<Host>,
    /// The users of sessions.
    pub presences: Presences,
    /// The times of the next checks.
    pub agenda: Agenda,
    /// The sessions that ended last.
    pub recent: Recent,
    /// The ends that the log does not have yet.
    pub unrecorded: Unrecorded,
    /// The way to the client hosts.
    pub notices: Notices,
}

/// A session to end.
pub struct Ending {
    pub session: SessionId,
    pub record: SessionRecord,
    pub reason: Refusal,
}

impl Ending {
    pub fn new(session: SessionId, record: SessionRecord, reason: Refusal) -> Self {
        Self {
            session,
            record,
            reason,
        }
    }
}

impl Table {
    /// A table with this many places, in which no session is entered yet.
    pub fn new(host: Arc<Host>, most: u32) -> Self {
        Self {
            host,
            presences: Presences::new(most),
            agenda: Agenda::default(),
            recent: Recent::default(),
            unrecorded: Unrecorded::default(),
            notices: Notices::default(),
        }
    }

    /// Enters a session's row in the kernel's table. [`Table::enter`] then enters the session here.
    ///
    /// # Errors
    /// [`Refusal::Replayed`], [`Refusal::SessionTableFull`], [`Refusal::KeeperUnavailable`].
    pub fn insert(
        &self,
        session: &SessionId,
        record: &SessionRecord,
        certificate: Option<&Certified>,
    ) -> Result<(), Refusal> {
        let inserted = match certificate {
            Some(certificate) => {
                self.host
                    .admission
                    .insert_certified_session(session, record, certificate)
            }
            None => self.host.admission.insert_session(session, record),
        };
        inserted.map_err(|error| match error {
            SessionError::Exists => Refusal::Replayed,
            SessionError::Full => Refusal::SessionTableFull,
            SessionError::Kernel(error) => kernel_failed(error),
        })
    }

    /// Enters a session whose row was inserted.
    pub fn enter(&self, session: SessionId, record: &SessionRecord) {
        self.presences.keep(record);
        self.presences.enter(session, record, record.opened);
        self.schedule(session, record);
    }

    /// Enters a session as ended that is on record but could not be opened. So its authenticator cannot be
    /// used again, and its end is recorded, too.
    pub fn enter_ended(&self, session: &SessionId, record: SessionRecord, refusal: Refusal) {
        let record = SessionRecord {
            certified: false,
            ..record
        };
        match self.host.admission.insert_session(session, &record) {
            Ok(()) => {
                self.presences.keep(&record);
                self.end(session, record, refusal);
            }
            // The same authenticator has opened this session already.
            Err(SessionError::Exists) => {}
            Err(error) => {
                tracing::error!(%session, %error, "cannot record the end of a session that was not \
                    opened");
            }
        }
    }

    /// Enters a session that an earlier keeper has left. Returns whether it is live.
    pub fn take_up(&self, session: SessionId, record: &SessionRecord) -> bool {
        self.presences.keep(record);
        if let Some(ended) = record.ended {
            self.presences.authenticated(record, unix_time());
            self.recent.enter(session, record);
            self.agenda.enter(ended.at, session);
            if !ended.recorded {
                self.unrecorded.enter(session, ended);
            }
            return false;
        }
        // The time of the user's last authentication is lost with the former keeper, so it counts
        // from now.
        self.presences.enter(session, record, unix_time());
        self.schedule(session, record);
        true
    }

    /// The record of a session, if there is one.
    ///
    /// # Errors
    /// [`Refusal::KeeperUnavailable`].
    pub fn session(&self, session: &SessionId) -> Result<Option<SessionRecord>, Refusal> {
        let found = self.host.admission.session(session);
        found.map_err(kernel_failed)
    }

    /// The certificate that makes a session's key the user's.
    ///
    /// # Errors
    /// [`Refusal::KeeperUnavailable`]: a session that lacks its certificate ends.
    pub fn certificate(
        &self,
        session: &SessionId,
        record: &SessionRecord,
    ) -> Result<Option<Certified>, Refusal> {
        if !record.certified {
            return Ok(None);
        }
        match self.host.admission.certificate(session) {
            Ok(Some(certificate)) => Ok(Some(certificate)),
            Ok(None) => Err(Refusal::KeeperUnavailable),
            Err(error) => {
                tracing::error!(%session, %error, "cannot read the certificate of a session");
                Err(Refusal::KeeperUnavailable)
            }
        }
    }

    /// A session of this host that has neither ended nor expired.
    ///
    /// # Errors
    /// As [`Table::open_session`]; [`Refusal::Expired`].
    pub fn live(&self, session: &SessionId, host: &HostName) -> Result<SessionRecord, Refusal> {
        let record = self.open_session(session, host)?;
        if record.expires <= unix_time() {
            Err(Refusal::Expired)
        } else {
            Ok(record)
        }
    }

    /// A session of this host that has not ended.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`], also for another host's; [`Refusal::SessionEnded`],
    /// [`Refusal::KeeperUnavailable`].
    fn open_session(&self, session: &SessionId, host: &HostName) -> Result<SessionRecord, Refusal> {
        let record = self
            .session(session)?
            .filter(|record| record.host == *host)
            .ok_or(Refusal::UnknownSession)?;
        match record.ended {
            Some(_) => Err(Refusal::SessionEnded),
            None => Ok(record),
        }
    }

    /// Accepts an element of the session's chain, which authenticates the user anew.
    ///
    /// # Errors
    /// The chain's refusals; [`Refusal::KeeperUnavailable`].
    pub fn advance(
        &self,
        session: &SessionId,
        record: &mut SessionRecord,
        element: &ChainElement,
    ) -> Result<(), Refusal> {
        record.tip = record
            .tip
            .advance(&record.chain_salt, record.chain_length, element)?;
        self.host
            .admission
            .update_session(session, record)
            .map_err(kernel_failed)?;
        self.presences.authenticated(record, unix_time());
        Ok(())
    }

    /// Makes a session end no later than `latest`.
    ///
    /// # Errors
    /// [`Refusal::KeeperUnavailable`]: the session must end now.
    pub fn shorten(
        &self,
        session: &SessionId,
        record: &mut SessionRecord,
        latest: u64,
    ) -> Result<(), Refusal> {
        if latest >= record.expires {
            return Ok(());
        }
        record.expires = latest;
        self.host
            .admission
            .update_session(session, record)
            .map_err(|error| {
                tracing::error!(%error, "cannot shorten a session; it ends now");
                Refusal::KeeperUnavailable
            })
    }

    /// Closes a session at the request of its client host: no more connections; existing ones continue.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`], also for another host's session, and [`Refusal::SessionEnded`].
    pub fn close(&self, session: &SessionId, host: &HostName) -> Result<(), Refusal> {
        let record = self.open_session(session, host)?;
        self.end(session, record, Refusal::SessionEnded);
        Ok(())
    }

    /// Marks a session as ended: nothing more is announced in it, both logs get its end, and the client
    /// host learns it. The caller cuts its connections.
    pub fn end(&self, session: &SessionId, mut record: SessionRecord, reason: Refusal) {
        tracing::info!(name: events::SESSION_ENDED, %session, user = %record.user, host = %record.host,
            reason = reason.name(), "session ended: {reason}");
        self.presences.leave(session, &record);
        self.close_tokens(session);
        let ended = Ended {
            at: unix_time(),
            reason,
            recorded: false,
        };
        record.ended = Some(ended);
        self.recent.enter(*session, &record);
        self.agenda.enter(ended.at + REMEMBERED + 1, *session);
        if let Err(error) = self.host.admission.update_session(session, &record) {
            tracing::error!(%error, "cannot mark a session as ended");
        }
        self.unrecorded.enter(*session, ended);
        let session = *session;
        let notice = Notice::SessionEnded { session, reason };
        if !self.notices.send(record.host, notice) {
            tracing::debug!(%session, "cannot notify the verifier; the client learns it at its next announcement");
        }
    }
}

/// Whether the session is open, or closed by its client with connections that may continue.
pub fn is_live(record: &SessionRecord) -> bool {
    record.ended.is_none() || is_closed(record)
}

/// Whether its client has closed the session; its connections continue.
pub fn is_closed(record: &SessionRecord) -> bool {
    let closed = |ended: Ended| ended.reason == Refusal::SessionEnded;
    record.ended.is_some_and(closed)
}

/// The sessions that have connections.
pub fn with_connections(rows: &[AdmissionRow]) -> HashSet<SessionId> {
    rows.iter().map(|row| row.session).collect()
}

/// Leaves out closed sessions without connections: nothing of them is left to end.
pub fn leave_out_idle(forbidden: &mut Vec<Ending>, rows: &[AdmissionRow]) {
    let with_connections = with_connections(rows);
    forbidden.retain(|ending| {
        ending.record.ended.is_none() || with_connections.contains(&ending.session)
    });
}

/// The refusal for a kernel table that fails for another reason than its limit.
pub fn kernel_failed(error: KernelError) -> Refusal {
    tracing::error!(%error, "cannot use the kernel's tables");
    Refusal::KeeperUnavailable
}
