//! Ends of sessions on their way into the signed log. A session ends at once and its record
//! follows: the table keeps an ended session until the log has its end. So neither a full disk nor
//! the death of a daemon loses one, and the waiting ends never outnumber the table's places.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use usher_daemon::events;
use usher_kernel::admission::Ended;
use usher_proto::refusal::Refusal;
use usher_proto::session_end::SessionEnd;
use usher_proto::session_id::SessionId;

use super::agenda::REMEMBERED;
use super::{Table, kernel_failed};
use crate::keeper::recording::Recording;

/// Limit of ends that are recorded together, because authentications wait for the disk with them.
const TOGETHER: usize = 256;
/// The pause when no end could be recorded: doubled each time, up to the second value.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));
/// The interval of checks for an absent recorder.
const LOOK: Duration = Duration::from_millis(100);

/// Ends that the log does not have yet.
#[derive(Default)]
pub struct Unrecorded {
    /// Oldest first. A session that its client has closed may end once more before the first end is
    /// recorded: at most two for each session of the table.
    waiting: Mutex<VecDeque<(SessionId, Ended)>>,
    more: Notify,
}

impl Unrecorded {
    /// Enters the end of a session, which the log does not have yet.
    pub fn enter(&self, session: SessionId, ended: Ended) {
        self.waiting.lock().push_back((session, ended));
        self.more.notify_one();
    }

    /// The number of waiting ends.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// The oldest ends, at least one. They stay here until [`Unrecorded::settle`].
    async fn first(&self) -> Vec<(SessionId, Ended)> {
        loop {
            let first: Vec<_> = self.waiting.lock().iter().take(TOGETHER).copied().collect();
            if !first.is_empty() {
                return first;
            }
            self.more.notified().await;
        }
    }

    /// Removes the oldest `tried` ends, and puts those of them that failed (`left`) behind the others, so
    /// that an end that can never be recorded does not block the rest.
    fn settle(&self, tried: usize, left: Vec<(SessionId, Ended)>) {
        let mut waiting = self.waiting.lock();
        waiting.drain(..tried);
        waiting.extend(left);
    }
}

impl Table {
    /// Sends the recorder the ends of sessions, for ever.
    pub async fn record_ends(&self, recording: &Recording) {
        let mut pause = None;
        loop {
            let first = self.unrecorded.first().await;
            // Without a recorder the ends wait. The log says already that it is away.
            while !recording.is_connected() {
                tokio::time::sleep(LOOK).await;
            }
            let tried = first.len();
            let (left, refusal) = self.record_all(recording, first).await;
            let nothing = left.len() == tried;
            self.unrecorded.settle(tried, left);
            match refusal {
                Some(refusal) if nothing => {
                    let again = pause.map_or(PAUSE.0, |pause: Duration| PAUSE.1.min(pause * 2));
                    tracing::error!(
                        name: events::RECORD_FAILED,
                        waiting = self.unrecorded.waiting(),
                        reason = refusal.name(),
                        ?again,
                        "cannot record the ends of sessions yet: {refusal}"
                    );
                    tokio::time::sleep(again).await;
                    pause = Some(again);
                }
                _ => {
                    if pause.take().is_some() {
                        tracing::info!("ends of sessions are recorded again");
                    }
                }
            }
        }
    }

    /// Sends the recorder some ends. Returns those that were not recorded, and the reason.
    async fn record_all(
        &self,
        recording: &Recording,
        ends: Vec<(SessionId, Ended)>,
    ) -> (Vec<(SessionId, Ended)>, Option<Refusal>) {
        let mut refused = None;
        let mut left = Vec::new();
        // Send all requests, then wait without a limit, because resending would record ends twice. If
        // the recorder goes away, the wait ends.
        let mut asked = Vec::new();
        for (session, ended) in ends {
            let sent = self.what_ended(&session, ended).and_then(|end| match end {
                Some(end) => recording.send_end(&end).map(Some),
                None => Ok(None),
            });
            match sent {
                Ok(Some(sent)) => asked.push((session, ended, sent)),
                Ok(None) => {}
                Err(refusal) => {
                    left.push((session, ended));
                    refused = Some(refusal);
                }
            }
        }
        for (session, ended, sent) in asked {
            let kept = sent.verdict().await;
            if let Err(refusal) = kept.and_then(|()| self.set_recorded(&session, ended)) {
                left.push((session, ended));
                refused = Some(refusal);
            }
        }
        (left, refused)
    }

    /// The end to record; none if the session was removed from the table.
    fn what_ended(&self, session: &SessionId, ended: Ended) -> Result<Option<SessionEnd>, Refusal> {
        let Some(record) = self.session(session)? else {
            tracing::error!(%session, reason = ended.reason.name(),
            "cannot record the end of a session: it is gone from the table");
            return Ok(None);
        };
        let configuration = self.host.configuration.get();
        Ok(Some(SessionEnd {
            session: *session,
            user: record.user,
            service: configuration.checked.service_name(record.service),
            ended: ended.at,
            reason: ended.reason,
        }))
    }

    /// Notes that the log has the end, unless the session has ended once more since: that end is
    /// recorded next.
    fn set_recorded(&self, session: &SessionId, ended: Ended) -> Result<(), Refusal> {
        let record = self.session(session)?;
        let Some(mut record) = record.filter(|record| record.ended == Some(ended)) else {
            return Ok(());
        };
        record.ended = Some(Ended {
            recorded: true,
            ..ended
        });
        self.host
            .admission
            .update_session(session, &record)
            .map_err(kernel_failed)?;
        // Even if recording took long, the session is kept no longer than others.
        self.agenda.enter(ended.at + REMEMBERED + 1, *session);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(number: u8) -> (SessionId, Ended) {
        let ended = Ended {
            at: 1,
            reason: Refusal::Expired,
            recorded: false,
        };
        (SessionId::from_bytes([number; 16]), ended)
    }

    fn ends(numbers: std::ops::Range<u8>) -> Unrecorded {
        let ends = Unrecorded::default();
        for number in numbers {
            let (session, ended) = end(number);
            ends.enter(session, ended);
        }
        ends
    }

    #[tokio::test]
    async fn what_could_not_be_recorded_waits_on_behind_the_others() {
        let ends = ends(0..3);
        let first = ends.first().await;
        assert_eq!(first, [end(0), end(1), end(2)]);
        let (session, ended) = end(3);
        ends.enter(session, ended);
        assert_eq!(ends.waiting(), 4);
        ends.settle(3, first[1..].to_vec());
        assert_eq!(ends.waiting(), 3);
        assert_eq!(ends.first().await, [end(3), end(1), end(2)]);
    }

    #[tokio::test]
    async fn so_many_are_recorded_together() {
        let ends = ends(0..255);
        for number in [255, 0] {
            let (session, ended) = end(number);
            ends.enter(session, ended);
        }
        assert_eq!(ends.first().await.len(), TOGETHER);
        ends.settle(TOGETHER, Vec::new());
        assert_eq!(ends.first().await, [end(0)]);
    }
}
