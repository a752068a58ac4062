//! Records between the daemons of a host.

use crate::common::{NOW, SESSION, announcement, connection, statement};
use crate::inputs::{Inputs, common_to_all, variations};
use usher_proto::{
    Authentication, Certified, KEEPER_RECORD_SIZE, Keep, KeeperBody, KeeperReply, KeeperRequest,
    MAX_KEEPER_REQUEST, Notice, Opening, ProgramEnd, RecorderReply, RecorderRequest, Refusal,
    SessionEnd, SessionId, SessionRequest, TokenKey, TokenSlot,
};

fn authentication(certificate: Option<Certified>) -> Box<Authentication> {
    Box::new(Authentication {
        opening: Opening {
            statement: statement(),
            key_fingerprint: [3; 32],
            certificate,
        },
        record: b"a record".to_vec(),
    })
}

fn certified() -> Certified {
    Certified {
        authority: [5; 32],
        authority_sha1: [6; 20],
        key_sha1: [7; 20],
        serial: 8,
        key_id: [9; 32],
        valid_before: NOW + 3600,
        principals: "alice,ops".parse().unwrap(),
    }
}

pub fn keeper() -> Inputs {
    let mut inputs = common_to_all(MAX_KEEPER_REQUEST);
    let open = |certificate, first| KeeperRequest {
        request: 1,
        host: "laptop".parse().unwrap(),
        body: KeeperBody::Open {
            authentication: authentication(certificate),
            first,
        },
    };
    // Offsets: docs/PROTOCOL.md. Here, whether there is a certificate, behind a first connection.
    let certificate = 75 + 56 + 4 + statement().encode().len() + 32;
    inputs.extend(variations(
        "open-certified",
        open(Some(certified()), Some(announcement())).encode(),
        &[
            ("neither", certificate, 2),
            ("principals-huge", certificate + 121, 255),
            ("principals-short", certificate + 122, 8),
            ("principals-long", certificate + 122, 10),
            ("principal-empty", certificate + 123, b','),
            ("principal-control", certificate + 123, 7),
        ],
    ));
    inputs.extend(variations(
        "open",
        open(None, None).encode(),
        &[
            ("version", 0, 1),
            ("type", 1, 77),
            ("host-padding", 73, 1),
            ("host-length", 10, 255),
            ("host-character", 11, b'/'),
            ("first-neither", 74, 2),
            ("statement-huge", 75, 1),
            ("statement-magic", 79, 0),
            ("padding", KEEPER_RECORD_SIZE - 1, 1),
            ("record-huge", KEEPER_RECORD_SIZE, 1),
        ],
    ));
    let request = 2;
    for (name, asked) in [
        ("announce", SessionRequest::Announce(announcement())),
        ("withdraw", SessionRequest::Withdraw(connection())),
        ("close", SessionRequest::Close),
        (
            "tokens",
            SessionRequest::Tokens(TokenKey::from_bytes([9; 16])),
        ),
        (
            "reauthenticate",
            SessionRequest::Reauthenticate(announcement().element),
        ),
    ] {
        let record = KeeperRequest {
            request,
            host: "laptop".parse().unwrap(),
            body: KeeperBody::Session(SESSION, asked),
        };
        inputs.extend(variations(
            name,
            record.encode().to_vec(),
            &[("padding", 255, 1)],
        ));
    }
    let answer = |verdict| KeeperReply::Answer { request, verdict };
    let notice = |notice| KeeperReply::Notice {
        host: "laptop".parse().unwrap(),
        notice,
    };
    let (session, reason) = (SESSION, Refusal::SessionEnded);
    for (name, record) in [
        ("granted", answer(Ok(None))),
        ("refused", answer(Err(Refusal::UnknownUser))),
        (
            "session-ended",
            notice(Notice::SessionEnded { session, reason }),
        ),
        ("slot", answer(Ok(TokenSlot::new(0x00ab_cdef)))),
        (
            "reauthenticate-wanted",
            notice(Notice::Reauthenticate { session }),
        ),
        (
            "program-ended",
            notice(Notice::ProgramEnded {
                session,
                client: connection().client,
                end: ProgramEnd {
                    by_signal: true,
                    number: 11,
                },
            }),
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
    let mut inputs = common_to_all(17_580);
    for (name, certificate) in [("keep", None), ("keep-certified", Some(certified()))] {
        let keep = RecorderRequest {
            request: 7,
            keep: Keep::Authentication(authentication(certificate)),
        };
        let keep = keep.encode();
        let record_at = keep.len() - 4 - b"a record".len();
        // Offsets: version, type, 8 request, then the length of the statement.
        inputs.extend(variations(
            name,
            keep,
            &[
                ("version", 0, 1),
                ("type", 1, 77),
                ("statement-huge", 10, 0xff),
                ("record-huge", record_at, 0xff),
            ],
        ));
    }
    let end = SessionEnd {
        session: SessionId::from_bytes([9; 16]),
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        ended: 1_800_000_000,
        reason: Refusal::DisabledUser,
    };
    let keep_end = Keep::End(end).packet(7);
    // After the header the length of the end, its magic and its version; at the end the reason.
    let reason_at = keep_end.len() - "disabled_user".len();
    inputs.extend(variations(
        "keep-end",
        keep_end,
        &[
            ("end-huge", 10, 0xff),
            ("magic", 14, b'U'),
            ("end-version", 34, 9),
            ("reason", reason_at, b'x'),
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
