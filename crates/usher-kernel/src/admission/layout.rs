//! The structures of `bpf/include/usher_shared.h`, byte by byte. Written by hand rather than
//! transmuted: the compiler cannot know what a map holds.

use std::time::Duration;

use usher_proto::chain::ChainTip;
use usher_proto::connection::ConnectionTuple;
use usher_proto::name::{HostName, UserName};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;

/// Size of `struct usher_admission`.
pub(super) const ADMISSION: usize = 48;
/// Size of `struct usher_session`.
pub(super) const SESSION: usize = 176;
/// Size of `struct usher_step`.
pub(super) const STEP: usize = 56;

/// Where an announced connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionState {
    /// A SYN may come until the deadline.
    Announced,
    /// The handshake is under way.
    SynReceived,
    /// Likewise, and no further SYN may come.
    Withdrawn,
    /// Lives.
    Established,
}

impl AdmissionState {
    fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Announced),
            2 => Some(Self::SynReceived),
            3 => Some(Self::Withdrawn),
            4 => Some(Self::Established),
            _ => None,
        }
    }
}

/// One entry of the admission table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRow {
    /// The connection.
    pub connection: ConnectionTuple,
    /// The session that announced it.
    pub session: SessionId,
    /// Service id.
    pub service: u32,
    /// The user it belongs to.
    pub uid: u32,
    /// Where it is.
    pub state: AdmissionState,
    /// How long it has been established.
    pub established: Option<Duration>,
}

/// What to announce.
#[derive(Debug, Clone, Copy)]
pub struct Announced {
    /// The announcing session.
    pub session: SessionId,
    /// Service id.
    pub service: u32,
    /// The user it will belong to.
    pub uid: u32,
    /// How long its SYN may take.
    pub lifetime: Duration,
}

/// A session as the table keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Local account.
    pub uid: u32,
    /// Service id.
    pub service: u32,
    /// Remote user.
    pub user: UserName,
    /// Client host.
    pub host: HostName,
    /// Last accepted chain element.
    pub tip: ChainTip,
    /// Length of the chain.
    pub chain_length: u32,
    /// Salt of the chain.
    pub chain_salt: [u8; 16],
    /// Seconds since 1970.
    pub opened: u64,
    /// Seconds since 1970.
    pub expires: u64,
    /// When and why it ended; kept a while so that a replayed authenticator meets it.
    pub ended: Option<Ended>,
}

/// The end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Seconds since 1970.
    pub at: u64,
    /// Why.
    pub reason: Refusal,
}

/// CLOCK_MONOTONIC as BPF's bpf_ktime_get_ns gives it.
pub(super) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The monotonic clock starts at zero with the machine and is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

pub(super) fn queue(service: u32, uid: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&service.to_ne_bytes());
    bytes[4..].copy_from_slice(&uid.to_ne_bytes());
    bytes
}

pub(super) fn encode_announced(announced: &Announced, now: u64) -> [u8; ADMISSION] {
    let lifetime = u64::try_from(announced.lifetime.as_nanos()).unwrap_or(u64::MAX);
    let mut bytes = [0; ADMISSION];
    bytes[..16].copy_from_slice(announced.session.as_bytes());
    bytes[16..24].copy_from_slice(&queue(announced.service, announced.uid));
    bytes[24..28].copy_from_slice(&1_u32.to_ne_bytes());
    bytes[32..40].copy_from_slice(&now.saturating_add(lifetime).to_ne_bytes());
    bytes
}

/// `None` for an entry that is about to be deleted, or of a layout that is not ours.
pub(super) fn decode_admission(key: &[u8], value: &[u8], now: u64) -> Option<AdmissionRow> {
    let connection = ConnectionTuple::decode(key.try_into().ok()?).ok()?;
    let state = AdmissionState::from_number(u32_at(value, 24)?)?;
    let established = u64_at(value, 40)?;
    Some(AdmissionRow {
        connection,
        session: SessionId::from_bytes(value.get(..16)?.try_into().ok()?),
        service: u32_at(value, 16)?,
        uid: u32_at(value, 20)?,
        state,
        established: (state == AdmissionState::Established)
            .then(|| Duration::from_nanos(now.saturating_sub(established))),
    })
}

