//! Tells client hosts about connections whose program has failed at once. Only the host from which a
//! connection came learns how its program ended, in a session of the connection's user.

use tokio::sync::mpsc;
use usher_proto::session_request::Notice;

use super::Sessions;
use crate::keeper::queues::FailedConnection;

impl Sessions {
    /// Tells the client hosts of failed connections, for ever.
    pub async fn tell_of_failures(&self, mut failed: mpsc::Receiver<FailedConnection>) {
        while let Some(report) = failed.recv().await {
            self.tell_of_failure(&report);
        }
    }

    /// Tells the host that has the client's address in the policy in force, and a live session of the user at
    /// the service. The kernel's entry of the connection may be gone already, so it is not used.
    fn tell_of_failure(&self, report: &FailedConnection) {
        let FailedConnection { key, client, end } = *report;
        let configuration = self.host.configuration.get();
        let mut hosts = configuration.checked.policy.hosts.values();
        let told = hosts.find_map(|host| {
            let has_address = host.addresses.contains(&client.ip());
            let session = has_address.then(|| self.table.presences.newest(key, &host.name));
            Some((host.name.clone(), session.flatten()?))
        });
        let Some((host, session)) = told else {
            return tracing::debug!(%client, "no session of a failed connection is live");
        };
        let notice = Notice::ProgramEnded {
            session,
            client,
            end,
        };
        if !self.table.notices.send(host, notice) {
            tracing::debug!(%client, "cannot notify the verifier; the client sees its connection end");
        }
    }
}
