//! Translates table entries.

use std::net::IpAddr;
use std::time::Duration;

use usher_base::{ConnectionTuple, HostName, UserName, address_bytes};
use usher_proto::certificate::MAX_PRINCIPALS_SIZE;
use usher_proto::{Certified, ChainTip, Refusal, SessionId};

use super::types::{AdmissionRow, AdmissionState, Ended, SessionRecord};
use crate::KernelError;
use crate::shared::admission::{
    ANNOUNCED, Admission as Entry, Certificate, ClientAddress, ESTABLISHED, REMOVED, STATE_BITS,
    SYN_RECEIVED, Session, WITHDRAWN,
};

impl ClientAddress {
    pub(super) fn new(host: u64, address: IpAddr) -> Self {
        Self {
            host,
            address: address_bytes(address),
        }
    }
}

/// The mark of a fresh announcement with this number.
pub(super) fn announced_mark(number: u64) -> u64 {
    number << STATE_BITS | u64::from(ANNOUNCED)
}

impl Entry {
    /// None for an entry that is being deleted.
    pub(super) fn row(
        &self,
        key: &[u8; 36],
        now: u64,
    ) -> Result<Option<AdmissionRow>, KernelError> {
        const UNREADABLE: KernelError = KernelError::UnreadableEntry("admissions");
        let state = match (self.mark & ((1 << STATE_BITS) - 1)) as u32 {
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
    // Valid names are shorter; a longer one is cut and then refused when read.
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
        const UNREADABLE: KernelError = KernelError::UnreadableEntry("sessions");
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
            principals: principals.ok_or(KernelError::UnreadableEntry("certificates"))?,
        })
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
