//! The sessions that ended last, for `usher who --recent`. They are kept in memory only: the signed log
//! has all of them.

use std::collections::VecDeque;

use parking_lot::Mutex;
use usher_kernel::admission::SessionRecord;
use usher_local::checked::Checked;
use usher_local::requests::{EndedView, RecentView};
use usher_proto::session_id::SessionId;

/// The number of kept sessions; the oldest are dropped first.
const KEPT: usize = 1024;

/// Sessions in their state at the end, oldest first.
#[derive(Default)]
pub struct Recent(Mutex<VecDeque<(SessionId, SessionRecord)>>);

impl Recent {
    /// The answer to `usher who --recent`.
    pub fn view(&self, checked: &Checked) -> RecentView {
        let ended = self.0.lock();
        let ended = ended.iter().filter_map(|(session, record)| {
            let ended = record.ended?;
            Some(EndedView {
                session: session.to_string(),
                user: record.user.clone(),
                host: record.host.clone(),
                service: checked.service_name(record.service),
                uid: record.uid,
                opened: record.opened,
                ended: ended.at,
                reason: ended.reason.name().into(),
                text: ended.reason.to_string(),
            })
        });
        RecentView {
            ended: ended.collect(),
        }
    }

    /// Enters an ended session. A session closed by its client is entered again if its connections are cut.
    pub fn enter(&self, session: SessionId, record: &SessionRecord) {
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((session, record.clone()));
    }
}
