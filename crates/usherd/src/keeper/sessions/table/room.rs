//! Room in the session table: each user has a share of it at each service from each host, and the
//! oldest session without connections makes room for a new one.

use usher_kernel::admission::SessionRecord;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use super::{Table, kernel_failed, with_connections};

impl Table {
    /// Makes room in a user's share of the session table: the oldest session without connections ends.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when all of them have connections, or too many have just ended.
    pub fn make_room(&self, fresh: &SessionRecord) -> Result<(), Refusal> {
        let Some(oldest) = self.in_the_way(fresh)? else {
            return Ok(());
        };
        match self.session(&oldest)? {
            Some(record) => self.end(&oldest, record, Refusal::SessionEnded),
            None => self.shares.leave(&oldest, fresh),
        }
        Ok(())
    }

    /// Checks whether there is room, or room could be made. Changes nothing.
    ///
    /// # Errors
    /// Like [`make`]; [`Refusal::SessionTableFull`].
    pub fn has_room(&self, fresh: &SessionRecord) -> Result<(), Refusal> {
        if self.shares.is_full() {
            return Err(Refusal::SessionTableFull);
        }
        self.in_the_way(fresh).map(drop)
    }

    /// The session that has to end for another one; none if there is room for both.
    fn in_the_way(&self, fresh: &SessionRecord) -> Result<Option<SessionId>, Refusal> {
        if self.shares.crowded(fresh) {
            return Err(Refusal::Overloaded);
        }
        let Some(sessions) = self.shares.used_up(fresh) else {
            return Ok(None);
        };
        let rows = self.host.admission.admissions().map_err(kernel_failed)?;
        let with_connections = with_connections(&rows);
        let idle = sessions
            .into_iter()
            .find(|session| !with_connections.contains(session));
        idle.map(Some).ok_or(Refusal::Overloaded)
    }
}