pub(super) fn encode_session(record: &SessionRecord) -> [u8; SESSION] {
    let mut bytes = [0; SESSION];
    bytes[..4].copy_from_slice(&record.uid.to_ne_bytes());
    bytes[4..8].copy_from_slice(&record.service.to_ne_bytes());
    text(&mut bytes[8..40], record.user.as_ref());
    text(&mut bytes[40..104], record.host.as_ref());
    bytes[104..120].copy_from_slice(&record.tip.value);
    bytes[120..124].copy_from_slice(&record.tip.position.to_ne_bytes());
    bytes[124..128].copy_from_slice(&record.chain_length.to_ne_bytes());
    bytes[128..144].copy_from_slice(&record.chain_salt);
    bytes[144..152].copy_from_slice(&record.opened.to_ne_bytes());
    bytes[152..160].copy_from_slice(&record.expires.to_ne_bytes());
    if let Some(ended) = record.ended {
        bytes[160..168].copy_from_slice(&ended.at.to_ne_bytes());
        bytes[168..172].copy_from_slice(&u32::from(ended.reason.code()).to_ne_bytes());
    }
    bytes
}

/// `None` for a record of a layout that is not ours.
pub(super) fn decode_session(value: &[u8]) -> Option<SessionRecord> {
    let ended_at = u64_at(value, 160)?;
    let ended = match ended_at {
        0 => None,
        at => Some(Ended {
            at,
            reason: Refusal::from_code(u16::try_from(u32_at(value, 168)?).ok()?)?,
        }),
    };
    Some(SessionRecord {
        uid: u32_at(value, 0)?,
        service: u32_at(value, 4)?,
        user: text_at(value.get(8..40)?)?.parse().ok()?,
        host: text_at(value.get(40..104)?)?.parse().ok()?,
        tip: ChainTip {
            value: value.get(104..120)?.try_into().ok()?,
            position: u32_at(value, 120)?,
        },
        chain_length: u32_at(value, 124)?,
        chain_salt: value.get(128..144)?.try_into().ok()?,
        opened: u64_at(value, 144)?,
        expires: u64_at(value, 152)?,
        ended,
    })
}

/// Steps of the table's entries that user space may take.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Withdraw = 1,
    Expire = 2,
    Forget = 3,
}

pub(super) fn encode_step(
    connection: &ConnectionTuple,
    session: Option<&SessionId>,
    step: Step,
) -> [u8; STEP] {
    let mut bytes = [0; STEP];
    bytes[..36].copy_from_slice(&connection.encode());
    if let Some(session) = session {
        bytes[36..52].copy_from_slice(session.as_bytes());
    }
    bytes[52..56].copy_from_slice(&(step as u32).to_ne_bytes());
    bytes
}

fn text(to: &mut [u8], text: &str) {
    // Names are shorter than their fields: see usher_proto::name.
    to[..text.len()].copy_from_slice(text.as_bytes());
}

fn text_at(bytes: &[u8]) -> Option<&str> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        bytes.get(place..place + 4)?.try_into().ok()?,
    ))
}

fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(
        bytes.get(place..place + 8)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SessionRecord {
        SessionRecord {
            uid: 1000,
            service: 7,
            user: "alice".parse().unwrap(),
            host: "laptop".parse().unwrap(),
            tip: ChainTip {
                position: 3,
                value: [9; 16],
            },
            chain_length: 1024,
            chain_salt: [5; 16],
            opened: 1,
            expires: 2,
            ended: None,
        }
    }

    #[test]
    fn a_session_comes_back_as_it_went() {
        let live = record();
        assert_eq!(decode_session(&encode_session(&live)), Some(live.clone()));
        let ended = SessionRecord {
            ended: Some(Ended {
                at: 5,
                reason: Refusal::DisabledUser,
            }),
            ..live
        };
        assert_eq!(decode_session(&encode_session(&ended)), Some(ended));
    }

    #[test]
    fn the_longest_names_fit() {
        let longest = SessionRecord {
            user: "u".repeat(32).parse().unwrap(),
            host: "h".repeat(63).parse().unwrap(),
            ..record()
        };
        assert_eq!(decode_session(&encode_session(&longest)), Some(longest));
    }

    #[test]
    fn a_short_record_is_none() {
        assert_eq!(
            decode_session(&encode_session(&record())[..SESSION - 20]),
            None
        );
    }
}
