//! Records between the daemons of a host.

use crate::common::{NOW, SESSION, announcement, connection};
use crate::inputs::{Inputs, common_to_all, variations};
use usher_proto::{
    Certified, HostName, KeeperReply, KeeperRequest, RecorderReply, RecorderRequest, Refusal,
    TokenKey, TokenSlot,
};

pub fn keeper() -> Inputs {
    let mut inputs = common_to_all(1024);
    let open = |certificate| KeeperRequest::Open {
        request: 1,
        session: SESSION,
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        host: "laptop".parse().unwrap(),
        key_fingerprint: [3; 32],
        chain_anchor: [1; 16],
        token_anchor: [4; 11],
        chain_salt: [2; 16],
        chain_length: 1024,
        expires: NOW,
        certificate,
    };
    let certified = Certified {
        authority: [5; 32],
        authority_sha1: [6; 20],
        key_sha1: [7; 20],
        serial: 8,
        key_id: [9; 32],
        valid_before: NOW + 3600,
        principals: "alice,ops".parse().unwrap(),
    };
    inputs.extend(variations(
        "open-certified",
        open(Some(certified)).encode().to_vec(),
        &[
            ("neither", 243, 2),
            ("principals-huge", 364, 255),
            ("principals-short", 365, 8),
            ("principals-long", 365, 10),
            ("principal-empty", 366, b','),
            ("principal-control", 366, 7),
        ],
    ));
    inputs.extend(variations(
        "open",
        open(None).encode().to_vec(),
        &[
            ("version", 0, 1),
            ("type", 1, 77),
            ("user-padding", 58, 1),
            ("user-length", 26, 255),
            ("user-character", 27, b'/'),
            ("padding", 1023, 1),
        ],
    ));
    let request = 2;
    let session = SESSION;
    let connection = connection();
    let announcement = announcement();
    for (name, record) in [
        (
            "announce",
            KeeperRequest::Announce {
                request,
                session,
                host: "laptop".parse().unwrap(),
                announcement,
            },
        ),
        (
            "withdraw",
            KeeperRequest::Withdraw {
                request,
                session,
                host: "laptop".parse().unwrap(),
                connection,
            },
        ),
        (
            "close",
            KeeperRequest::Close {
                request,
                session,
                host: "laptop".parse().unwrap(),
            },
        ),
        (
            "tokens",
            KeeperRequest::Tokens {
                request,
                session,
                host: "laptop".parse().unwrap(),
                key: TokenKey::from_bytes([9; 16]),
            },
        ),
        (
            "reauthenticate",
            KeeperRequest::Reauthenticate {
                request,
                session,
                host: "laptop".parse().unwrap(),
                element: announcement.element,
            },
        ),
    ] {
        inputs.extend(variations(
            name,
            record.encode().to_vec(),
            &[("padding", 255, 1)],
        ));
    }
    let host: HostName = "laptop".parse().unwrap();
    let reason = Refusal::SessionEnded;
    for (name, record) in [
        (
            "granted",
            KeeperReply::Verdict {
                request,
                verdict: Ok(()),
            },
        ),
        (
            "refused",
            KeeperReply::Verdict {
                request,
                verdict: Err(Refusal::UnknownUser),
            },
        ),
        (
            "session-ended",
            KeeperReply::SessionEnded {
                session,
                host: host.clone(),
                reason,
            },
        ),
        (
            "slot",
            KeeperReply::Slot {
                request,
                slot: TokenSlot::new(0x00ab_cdef).unwrap(),
            },
        ),
        (
            "reauthenticate-wanted",
            KeeperReply::Reauthenticate { session, host },
        ),
    ] {
        inputs.extend(variations(
            name,
            record.encode().to_vec(),
            &[("padding", 255, 1)],
        ));
    }
    inputs
}

pub fn recorder() -> Inputs {
    let mut inputs = common_to_all(16_398);
    let keep = RecorderRequest {
        request: 7,
        record: b"a record".to_vec(),
    };
    // Offsets: version, type, 8 request, then the record's length.
    inputs.extend(variations(
        "keep",
        keep.encode(),
        &[
            ("version", 0, 2),
            ("type", 1, 77),
            ("length-huge", 10, 0xff),
        ],
    ));
    for (name, verdict) in [
        ("kept", Ok(())),
        ("not-kept", Err(Refusal::RecorderUnavailable)),
    ] {
        let reply = RecorderReply {
            request: 7,
            verdict,
        };
        inputs.extend(variations(name, reply.encode(), &[("code", 10, 0xff)]));
    }
    inputs
}
