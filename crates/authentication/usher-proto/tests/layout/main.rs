//! The bytes that docs/PROTOCOL.md promises, written out by hand.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod local;

use common::{SESSION, announcement, client_frames, connection, statement};
use ssh_encoding::{Decode, Reader as _};
use usher_base::DecodeError;
use usher_proto::certificate::MAX_PRINCIPALS_SIZE;
use usher_proto::{
    Authentication, Certified, ClientBody, ClientFrame, FrameBuffer, KEEPER_RECORD_SIZE,
    KeeperBody, KeeperReply, KeeperRequest, MAX_FRAME, Notice, Opening, Refusal, ServerFrame,
    SessionRequest, Statement,
};

/// An independent decoder of RFC 4251 types reads the statement.
#[test]
fn the_statement_is_made_of_rfc_4251_types() {
    let bytes = statement().encode();
    let reader = &mut bytes.as_slice();
    let mut magic = [0; 15];
    reader.read(&mut magic).unwrap();
    assert_eq!(&magic, b"usher-statement");
    assert_eq!(u32::decode(reader).unwrap(), 2);
    assert_eq!(String::decode(reader).unwrap(), "alice");
    assert_eq!(String::decode(reader).unwrap(), "imap");
    assert_eq!(Vec::<u8>::decode(reader).unwrap(), [0xc1; 32]);
    assert_eq!(Vec::<u8>::decode(reader).unwrap(), [0x5e; 32]);
    assert_eq!(
        Vec::<u8>::decode(reader).unwrap(),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2]
    );
    assert_eq!(u32::decode(reader).unwrap(), 143);
    assert_eq!(u64::decode(reader).unwrap(), common::NOW);
    assert_eq!(u64::decode(reader).unwrap(), common::NOW + 3600);
    assert_eq!(Vec::<u8>::decode(reader).unwrap(), [3; 16]);
    assert_eq!(Vec::<u8>::decode(reader).unwrap(), statement().chain_anchor);
    assert_eq!(Vec::<u8>::decode(reader).unwrap(), [4; 11]);
    assert_eq!(u32::decode(reader).unwrap(), 1024);
    assert_eq!(Vec::<u8>::decode(reader).unwrap(), [2; 16]);
    assert!(reader.is_empty());
}

#[test]
fn a_statement_of_another_version_is_told_apart() {
    let mut bytes = statement().encode();
    bytes[18] = 1;
    assert_eq!(Statement::decode(&bytes), Err(DecodeError::UnknownVersion));
    bytes[0] = b'U';
    assert_eq!(
        Statement::decode(&bytes),
        Err(DecodeError::Malformed { field: "magic" })
    );
    assert_eq!(Statement::decode(&[0; 513]), Err(DecodeError::Oversized));
}

#[test]
fn client_frames_have_their_length_type_and_request() {
    let types = [1, 2, 3, 4, 5, 1, 6];
    for ((name, frame), kind) in client_frames().into_iter().zip(types) {
        let bytes = frame.encode();
        let length = u32::from_be_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(length as usize, bytes.len() - 4, "{name}");
        assert_eq!(bytes[4], kind, "{name}");
        assert_eq!(bytes[5..13], frame.request.to_be_bytes(), "{name}");
    }
    let bytes = ClientFrame {
        request: 2,
        body: ClientBody::Session(SESSION, SessionRequest::Announce(announcement())),
    }
    .encode();
    assert_eq!(bytes.len(), 4 + 9 + 16 + 4 + 16 + 36);
    assert_eq!(bytes[13..29], [0xaa; 16]);
    assert_eq!(bytes[29..33], [0, 0, 0, 1]);
    assert_eq!(bytes[33..49], announcement().element.value);
    assert_eq!(bytes[49..], connection().encode());
}

#[test]
fn a_reply_is_two_bytes_of_verdict() {
    let reply = |verdict| {
        ServerFrame::Answer {
            request: 7,
            verdict,
        }
        .encode()
    };
    assert_eq!(
        reply(Ok(None)),
        [0, 0, 0, 11, 129, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]
    );
    assert_eq!(
        reply(Err(Refusal::DisabledUser)),
        [0, 0, 0, 11, 129, 0, 0, 0, 0, 0, 0, 0, 7, 0, 68]
    );
    assert_eq!(
        ServerFrame::decode(&[129, 0, 0, 0, 0, 0, 0, 0, 7, 0xff, 0xff]),
        Err(DecodeError::Malformed { field: "refusal" })
    );
}

