//! The structures of bpf/include/usher_shared.h, and their translation.

use std::net::IpAddr;
use std::time::Duration;

use usher_proto::certificate::MAX_PRINCIPALS_SIZE;
use usher_proto::{
    Certified, ChainTip, ConnectionTuple, HostName, Refusal, SessionId, UserName, address_bytes,
};

use super::types::{AdmissionRow, AdmissionState, Counters, Ended, SessionRecord};
use crate::KernelError;

pub(super) const VERSION: u32 = 8;

const STATE_BITS: u32 = 8;
const ANNOUNCED: u64 = 1;
const SYN_RECEIVED: u64 = 2;
const ESTABLISHED: u64 = 3;
const WITHDRAWN: u64 = 4;
const REMOVED: u64 = 5;

/// A structure that is the same bytes on both sides.
///
/// # Safety
/// Implementors are `repr(C)`, have no padding and take every bit pattern.
pub(crate) unsafe trait Plain: Copy {
    /// The structure as the kernel reads it.
    fn bytes(&self) -> &[u8] {
        // SAFETY: a live reference to initialised memory without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

macro_rules! plain {
    ($name:ident, $size:literal) => {
        const _: () = assert!(size_of::<$name>() == $size);
        // SAFETY: repr(C), integers and arrays of integers only; the size is the sum of the fields'
        // sizes, so there is no padding.
        unsafe impl $crate::admission::layout::Plain for $name {}
    };
}

pub(crate) use plain;

// SAFETY: an integer.
unsafe impl Plain for u8 {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: bytes.
unsafe impl<const N: usize> Plain for [u8; N] {}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Target {
    pub service: u32,
    pub uid: u32,
}
plain!(Target, 8);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Entry {
    pub mark: u64,
    pub expires_ns: u64,
    pub established_ns: u64,
    pub target: Target,
    pub session: [u8; 16],
    /// The SYN that it is for; 0: none has come.
    pub syn: u64,
    pub by_token: u32,
    pub reserved: u32,
}
plain!(Entry, 64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(super) struct ClientAddress {
    pub host: u64,
    pub address: [u8; 16],
}
plain!(ClientAddress, 24);

impl ClientAddress {
    pub(super) fn new(host: u64, address: IpAddr) -> Self {
        Self {
            host,
            address: address_bytes(address),
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Session {
    uid: u32,
    service: u32,
    chain_position: u32,
    chain_length: u32,
    opened: u64,
    expires: u64,
    chain_value: [u8; 16],
    chain_salt: [u8; 16],
    key_fingerprint: [u8; 32],
    user: [u8; 32],
    host: [u8; 64],
    ended: u64,
    reason: u16,
    end_recorded: u8,
    reserved: u8,
    token_anchor: [u8; 11],
    certified: u8,
    host_number: u64,
}
plain!(Session, 224);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Certificate {
    authority: [u8; 32],
    authority_sha1: [u8; 20],
    key_sha1: [u8; 20],
    key_id: [u8; 32],
    serial: u64,
    valid_before: u64,
    principals: [u8; 512],
}
plain!(Certificate, 632);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Tokens {
    /// The kernel's: never written, read as 0.
    pub lock: u32,
    pub tip: u32,
    pub service: u32,
    pub uid: u32,
    /// 0: closed.
    pub length: u32,
    pub reserved: u32,
    pub window: [u64; 2],
    pub host: u64,
    /// Of a closed one: when the slot may be opened again.
    pub expires_ns: u64,
    pub value: [u8; 16],
    pub salt: [u8; 16],
    pub key: [u8; 16],
    pub session: [u8; 16],
}
plain!(Tokens, 120);

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Tally {
    admitted: u64,
    refused_unannounced: u64,
    refused_late: u64,
    refused_state: u64,
    refused_no_listener: u64,
    established: u64,
    closed: u64,
    untracked: u64,
    token_accepted: u64,
    token_repeated: u64,
    token_unknown: u64,
    token_other_service: u64,
    token_expired: u64,
    token_foreign: u64,
    token_out_of_range: u64,
    token_replayed: u64,
    token_mismatch: u64,
    token_table_full: u64,
    token_withdrawn: u64,
    token_other_address: u64,
    token_overloaded: u64,
    token_other_syn: u64,
    refused_unread: u64,
    token_replaced: u64,
}
plain!(Tally, 192);

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Layout {
    pub version: u32,
    pub reserved: u32,
}
plain!(Layout, 8);

#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum RemovalReason {
    Withdraw = 1,
    Expire = 2,
    Forget = 3,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Removal {
    pub connection: [u8; 36],
    pub reason: u32,
    pub session: [u8; 16],
}
plain!(Removal, 56);

/// The mark of a fresh announcement with this number.
pub(super) fn announced_mark(number: u64) -> u64 {
    number << STATE_BITS | ANNOUNCED
}

impl Entry {
    /// None for an entry that is just being deleted.
    pub(super) fn row(
        &self,
        key: &[u8; 36],
        now: u64,
    ) -> Result<Option<AdmissionRow>, KernelError> {
        const UNREADABLE: KernelError = KernelError::UnreadableEntry {
            table: "admissions",
        };
        let state = match self.mark & ((1 << STATE_BITS) - 1) {
            ANNOUNCED => AdmissionState::Announced,
            SYN_RECEIVED => AdmissionState::SynReceived,
            ESTABLISHED => AdmissionState::Established,
            WITHDRAWN => AdmissionState::Withdrawn,
            REMOVED => return Ok(None),
            _ => return Err(UNREADABLE),
        };
        Ok(Some(AdmissionRow {
            connection: ConnectionTuple::decode(key).map_err(|_| UNREADABLE)?,
            session: SessionId::from_bytes(self.session),
            service: self.target.service,
            uid: self.target.uid,
            state,
            by_token: self.by_token != 0,
            established: (state == AdmissionState::Established)
                .then(|| Duration::from_nanos(now.saturating_sub(self.established_ns))),
        }))
    }
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    // Names are validated to be shorter; a longer one is cut and then refused when read.
    let length = text.len().min(N);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

fn unpadded(bytes: &[u8]) -> Option<&str> {
    let length = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..length]).ok()
}

const _: () = assert!(UserName::MAXIMUM_LENGTH <= 32 && HostName::MAXIMUM_LENGTH <= 64);

impl From<&SessionRecord> for Session {
    fn from(record: &SessionRecord) -> Self {
        Self {
            uid: record.uid,
            service: record.service,
            chain_position: record.tip.position,
            chain_length: record.chain_length,
            opened: record.opened,
            expires: record.expires,
            chain_value: record.tip.value,
            chain_salt: record.chain_salt,
            key_fingerprint: record.key_fingerprint,
            user: padded(record.user.as_str()),
            host: padded(record.host.as_str()),
            ended: record.ended.map_or(0, |ended| ended.at),
            reason: record.ended.map_or(0, |ended| ended.reason.code()),
            end_recorded: record.ended.is_some_and(|ended| ended.recorded).into(),
            reserved: 0,
            token_anchor: record.token_anchor,
            certified: record.certified.into(),
            host_number: record.host_number,
        }
    }
}

impl TryFrom<&Session> for SessionRecord {
    type Error = KernelError;

    fn try_from(session: &Session) -> Result<Self, KernelError> {
        const UNREADABLE: KernelError = KernelError::UnreadableEntry { table: "sessions" };
        let user = unpadded(&session.user).ok_or(UNREADABLE)?;
        let host = unpadded(&session.host).ok_or(UNREADABLE)?;
        let ended = match session.ended {
            0 => None,
            at => Some(Ended {
                at,
                reason: Refusal::from_code(session.reason).ok_or(UNREADABLE)?,
                recorded: session.end_recorded != 0,
            }),
        };
        Ok(Self {
            uid: session.uid,
            service: session.service,
            user: UserName::new(user).map_err(|_| UNREADABLE)?,
            host: HostName::new(host).map_err(|_| UNREADABLE)?,
            tip: ChainTip {
                position: session.chain_position,
                value: session.chain_value,
            },
            chain_length: session.chain_length,
            chain_salt: session.chain_salt,
            token_anchor: session.token_anchor,
            key_fingerprint: session.key_fingerprint,
            certified: session.certified != 0,
            host_number: session.host_number,
            opened: session.opened,
            expires: session.expires,
            ended,
        })
    }
}

const _: () = assert!(MAX_PRINCIPALS_SIZE < 512);

impl From<&Certified> for Certificate {
    fn from(certificate: &Certified) -> Self {
        Self {
            authority: certificate.authority,
            authority_sha1: certificate.authority_sha1,
            key_sha1: certificate.key_sha1,
            key_id: certificate.key_id,
            serial: certificate.serial,
            valid_before: certificate.valid_before,
            principals: padded(certificate.principals.as_str()),
        }
    }
}

impl TryFrom<&Certificate> for Certified {
    type Error = KernelError;

    fn try_from(stored: &Certificate) -> Result<Self, KernelError> {
        let principals = unpadded(&stored.principals).and_then(|text| text.parse().ok());
        Ok(Self {
            authority: stored.authority,
            authority_sha1: stored.authority_sha1,
            key_sha1: stored.key_sha1,
            key_id: stored.key_id,
            serial: stored.serial,
            valid_before: stored.valid_before,
            principals: principals.ok_or(KernelError::UnreadableEntry {
                table: "certificates",
            })?,
        })
    }
}

impl From<&[Tally]> for Counters {
    fn from(per_cpu: &[Tally]) -> Self {
        let mut sum = Self::default();
        for tally in per_cpu {
            sum.admitted += tally.admitted;
            sum.refused_unannounced += tally.refused_unannounced;
            sum.refused_late += tally.refused_late;
            sum.refused_state += tally.refused_state;
            sum.refused_no_listener += tally.refused_no_listener;
            sum.established += tally.established;
            sum.closed += tally.closed;
            sum.untracked += tally.untracked;
            sum.token_accepted += tally.token_accepted;
            sum.token_repeated += tally.token_repeated;
            sum.token_unknown += tally.token_unknown;
            sum.token_other_service += tally.token_other_service;
            sum.token_expired += tally.token_expired;
            sum.token_foreign += tally.token_foreign;
            sum.token_out_of_range += tally.token_out_of_range;
            sum.token_replayed += tally.token_replayed;
            sum.token_mismatch += tally.token_mismatch;
            sum.token_table_full += tally.token_table_full;
            sum.token_withdrawn += tally.token_withdrawn;
            sum.token_other_address += tally.token_other_address;
            sum.token_overloaded += tally.token_overloaded;
            sum.token_other_syn += tally.token_other_syn;
            sum.refused_unread += tally.refused_unread;
            sum.token_replaced += tally.token_replaced;
        }
        sum
    }
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
            token_anchor: [4; 11],
            key_fingerprint: [6; 32],
            certified: false,
            host_number: u64::MAX - 1,
            opened: 1,
            expires: 2,
            ended: None,
        }
    }

    fn there_and_back(record: &SessionRecord) -> SessionRecord {
        SessionRecord::try_from(&Session::from(record)).unwrap()
    }

    #[test]
    fn a_session_comes_back_as_it_went() {
        let live = record();
        assert_eq!(there_and_back(&live), live);
        for recorded in [false, true] {
            let ended = SessionRecord {
                ended: Some(Ended {
                    at: 5,
                    reason: Refusal::DisabledUser,
                    recorded,
                }),
                certified: true,
                ..live.clone()
            };
            assert_eq!(there_and_back(&ended), ended);
        }
    }

    #[test]
    fn the_header_has_the_version() {
        let header = include_str!("../../../../bpf/include/usher_shared.h");
        let version = format!("#define USHER_LAYOUT_VERSION {VERSION}\n");
        assert!(header.contains(&version), "{version}");
    }

    #[test]
    fn the_longest_names_fit() {
        let longest = SessionRecord {
            user: "u".repeat(UserName::MAXIMUM_LENGTH).parse().unwrap(),
            host: "h".repeat(HostName::MAXIMUM_LENGTH).parse().unwrap(),
            ..record()
        };
        assert_eq!(there_and_back(&longest), longest);
    }

    #[test]
    fn a_certificate_comes_back_as_it_went() {
        for principals in ["", "alice", &"p".repeat(MAX_PRINCIPALS_SIZE)] {
            let certificate = Certified {
                authority: [1; 32],
                authority_sha1: [2; 20],
                key_sha1: [3; 20],
                serial: 4,
                key_id: [5; 32],
                valid_before: 6,
                principals: principals.parse().unwrap(),
            };
            let back = Certified::try_from(&Certificate::from(&certificate)).unwrap();
            assert_eq!(back, certificate);
        }
    }

    #[test]
    fn what_was_never_written_cannot_be_read() {
        let mut session = Session::from(&record());
        session.user = [0; 32];
        SessionRecord::try_from(&session).unwrap_err();
        let mut session = Session::from(&record());
        session.ended = 1;
        session.reason = u16::MAX;
        SessionRecord::try_from(&session).unwrap_err();
    }
}
