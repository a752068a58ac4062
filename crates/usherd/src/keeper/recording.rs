//! No session without a record: the recorder keeps what a client has signed, and says what that is,
//! before the session is opened.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::timeout;
use usher_local::paths;
use usher_proto::opening::Opening;
use usher_proto::recorder::{MAX_RECORDER_PACKET, RecorderReply, RecorderRequest};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

use crate::link::Link;

/// Sessions that may be about to be opened at one time; more are refused with
/// [`Refusal::Overloaded`].
const OPENING: usize = 4096;
/// How long the disk may take over a record.
const KEEPING: Duration = Duration::from_secs(10);
/// How long a session waits for a recorder that is being restarted, and how often it looks.
const RESTART: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The way to the recorder.
pub struct Recording {
    recorder: Link<Box<Opening>>,
    /// Sessions whose records are being kept.
    opening: Mutex<HashSet<SessionId>>,
}

/// A session that is being opened, once at one time.
pub struct Place<'r> {
    recording: &'r Recording,
    session: SessionId,
}

impl Recording {
    /// Not connected yet.
    pub fn new() -> Self {
        Self {
            recorder: Link::new(Refusal::RecorderUnavailable),
            opening: Mutex::default(),
        }
    }

    /// Whether the recorder is there.
    pub fn is_connected(&self) -> bool {
        self.recorder.is_connected()
    }

    /// A place for a session that is to be opened.
    ///
    /// # Errors
    /// [`Refusal::Replayed`] when it is being opened already, [`Refusal::Overloaded`].
    pub fn place(&self, session: SessionId) -> Result<Place<'_>, Refusal> {
        let mut opening = self.opening();
        if opening.contains(&session) {
            return Err(Refusal::Replayed);
        }
        if opening.len() >= OPENING {
            return Err(Refusal::Overloaded);
        }
        opening.insert(session);
        Ok(Place {
            recording: self,
            session,
        })
    }

    /// Has a record kept. Gives what it says, by the recorder's word, who has checked the signature.
    ///
    /// # Errors
    /// The recorder's refusal, [`Refusal::RecorderUnavailable`], [`Refusal::Overloaded`].
    pub async fn keep(&self, record: &[u8]) -> Result<Box<Opening>, Refusal> {
        let begun = Instant::now();
        loop {
            let sent = self.recorder.send(|request| {
                let record = record.to_vec();
                RecorderRequest { request, record }.encode()
            });
            let kept = match sent {
                Ok(sent) => timeout(KEEPING, sent.verdict())
                    .await
                    .unwrap_or(Err(Refusal::RecorderUnavailable)),
                Err(refusal) => Err(refusal),
            };
            // One that has just died is back soon, and may get a record twice.
            let again = matches!(kept, Err(Refusal::RecorderUnavailable)) && !self.is_connected();
            if !again || begun.elapsed() > RESTART {
                return kept;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Listens to the recorder, for ever.
    pub async fn hear(&self) {
        let heard = |bytes: &[u8]| {
            let RecorderReply { request, verdict } =
                RecorderReply::decode(bytes).map_err(std::io::Error::other)?;
            self.recorder.settle(request, verdict);
            Ok(())
        };
        self.recorder
            .keep_up("recorder", paths::RECORDER, MAX_RECORDER_PACKET, heard)
            .await;
    }

    fn opening(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.recording.opening().remove(&self.session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_opened_once_at_one_time_and_so_many_are() {
        let recording = Recording::new();
        let session = |number: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            SessionId::from_bytes(bytes)
        };
        let mut places: Vec<_> = (0..OPENING as u64)
            .map(|number| recording.place(session(number)).unwrap())
            .collect();
        let refusal = |number| recording.place(session(number)).err();
        assert_eq!(refusal(7), Some(Refusal::Replayed));
        assert_eq!(refusal(OPENING as u64), Some(Refusal::Overloaded));
        places.pop();
        assert_eq!(refusal(OPENING as u64), None);
    }
}
