//! Requests of client hosts in their sessions: connections, another authentication, tokens, the
//! end.

use std::time::Duration;

use usher_base::{ConnectionTuple, HostName};
use usher_kernel::admission::{AnnounceError, Announced};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::{Announcement, SessionRequest, Verdict};

use super::Sessions;
use super::table::kernel_failed;

/// The time that an announced connection may take to arrive.
const ANNOUNCED: Duration = Duration::from_secs(10);

impl Sessions {
    /// Does what the host of a session asks for.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn request(&self, session: SessionId, host: &HostName, asked: &SessionRequest) -> Verdict {
        match asked {
            SessionRequest::Announce(announcement) => self.announce(session, host, announcement)?,
            SessionRequest::Withdraw(connection) => self.withdraw(session, host, connection)?,
            SessionRequest::Close => self.table.close(&session, host)?,
            // The user is still present: the client host's policy still permits the session.
            SessionRequest::Reauthenticate(element) => {
                let mut record = self.table.live(&session, host)?;
                self.table.advance(&session, &mut record, element)?;
            }
            SessionRequest::Tokens(key) => {
                return self.table.open_tokens(session, host, key).map(Some);
            }
        }
        Ok(None)
    }

    /// Closes a session that its client does not know of.
    pub(super) fn abandon(&self, session: &SessionId, host: &HostName) {
        if let Err(refusal) = self.table.close(session, host) {
            tracing::error!(%session, reason = refusal.name(), "cannot close abandoned session");
        }
    }

    /// Withdraws an announcement. A forgotten session has no announcements left, so it counts as
    /// success.
    fn withdraw(
        &self,
        session: SessionId,
        host: &HostName,
        connection: &ConnectionTuple,
    ) -> Result<(), Refusal> {
        let record = self.table.session(&session)?;
        if record.is_some_and(|record| record.host != *host) {
            return Err(Refusal::UnknownSession);
        }
        self.host
            .admission
            .withdraw(connection, &session)
            .map_err(kernel_failed)
    }

    /// Whether a host may announce such a connection in a session for this service.
    pub(super) fn may_announce(
        &self,
        service: u32,
        host: &HostName,
        connection: &ConnectionTuple,
    ) -> Result<(), Refusal> {
        let configuration = self.host.configuration.get();
        let service = configuration
            .checked
            .service(service)
            .ok_or(Refusal::UnknownService)?;
        if connection.server.port() != service.listen {
            return Err(Refusal::WrongServerAddress);
        }
        let hosts = &configuration.checked.policy.hosts;
        let host = hosts.get(host).ok_or(Refusal::HostNotPermitted)?;
        if !host.addresses.contains(&connection.client.ip()) {
            // A host may announce only its own connections. Otherwise another host's user could be
            // served as its own.
            return Err(Refusal::ForeignAddress);
        }
        Ok(())
    }

    /// Announces a connection in a session.
    ///
    /// # Errors
    /// The first check that fails.
    pub(super) fn announce(
        &self,
        session: SessionId,
        host: &HostName,
        announcement: &Announcement,
    ) -> Result<(), Refusal> {
        let mut record = self.table.live(&session, host)?;
        let connection = announcement.connection;
        self.may_announce(record.service, host, &connection)?;
        if !self.queues.has((record.service, record.uid)) {
            return Err(Refusal::SessionEnded);
        }
        self.connections
            .announced
            .take((record.service, record.uid))?;
        self.table
            .advance(&session, &mut record, &announcement.element)?;
        let announced = Announced {
            session,
            service: record.service,
            uid: record.uid,
            lifetime: ANNOUNCED,
        };
        self.host
            .admission
            .announce(&connection, &announced)
            .map_err(|error| match error {
                AnnounceError::Full => Refusal::AdmissionTableFull,
                AnnounceError::AlreadyAnnounced => Refusal::AlreadyAnnounced,
                AnnounceError::NoConnection(_) => {
                    tracing::error!(%error, "cannot announce a connection");
                    Refusal::KeeperUnavailable
                }
                AnnounceError::Kernel(error) => kernel_failed(error),
            })
    }
}
