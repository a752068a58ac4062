//! The session table: the kernel's rows, and what the keeper knows about each session besides. It
//! decides nothing about policy, and it touches neither connections nor queues.

mod agenda;
#[cfg(test)]
mod example;
mod expiry;
mod notices;
mod recent;
mod room;
mod share;
mod tokens;
mod unrecorded;

use std::collections::HashSet;
use std::sync::Arc;

use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_kernel::KernelError;
use usher_kernel::admission::{Admission, AdmissionRow, Ended, SessionError, SessionRecord};
use usher_local::configuration::InForce;
use usher_local::requests::RecentView;
use usher_proto::Certified;
use usher_proto::chain::{ChainElement, ChainError};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::Notice;

use crate::keeper::queues::Key;
use agenda::{Agenda, REMEMBERED};
use notices::Notices;
pub use notices::Replies;
use recent::Recent;
use share::Shares;
pub use tokens::{Unread, set_client_addresses};
use unrecorded::Unrecorded;

/// The session table.
pub struct Table {
    admission: Arc<Admission>,
    configuration: Arc<InForce>,
    shares: Shares,
    agenda: Agenda,
    recent: Recent,
    unrecorded: Unrecorded,
    notices: Notices,
}

/// A session to end.
pub struct Ending {
    /// Its id.
    pub session: SessionId,
    /// Its record in the table.
    pub record: SessionRecord,
    /// The reason.
    pub reason: Refusal,
}

impl Table {
    /// A table with this many places, in which no session is entered yet.
    pub fn new(admission: Arc<Admission>, configuration: Arc<InForce>, most: u32) -> Self {
        Self {
            admission,
            configuration,
            shares: Shares::new(most),
            agenda: Agenda::default(),
            recent: Recent::default(),
            unrecorded: Unrecorded::default(),
            notices: Notices::default(),
        }
    }

    /// Sends notices to another verifier from now on.
    pub fn send_notices_to(&self, verifier: Replies) {
        self.notices.send_to(verifier);
    }

    /// The sessions that ended last.
    pub fn recent(&self) -> RecentView {
        self.recent.view(&self.configuration.get().checked)
    }

    /// The number of ends that the log does not have yet.
    pub fn unrecorded(&self) -> usize {
        self.unrecorded.waiting()
    }

    /// Whether a user has a live session at a service, from any host.
    pub fn has_live(&self, key: Key) -> bool {
        self.shares.has_live(key)
    }

