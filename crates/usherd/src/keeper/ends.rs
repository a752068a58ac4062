//! Ends of sessions on their way into the signed log. A session ends at once and its record follows:
//! the table keeps an ended session until the log has its end, so neither a full disk nor the death of
//! a daemon loses one, and who waits is never more than the table holds.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use usher_kernel::admission::Ended;
use usher_proto::refusal::Refusal;
use usher_proto::session_end::SessionEnd;
use usher_proto::session_id::SessionId;

use super::records::kernel_failed;
use super::{Keeper, who};

/// Ends that are recorded together: authentications wait for the disk with them.
const TOGETHER: usize = 256;
/// How long the disk may take over them.
const KEEPING: Duration = Duration::from_secs(8);
/// How long they wait when they could not be recorded: longer each time, up to the second one.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// Sessions whose end the log does not have yet.
#[derive(Default)]
pub struct Ends {
    /// Oldest first. A session is here once for each time that it was closed or ended, twice at most.
    waiting: Mutex<VecDeque<SessionId>>,
    more: Notify,
}

impl Ends {
    /// The table says that a session has ended, and that the log does not know.
    pub fn enter(&self, session: SessionId) {
        self.lock().push_back(session);
        self.more.notify_one();
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().len()
    }

    /// The oldest of them, which wait on until [`Ends::settle`]: there is somebody to wait for.
    async fn first(&self) -> Vec<SessionId> {
        loop {
            let first: Vec<SessionId> = self.lock().iter().take(TOGETHER).copied().collect();
            if !first.is_empty() {
                return first;
            }
            self.more.notified().await;
        }
    }

    /// So many of the oldest have been tried, and these of them wait on.
    fn settle(&self, tried: usize, left: Vec<SessionId>) {
        let mut waiting = self.lock();
        waiting.drain(..tried);
        for session in left.into_iter().rev() {
            waiting.push_front(session);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<SessionId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the ends of sessions recorded, for ever.
pub async fn record(keeper: &Keeper) {
    let mut pause = None;
    loop {
        let first = keeper.ends.first().await;
        let tried = first.len();
        match record_all(keeper, first).await {
            Ok(()) => {
                keeper.ends.settle(tried, Vec::new());
                if pause.take().is_some() {
                    tracing::info!("ends of sessions are recorded again");
                }
            }
            Err((left, refusal)) => {
                keeper.ends.settle(tried, left);
                let again = pause.map_or(PAUSE.0, |pause: Duration| PAUSE.1.min(pause * 2));
                tracing::error!(
                    waiting = keeper.ends.waiting(),
                    reason = refusal.name(),
                    ?again,
                    "ends of sessions are not recorded yet: {refusal}"
                );
                tokio::time::sleep(again).await;
                pause = Some(again);
            }
        }
    }
}

/// Has some recorded.
///
/// # Errors
/// Those that were not, and why.
async fn record_all(
    keeper: &Keeper,
    sessions: Vec<SessionId>,
) -> Result<(), (Vec<SessionId>, Refusal)> {
    let until = Instant::now() + KEEPING;
    let mut asked = Vec::new();
    let mut left = Vec::new();
    let mut refused = None;
    for session in sessions {
        // Asked all together, and then waited for.
        let sent = unrecorded(keeper, &session).and_then(|found| {
            let Some((ended, end)) = found else {
                return Ok(None);
            };
            Ok(Some((ended, keeper.recording.send_end(&end)?)))
        });
        match sent {
            Ok(Some((ended, sent))) => asked.push((session, ended, sent)),
            // Recorded with another end of the same session.
            Ok(None) => {}
            Err(refusal) => {
                left.push(session);
                refused = Some(refusal);
            }
        }
    }
    let mut late = Vec::new();
    for (session, ended, sent) in asked {
        let verdict = timeout_at(until, sent.verdict()).await;
        let verdict = verdict.unwrap_or(Err(Refusal::RecorderUnavailable));
        if let Err(refusal) = verdict.and_then(|()| set_recorded(keeper, &session, ended)) {
            late.push(session);
            refused = Some(refusal);
        }
    }
    late.extend(left);
    match refused {
        Some(refusal) => Err((late, refusal)),
        None => Ok(()),
    }
}

/// How a session has ended, when the log does not have that yet.
fn unrecorded(
    keeper: &Keeper,
    session: &SessionId,
) -> Result<Option<(Ended, SessionEnd)>, Refusal> {
    let record = keeper.admission.session(session).map_err(kernel_failed)?;
    let Some((record, ended)) = record.and_then(|record| {
        let ended = record.ended.filter(|ended| !ended.recorded)?;
        Some((record, ended))
    }) else {
        return Ok(None);
    };
    let configuration = keeper.configuration();
    let end = SessionEnd {
        session: *session,
        user: record.user,
        service: who::service_name(&configuration.1, record.service),
        ended: ended.at,
        reason: ended.reason,
    };
    Ok(Some((ended, end)))
}

/// Notes that the log has it, unless the session has ended otherwise meanwhile: that is recorded, too.
fn set_recorded(keeper: &Keeper, session: &SessionId, ended: Ended) -> Result<(), Refusal> {
    let record = keeper.admission.session(session).map_err(kernel_failed)?;
    let Some(mut record) = record.filter(|record| record.ended == Some(ended)) else {
        return Ok(());
    };
    record.ended = Some(Ended {
        recorded: true,
        ..ended
    });
    let updated = keeper.admission.update_session(session, &record);
    updated.map_err(kernel_failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u8) -> SessionId {
        SessionId::from_bytes([number; 16])
    }

    #[tokio::test]
    async fn what_could_not_be_recorded_comes_first_again() {
        let ends = Ends::default();
        for number in 0..3 {
            ends.enter(session(number));
        }
        let first = ends.first().await;
        assert_eq!(first, [session(0), session(1), session(2)]);
        ends.enter(session(3));
        assert_eq!(ends.waiting(), 4);
        ends.settle(3, first[1..].to_vec());
        assert_eq!(ends.waiting(), 3);
        assert_eq!(ends.first().await, [session(1), session(2), session(3)]);
    }

    #[tokio::test]
    async fn so_many_are_recorded_together() {
        let ends = Ends::default();
        for _ in 0..=TOGETHER {
            ends.enter(session(1));
        }
        assert_eq!(ends.first().await.len(), TOGETHER);
        ends.settle(TOGETHER, Vec::new());
        assert_eq!(ends.first().await.len(), 1);
    }
}
