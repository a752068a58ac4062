//! Each user's share of announcements, so that one user cannot fill the table of connections by
//! announcing connections that are never made: at one service a user has at most [`SHARE`] announced
//! connections that have not arrived.

use std::collections::HashMap;

use parking_lot::Mutex;
use usher_kernel::admission::{AdmissionRow, AdmissionState};
use usher_proto::refusal::Refusal;

use crate::keeper::queues::Key;

/// Limit of announced connections of one user at one service that have not arrived yet.
pub const SHARE: usize = 4096;

/// Each user's number of announced connections at a service: recounted every second, counted up in between.
#[derive(Default)]
pub struct Announcements(Mutex<HashMap<Key, usize>>);

impl Announcements {
    /// Counts one more announced connection of a user.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when the share is used up.
    pub fn take(&self, user: Key) -> Result<(), Refusal> {
        let mut counts = self.0.lock();
        let count = counts.entry(user).or_default();
        if *count >= SHARE {
            return Err(Refusal::Overloaded);
        }
        *count += 1;
        Ok(())
    }

    /// Whether there is anything to recount.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Recounts the connections that have not arrived.
    pub fn recount(&self, rows: &[AdmissionRow]) {
        let mut counts = self.0.lock();
        counts.clear();
        for row in rows
            .iter()
            .filter(|row| row.state == AdmissionState::Announced)
        {
            *counts.entry((row.service, row.uid)).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_up_share_returns_with_the_next_count() {
        let announcements = Announcements::default();
        assert!(announcements.is_empty());
        for _ in 0..SHARE {
            assert_eq!(announcements.take((1, 1000)), Ok(()));
        }
        assert_eq!(announcements.take((1, 1000)), Err(Refusal::Overloaded));
        assert_eq!(announcements.take((1, 1001)), Ok(()));
        assert_eq!(announcements.take((2, 1000)), Ok(()));
        announcements.recount(&[]);
        assert_eq!(announcements.take((1, 1000)), Ok(()));
    }
}
