//! Has all sessions recorded. Before a session is opened, the recorder keeps the statement that the client
//! has signed, if this matches the verifier's claim. The recorder also keeps the end of each session.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::timeout;
use usher_base::HostName;
use usher_local::paths;
use usher_proto::opening::Authentication;
use usher_proto::recorder::{Keep, RECORDER_REPLY_SIZE, RecorderReply};
use usher_proto::refusal::Refusal;
use usher_proto::session_end::SessionEnd;
use usher_proto::session_id::SessionId;

use crate::link::{Link, Pending};

/// Limits of sessions being opened at the same time, in total and for one host; further ones are
/// refused with [`Refusal::Overloaded`].
const OPENING: usize = 1024;
const OPENING_OF_HOST: usize = 512;
/// Time limit for the disk to keep a record.
const KEEPING: Duration = Duration::from_secs(8);
/// The time that a session waits for a recorder being restarted, and the interval of its checks.
const RESTART: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The connection to the recorder.
pub struct Recording {
    recorder: Link<()>,
    /// Sessions being opened, and the hosts that requested them.
    opening: Mutex<HashMap<SessionId, Permit>>,
}

/// The right to open one session, with the host that requested it. Ends when the caller drops it.
pub type Permit = Arc<HostName>;

impl Recording {
    /// Not connected yet.
    pub fn new() -> Self {
        Self {
            recorder: Link::new(Refusal::RecorderUnavailable),
            opening: Mutex::default(),
        }
    }

    /// Whether the recorder is connected.
    pub fn is_connected(&self) -> bool {
        self.recorder.is_connected()
    }

    /// A permit to open a session of a host.
    ///
    /// # Errors
    /// [`Refusal::Replayed`] when this session is already being opened, [`Refusal::Overloaded`].
    pub fn permit(&self, session: SessionId, host: &HostName) -> Result<Permit, Refusal> {
        let mut opening = self.opening.lock();
        opening.retain(|_, permit| Arc::strong_count(permit) > 1);
        if opening.contains_key(&session) {
            return Err(Refusal::Replayed);
        }
        let of_host = opening.values().filter(|other| ***other == *host).count();
        if opening.len() >= OPENING || of_host >= OPENING_OF_HOST {
            return Err(Refusal::Overloaded);
        }
        let permit = Arc::new(host.clone());
        opening.insert(session, Arc::clone(&permit));
        Ok(permit)
    }

    /// Asks the recorder to keep a record. The recorder checks that the signed statement matches the
    /// verifier's claim, and checks the signature; the keeper relies on both.
    ///
    /// # Errors
    /// The recorder's refusal, [`Refusal::RecorderUnavailable`], [`Refusal::Overloaded`].
    pub async fn keep(&self, authentication: &Authentication) -> Result<(), Refusal> {
        let keep = Keep::Authentication(Box::new(authentication.clone()));
        let begun = Instant::now();
        loop {
            let sent = self.recorder.send(|request| keep.packet(request));
            let kept = match sent {
                Ok(sent) => timeout(KEEPING, sent.verdict())
                    .await
                    .unwrap_or(Err(Refusal::RecorderUnavailable)),
                Err(refusal) => Err(refusal),
            };
            // A recorder that has just died is back soon. It may then get a record twice.
            let again = matches!(kept, Err(Refusal::RecorderUnavailable)) && !self.is_connected();
            if !again || begun.elapsed() > RESTART {
                return kept;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Requests that the end of a session be kept.
    ///
    /// # Errors
    /// [`Refusal::RecorderUnavailable`], [`Refusal::Overloaded`].
    pub fn send_end(&self, end: &SessionEnd) -> Result<Pending<()>, Refusal> {
        let keep = Keep::End(end.clone());
        self.recorder.send(|request| keep.packet(request))
    }

    /// Reads the recorder's answers, for ever.
    pub async fn hear(&self) {
        let heard = |bytes: &[u8]| {
            let RecorderReply { request, verdict } =
                RecorderReply::decode(bytes).map_err(std::io::Error::other)?;
            self.recorder.settle(request, verdict);
            Ok(())
        };
        self.recorder
            .keep_up("recorder", paths::RECORDER, RECORDER_REPLY_SIZE, heard)
            .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_opened_once_and_openings_have_limits() {
        let recording = Recording::new();
        let permit = |number: u64, host: &str| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            recording.permit(SessionId::from_bytes(bytes), &host.parse().unwrap())
        };
        let half = OPENING_OF_HOST as u64;
        let mut permits: Vec<_> = (0..half)
            .map(|number| permit(number, "one").unwrap())
            .collect();
        let refusal = |number, host| permit(number, host).err();
        assert_eq!(refusal(7, "other"), Some(Refusal::Replayed));
        assert_eq!(refusal(half, "one"), Some(Refusal::Overloaded));
        let others = half..OPENING as u64;
        permits.extend(others.map(|number| permit(number, "other").unwrap()));
        assert_eq!(refusal(OPENING as u64, "third"), Some(Refusal::Overloaded));
        permits.pop();
        assert_eq!(refusal(OPENING as u64, "third"), None);
    }
}
