//! Describes connections to the processes of their users.

use usher_base::ConnectionTuple;
use usher_daemon::clock::unix_time;
use usher_kernel::admission::SessionRecord;
use usher_proto::calls::ConnectionInfo;
use usher_proto::refusal::Refusal;
use usher_proto::{Certified, Principals};

use super::Sessions;
use super::table::kernel_failed;

impl Sessions {
    /// Describes a connection to its user, to the account of a service that serves all its users by one
    /// process, and to root.
    ///
    /// # Errors
    /// [`Refusal::NoConnection`], [`Refusal::ForeignConnection`], [`Refusal::KeeperUnavailable`].
    pub fn describe(
        &self,
        uid: u32,
        connection: &ConnectionTuple,
    ) -> Result<ConnectionInfo, Refusal> {
        let row = self
            .host
            .admission
            .admission(connection)
            .map_err(kernel_failed)?
            .ok_or(Refusal::NoConnection)?;
        if uid != 0 && row.uid != uid && !self.queues.is_shared_by(row.service, uid) {
            return Err(Refusal::ForeignConnection);
        }
        let record = self
            .table
            .session(&row.session)?
            .ok_or(Refusal::NoConnection)?;
        let principals = if record.certified {
            let certificate = self.host.admission.certificate(&row.session);
            let certificate = certificate.map_err(kernel_failed)?;
            self.trusted_principals(&record, &certificate.ok_or(Refusal::NoConnection)?)?
        } else {
            Principals::default()
        };
        Ok(ConnectionInfo {
            uid: record.uid,
            user: record.user,
            service: self
                .host
                .configuration
                .get()
                .checked
                .service_name(row.service),
            host: record.host,
            key_fingerprint: record.key_fingerprint,
            principals,
            opened: record.opened,
            expires: record.expires,
        })
    }

    /// The principals of a certificate that count for the user: those that the policy trusts the certificate's
    /// authority to name.
    fn trusted_principals(
        &self,
        record: &SessionRecord,
        certificate: &Certified,
    ) -> Result<Principals, Refusal> {
        let configuration = self.host.configuration.get();
        let checked = &configuration.checked;
        let service = checked
            .service(record.service)
            .ok_or(Refusal::NoConnection)?;
        let purpose = service.keys.as_ref();
        let trusted = checked.trusted_principals(&record.user, certificate, purpose, unix_time());
        // The list is no longer than the certificate's own.
        Principals::new(trusted.iter().map(|principal| principal.name))
            .map_err(|_| Refusal::KeeperUnavailable)
    }
}