#[test]
fn what_is_not_disclosed_never_reaches_the_wire() {
    for &reason in Refusal::ALL {
        let reply = ServerFrame::Answer {
            request: 1,
            verdict: Err(reason),
        };
        assert_eq!(
            ServerFrame::decode(&reply.encode()[4..]),
            Ok(ServerFrame::Answer {
                request: 1,
                verdict: Err(reason.disclosed())
            })
        );
        let ended = ServerFrame::Notice(Notice::SessionEnded {
            session: SESSION,
            reason,
        });
        assert_eq!(
            ServerFrame::decode(&ended.encode()[4..]),
            Ok(ServerFrame::Notice(Notice::SessionEnded {
                session: SESSION,
                reason: reason.disclosed()
            }))
        );
    }
}

fn ping(request: u64) -> ClientFrame {
    let body = ClientBody::Ping;
    ClientFrame { request, body }
}

#[test]
fn frames_of_the_other_direction_are_unknown() {
    let ping = ping(1).encode();
    let pong = ServerFrame::Pong { request: 1 }.encode();
    assert_eq!(
        ClientFrame::decode(&pong[4..]),
        Err(DecodeError::UnknownType)
    );
    assert_eq!(
        ServerFrame::decode(&ping[4..]),
        Err(DecodeError::UnknownType)
    );
}

#[test]
fn an_impossible_length_fails_at_once_and_for_good() {
    let too_long = u32::try_from(MAX_FRAME + 1).unwrap().to_be_bytes();
    for (length, error) in [
        (too_long, DecodeError::Oversized),
        ([0xff; 4], DecodeError::Oversized),
        ([0, 0, 0, 8], DecodeError::Truncated),
        ([0; 4], DecodeError::Truncated),
    ] {
        let mut buffer = FrameBuffer::new();
        buffer.push(&ping(1).encode());
        buffer.push(&length[..3]);
        assert!(buffer.next().unwrap().is_some());
        assert_eq!(buffer.next(), Ok(None));
        buffer.push(&length[3..]);
        assert_eq!(buffer.next(), Err(error));
        buffer.push(&ping(2).encode());
        assert_eq!(buffer.next(), Err(error));
        assert_eq!(buffer.pending(), 0);
    }
}

#[test]
fn the_longest_frame_passes_and_a_flood_does_not() {
    let mut longest = u32::try_from(MAX_FRAME).unwrap().to_be_bytes().to_vec();
    longest.resize(4 + MAX_FRAME, 1);
    let mut buffer = FrameBuffer::new();
    buffer.push(&longest);
    assert_eq!(buffer.next().unwrap().unwrap().len(), MAX_FRAME);

    buffer.push(&vec![0; FrameBuffer::CAPACITY + 1]);
    assert_eq!(buffer.next(), Err(DecodeError::Oversized));
    assert_eq!(buffer.pending(), 0);
}

/// The longest names, with a certificate or without.
fn longest_open(certificate: Option<Certified>) -> KeeperRequest {
    let statement = Statement {
        user: "u".repeat(32).parse().unwrap(),
        service: "s".repeat(32).parse().unwrap(),
        ..common::statement()
    };
    let opening = Opening {
        statement,
        key_fingerprint: [5; 32],
        certificate,
    };
    let record = b"record".to_vec();
    KeeperRequest {
        request: 1,
        host: "h".repeat(63).parse().unwrap(),
        body: KeeperBody::Open {
            authentication: Box::new(Authentication { opening, record }),
            first: Some(common::announcement()),
        },
    }
}