    /// Enters the kernel's row of a session. [`Table::enter`] makes it a session of the table.
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
                self.admission
                    .insert_certified_session(session, record, certificate)
            }
            None => self.admission.insert_session(session, record),
        };
        inserted.map_err(|error| match error {
            SessionError::Exists => Refusal::Replayed,
            SessionError::Full => Refusal::SessionTableFull,
            SessionError::Kernel(error) => kernel_failed(error),
        })
    }

    /// Enters a session whose row was inserted.
    pub fn enter(&self, session: SessionId, record: &SessionRecord) {
        self.shares.keep(record);
        self.shares.enter(session, record, record.opened);
        self.schedule(session, record);
    }

    /// Enters a session whose authentication is on record, and that could not be opened, as ended: so
    /// that the authenticator cannot be used again, and its end is recorded, too.
    pub fn enter_ended(&self, session: &SessionId, record: SessionRecord, refusal: Refusal) {
        let record = SessionRecord {
            certified: false,
            ..record
        };
        match self.admission.insert_session(session, &record) {
            Ok(()) => {
                self.shares.keep(&record);
                self.end(session, record, refusal);
            }
            // The same authenticator has opened it.
            Err(SessionError::Exists) => {}
            Err(error) => {
                tracing::error!(%session, %error, "a session that was not opened has no end on record");
            }
        }
    }

    /// Enters a session that an earlier keeper has left. Returns whether it is live.
    pub fn take_up(&self, session: SessionId, record: &SessionRecord) -> bool {
        self.shares.keep(record);
        if let Some(ended) = record.ended {
            self.shares.authenticated(record, unix_time());
            self.recent.enter(session, record, ended);
            self.agenda.enter(ended.at, session);
            if !ended.recorded {
                self.unrecorded.enter(session, ended);
            }
            return false;
        }
        // The time of the user's last authentication is lost with the former keeper, so it counts
        // from now.
        self.shares.enter(session, record, unix_time());
        self.schedule(session, record);
        true
    }

    /// Forgets when sessions are to be checked, because the policy has changed. To be followed by
    /// [`Table::schedule`] for each.
    pub fn clear_agenda(&self) {
        self.agenda.clear();
    }

    /// A session of this host that has neither ended nor expired.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`], [`Refusal::SessionEnded`], [`Refusal::Expired`],
    /// [`Refusal::KeeperUnavailable`].
    pub fn live(&self, session: &SessionId, host: &HostName) -> Result<SessionRecord, Refusal> {
        let record = self
            .admission
            .session(session)
            .map_err(kernel_failed)?
            .filter(|record| record.host == *host)
            .ok_or(Refusal::UnknownSession)?;
        if record.ended.is_some() {
            return Err(Refusal::SessionEnded);
        }
        if record.expires <= unix_time() {
            return Err(Refusal::Expired);
        }
        Ok(record)
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
            .advance(&record.chain_salt, record.chain_length, element)
            .map_err(|error| match error {
                ChainError::Replayed => Refusal::ChainReplayed,
                ChainError::Exhausted => Refusal::ChainExhausted,
                ChainError::GapTooLarge => Refusal::ChainGap,
                ChainError::Mismatch => Refusal::ChainMismatch,
            })?;
        self.admission
            .update_session(session, record)
            .map_err(kernel_failed)?;
        self.shares.authenticated(record, unix_time());
        Ok(())
    }

    /// Makes a session end no later than this.
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
        self.admission
            .update_session(session, record)
            .map_err(|error| {
                tracing::error!(%error, "shortening a session; it ends now");
                Refusal::KeeperUnavailable
            })
    }

    /// Closes a session at the request of its client host: no more connections; existing ones continue.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`], also for another host's session, and [`Refusal::SessionEnded`].
    pub fn close(&self, session: &SessionId, host: &HostName) -> Result<(), Refusal> {
        let record = self
            .admission
            .session(session)
            .map_err(|error| {
                tracing::error!(%error, "reading the session table");
                Refusal::KeeperUnavailable
            })?
            .filter(|record| record.host == *host)
            .ok_or(Refusal::UnknownSession)?;
        if record.ended.is_some() {
            return Err(Refusal::SessionEnded);
        }
        self.end(session, record, Refusal::SessionEnded);
        Ok(())
    }

    /// Marks a session as ended: nothing more is announced in it, both logs get its end, and the client
    /// host learns it. The caller cuts its connections.
    pub fn end(&self, session: &SessionId, mut record: SessionRecord, reason: Refusal) {
        tracing::info!(%session, user = %record.user, host = %record.host, reason = reason.name(),
        "session ended: {reason}");
        self.shares.leave(session, &record);
        self.close_tokens(session);
        let ended = Ended {
            at: unix_time(),
            reason,
            recorded: false,
        };
        self.recent.enter(*session, &record, ended);
        self.agenda.enter(ended.at + REMEMBERED + 1, *session);
        record.ended = Some(ended);
        if let Err(error) = self.admission.update_session(session, &record) {
            tracing::error!(%error, "marking a session ended");
        }
        self.unrecorded.enter(*session, ended);
        let session = *session;
        let notice = Notice::SessionEnded { session, reason };
        if !self.notices.send(record.host, notice) {
            tracing::debug!(%session, "the verifier was not told; the client learns it at its next announcement");
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
    tracing::error!(%error, "the kernel's tables");
    Refusal::KeeperUnavailable
}
