//! Notices to the verifier, which passes them on to client hosts.

use parking_lot::Mutex;
use tokio::sync::mpsc;
use usher_base::HostName;
use usher_proto::keeper_record::{KEEPER_RECORD_SIZE, KeeperReply};
use usher_proto::session_request::Notice;

/// The queue of replies and notices for the verifier.
pub type Replies = mpsc::Sender<[u8; KEEPER_RECORD_SIZE]>;

/// The way to the verifier that connected last.
#[derive(Default)]
pub struct Notices(Mutex<Option<Replies>>);

impl Notices {
    /// Sends notices to another verifier from now on.
    pub fn send_to(&self, verifier: Replies) {
        *self.0.lock() = Some(verifier);
    }

    /// Sends the verifier a notice for this host. Returns whether it was accepted. Does not wait.
    pub fn send(&self, host: HostName, notice: Notice) -> bool {
        let record = KeeperReply::Notice { host, notice }.encode();
        let verifier = self.0.lock();
        verifier
            .as_ref()
            .is_some_and(|verifier| verifier.try_send(record).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use usher_proto::refusal::Refusal;
    use usher_proto::session_id::SessionId;

    use super::*;

    #[test]
    fn notices_go_to_the_last_verifier_while_it_has_room() {
        let notices = Notices::default();
        let notice = Notice::SessionEnded {
            session: SessionId::from_bytes([1; 16]),
            reason: Refusal::Expired,
        };
        let send = || notices.send("laptop".parse().unwrap(), notice);
        assert!(!send());
        let (former, mut of_former) = mpsc::channel(1);
        notices.send_to(former);
        let (present, mut of_present) = mpsc::channel(1);
        notices.send_to(present);
        assert!(send());
        assert!(!send());
        assert!(of_present.try_recv().is_ok());
        assert!(send());
        assert!(of_former.try_recv().is_err());
        drop(of_present);
        assert!(!send());
    }
}