#[test]
fn keeper_records_have_one_size_and_zero_padding() {
    let open = longest_open(None);
    let packet = open.encode();
    assert_eq!(packet[..2], [7, 1]);
    // Where docs/PROTOCOL.md has the flag of the certificate behind the longest statement.
    let certificate = 75 + 56 + 4 + 282 + 32;
    assert_eq!(packet[74], 1);
    assert_eq!((packet[certificate - 1], packet[certificate]), (5, 0));
    assert_eq!(packet[KEEPER_RECORD_SIZE..], *b"\0\0\0\x06record");
    assert_eq!(KeeperRequest::decode(&packet), Ok(open));
    let longest = "p".repeat(MAX_PRINCIPALS_SIZE);
    let certified = longest_open(Some(Certified {
        authority: [6; 32],
        authority_sha1: [7; 20],
        key_sha1: [8; 20],
        serial: 9,
        key_id: [10; 32],
        valid_before: 11,
        principals: longest.parse().unwrap(),
    }));
    let packet = certified.encode();
    let principals = certificate + 1 + 120;
    assert_eq!(
        (
            packet[certificate],
            packet[principals],
            packet[principals + 1]
        ),
        (1, 1, 255)
    );
    let end = principals + 2 + MAX_PRINCIPALS_SIZE;
    assert_eq!((packet[end - 1], packet[end]), (b'p', 0));
    assert_eq!(KeeperRequest::decode(&packet), Ok(certified));
    let mut comma = packet;
    comma[principals + 2] = b',';
    let malformed = DecodeError::Malformed { field: "principal" };
    assert_eq!(KeeperRequest::decode(&comma), Err(malformed));

    let close = KeeperRequest {
        request: 1,
        host: "h".repeat(63).parse().unwrap(),
        body: KeeperBody::Session(SESSION, SessionRequest::Close),
    }
    .encode();
    KeeperRequest::decode(&close).unwrap();
    let padding = Err(DecodeError::Malformed { field: "padding" });
    for position in 26 + 64..KEEPER_RECORD_SIZE {
        let mut set = close.clone();
        set[position] = 1;
        assert_eq!(KeeperRequest::decode(&set), padding, "{position}");
    }
    assert_eq!(
        KeeperRequest::decode(&close[..KEEPER_RECORD_SIZE - 1]),
        Err(DecodeError::Truncated)
    );
    let mut longer = close.clone();
    longer.push(0);
    assert_eq!(KeeperRequest::decode(&longer), Err(DecodeError::Oversized));
    let mut newer = close.clone();
    newer[0] = 8;
    assert_eq!(
        KeeperRequest::decode(&newer),
        Err(DecodeError::UnknownVersion)
    );
    assert_eq!(KeeperReply::decode(&close), Err(DecodeError::UnknownType));
}

#[test]
fn a_record_about_a_session_is_its_frame_with_the_host_in_front() {
    for (name, frame) in client_frames() {
        let ClientBody::Session(session, asked) = frame.body.clone() else {
            continue;
        };
        let record = KeeperRequest {
            request: frame.request,
            host: "h".repeat(63).parse().unwrap(),
            body: KeeperBody::Session(session, asked),
        };
        let (frame, record) = (frame.encode(), record.encode());
        let (head, rest) = record.split_at(2 + 8 + 64);
        assert_eq!(head[1..10], frame[4..13], "{name}");
        assert_eq!(rest[..frame.len() - 13], frame[13..], "{name}");
    }
}

#[test]
fn padding_inside_a_name_is_checked_too() {
    let ended = KeeperReply::Notice {
        host: "laptop".parse().unwrap(),
        notice: Notice::SessionEnded {
            session: SESSION,
            reason: Refusal::SessionEnded,
        },
    };
    let record = ended.encode();
    assert_eq!(KeeperReply::decode(&record), Ok(ended));
    let mut set = record;
    set[2 + 1 + 6] = b'x';
    assert_eq!(
        KeeperReply::decode(&set),
        Err(DecodeError::Malformed { field: "host" })
    );
    let mut long = record;
    long[2] = 64;
    assert_eq!(
        KeeperReply::decode(&long),
        Err(DecodeError::Malformed { field: "host" })
    );
}

#[test]
fn the_keeper_tells_the_verifier_the_true_reason() {
    let verdict = KeeperReply::Answer {
        request: 1,
        verdict: Err(Refusal::NoLocalAccount),
    };
    assert_eq!(KeeperReply::decode(&verdict.encode()), Ok(verdict));
}
