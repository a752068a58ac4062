//! Why a session has expired.

use usher_kernel::admission::SessionRecord;
use usher_proto::Certified;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::Table;

impl Table {
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
                tracing::error!(%session, %error, "reading the certificate of a session");
                Err(Refusal::KeeperUnavailable)
            }
        }
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
        match until == Some(record.expires) {
            true => Refusal::GuestOver,
            false => Refusal::Expired,
        }
    }
}
