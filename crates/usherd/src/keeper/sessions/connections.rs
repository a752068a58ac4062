//! The connections of sessions: how many may be announced, and how they are cut.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use usher_base::ConnectionTuple;
use usher_kernel::admission::AdmissionRow;
use usher_proto::session_id::SessionId;

use super::announced::Announcements;
use super::table::Unread;
use crate::keeper::host::Host;

/// The connections.
pub struct Connections {
    host: Arc<Host>,
    /// The number of announced connections of each user.
    pub announced: Announcements,
    /// Interfaces on which tokens are not read.
    pub unread: Unread,
    /// Ended sessions whose connections are not cut yet.
    uncut: Mutex<HashSet<SessionId>>,
}

impl Connections {
    /// The connections in this host's table.
    pub fn new(host: Arc<Host>) -> Self {
        Self {
            host,
            announced: Announcements::default(),
            unread: Unread::default(),
            uncut: Mutex::default(),
        }
    }

    /// Cuts what remains to be cut, forgets announced connections that have not arrived, and counts the
    /// others. Called every second.
    pub fn tidy(&self) {
        self.cut_untracked();
        self.cut_left();
        match self.host.admission.sweep() {
            Ok(0) => {}
            Ok(expired) => tracing::info!(expired, "announced connections that never came"),
            Err(error) => tracing::error!(%error, "cannot sweep the admission table"),
        }
        if !self.announced.is_empty() {
            match self.host.admissions() {
                Ok(rows) => self.announced.recount(&rows),
                Err(error) => tracing::error!(%error, "cannot count announced connections"),
            }
        }
        if let Err(error) = self.host.admission.recount_outstanding() {
            tracing::error!(%error, "cannot count announced connections that have not come");
        }
    }

    /// Cuts the connections of these sessions once more: a SYN whose token was under check may be
    /// admitted late.
    pub fn cut_again(&self, ids: HashSet<SessionId>) {
        self.uncut.lock().extend(ids);
    }

    /// Cuts established connections whose announcement was gone when they were established.
    fn cut_untracked(&self) {
        match self.host.admission.drain_untracked() {
            Ok(connections) => {
                for connection in connections {
                    tracing::warn!(client = %connection.client, server = %connection.server,
                        "cut a connection that is not in the admission table");
                    self.destroy(&connection);
                }
            }
            Err(error) => tracing::error!(%error, "cannot read untracked connections"),
        }
    }

    /// Cuts the connections of ended sessions, and returns them; none if the table cannot be read.
    pub fn cut(&self, ids: &HashSet<SessionId>) -> Vec<AdmissionRow> {
        match self.host.admissions() {
            Ok(mut rows) => {
                rows.retain(|row| ids.contains(&row.session));
                rows.iter().for_each(|row| self.destroy(&row.connection));
                rows
            }
            Err(error) => {
                tracing::error!(%error, "cannot read the admission table; connections are cut later");
                self.uncut.lock().extend(ids);
                Vec::new()
            }
        }
    }

    /// Cuts connections that were admitted while their session ended, and those that could not be cut
    /// before. Called every second.
    pub fn cut_left(&self) {
        let left = std::mem::take(&mut *self.uncut.lock());
        if !left.is_empty() {
            self.cut(&left);
        }
    }

    /// Forgets a connection that is not established, and destroys one that is. The order matters: a
    /// connection forgotten in time is cut as untracked when it is established; otherwise it is
    /// established and can be destroyed. In the other order a connection established in between would
    /// stay.
    pub fn destroy(&self, connection: &ConnectionTuple) {
        if let Err(error) = self.host.admission.forget(connection) {
            tracing::error!(%error, "cannot remove a connection from the admission table");
        }
        if let Err(error) = usher_system::connections::destroy(connection) {
            tracing::error!(client = %connection.client, %error, "cannot destroy a connection");
        }
    }
}
