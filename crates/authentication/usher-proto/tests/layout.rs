//! The bytes that docs/PROTOCOL.md promises, written out by hand.
#![forbid(unsafe_code)]

mod common;

use common::{SESSION, announcement, client_frames, connection, statement};
use ssh_encoding::{Decode, Reader as _};
use usher_base::DecodeError;
use usher_proto::certificate::MAX_PRINCIPALS_SIZE;
use usher_proto::{
    AgentAnswer, Authentication, Certified, ClientBody, ClientFrame, FrameBuffer, FromLender,
    KEEPER_RECORD_SIZE, Keep, KeeperBody, KeeperReply, KeeperRequest, LocalReply, LocalRequest,
    MAX_FRAME, MAX_LOG_RECORD, MAX_PUBLIC_KEY_SIZE, MAX_RECORDER_PACKET, MAX_RELAY_PACKET,
    MAX_SIGNATURE_SIZE, MAX_STATEMENT_SIZE, Notice, Opening, RECORDER_REPLY_SIZE, RecorderReply,
    RecorderRequest, Refusal, RelayReply, RelayRequest, ServerFrame, SessionEnd, SessionId,
    SessionRequest, Statement, ToLender, agent,
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
    // Of the longest statement, as docs/PROTOCOL.md has it: whether there is a certificate.
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

#[test]
fn local_packets_are_as_documented() {
    let connect = LocalRequest::Connect {
        host: "mailhost".parse().unwrap(),
        service: "imap".parse().unwrap(),
    };
    assert_eq!(connect.encode(), b"\x01\x01\x08mailhost\x04imap");
    assert_eq!(LocalRequest::Done { connected: true }.encode(), [1, 3, 1]);
    assert_eq!(
        LocalRequest::decode(&[1, 3, 2]),
        Err(DecodeError::Malformed { field: "connected" })
    );
    assert_eq!(
        LocalReply::Refused(Refusal::ClientPolicy).encode(),
        [1, 130, 0, 164]
    );
    assert_eq!(LocalReply::Finished.encode(), [1, 131]);
    assert_eq!(LocalRequest::Lend.encode(), [1, 5]);
    let ready = LocalReply::Ready {
        server: connection().server,
    }
    .encode();
    assert_eq!(
        ready[2..],
        [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 2, 0, 143
        ]
    );
}

#[test]
fn lending_packets_are_as_documented_and_the_longest_ones_fit() {
    assert_eq!(ToLender::Lent.encode(), [1, 133]);
    assert_eq!(ToLender::Replaced.encode(), [1, 135]);
    let refused = ToLender::Refused(Refusal::NoPrivateKey);
    assert_eq!(refused.encode(), [1, 130, 0, 163]);
    assert_eq!(FromLender::NotSigned.encode(), [1, 7]);
    let signature = |length| FromLender::Signature(vec![9; length]);
    assert_eq!(signature(2).encode(), [1, 6, 0, 0, 0, 2, 9, 9]);
    let sign = |key, statement| ToLender::Sign {
        public_key: vec![7; key],
        statement: vec![8; statement],
    };
    assert_eq!(
        sign(1, 2).encode(),
        [1, 134, 0, 0, 0, 1, 7, 0, 0, 0, 2, 8, 8]
    );
    let longest = sign(MAX_PUBLIC_KEY_SIZE, MAX_STATEMENT_SIZE);
    assert_eq!(ToLender::decode(&longest.encode()), Ok(longest));
    let longest = signature(MAX_SIGNATURE_SIZE);
    assert_eq!(FromLender::decode(&longest.encode()), Ok(longest));
    for longer in [
        sign(MAX_PUBLIC_KEY_SIZE + 1, 1),
        sign(1, MAX_STATEMENT_SIZE + 1),
    ] {
        assert_eq!(
            ToLender::decode(&longer.encode()),
            Err(DecodeError::Oversized)
        );
    }
    let longer = signature(MAX_SIGNATURE_SIZE + 1).encode();
    assert_eq!(FromLender::decode(&longer), Err(DecodeError::Oversized));
}

#[test]
fn an_agents_request_follows_its_protocol_with_bounded_answers() {
    assert_eq!(
        agent::sign_request(&[7, 7], &[8]),
        [0, 0, 0, 16, 13, 0, 0, 0, 2, 7, 7, 0, 0, 0, 1, 8, 0, 0, 0, 0]
    );
    assert_eq!(agent::answer_length([0, 0, 16, 0]), Ok(4096));
    for longer in [[0, 0, 16, 1], [0xff; 4]] {
        assert_eq!(agent::answer_length(longer), Err(DecodeError::Oversized));
    }
    assert_eq!(
        AgentAnswer::decode(&[14, 0, 0, 0, 1, 9]),
        Ok(AgentAnswer::Signature(vec![9]))
    );
    assert_eq!(AgentAnswer::decode(&[5]), Ok(AgentAnswer::Failure));
    // SSH_AGENT_SUCCESS, SSH_AGENT_IDENTITIES_ANSWER: no answers to this request.
    for other in [6, 12] {
        assert_eq!(AgentAnswer::decode(&[other]), Err(DecodeError::UnknownType));
    }
}

#[test]
fn relay_packets_bound_their_addresses_and_frames() {
    let forward = |addresses, frame| RelayRequest::Forward {
        channel: "h".repeat(63).parse().unwrap(),
        server_host_key: common::server_key(),
        control: vec![connection().server; addresses],
        frame: vec![0; frame],
    };
    let longest = forward(8, 4 + MAX_FRAME);
    assert!(longest.encode().len() <= MAX_RELAY_PACKET);
    assert_eq!(RelayRequest::decode(&longest.encode()), Ok(longest));
    assert_eq!(
        RelayRequest::decode(&forward(0, 13).encode()),
        Err(DecodeError::Malformed { field: "control" })
    );
    for (addresses, frame) in [
        (9, 13),
        (300, 13),
        (1, 5 + MAX_FRAME),
        (1, MAX_RELAY_PACKET),
    ] {
        assert_eq!(
            RelayRequest::decode(&forward(addresses, frame).encode()),
            Err(DecodeError::Oversized)
        );
    }
    let lost = RelayReply::ChannelLost {
        channel: "mailhost".parse().unwrap(),
        refusal: Refusal::VerifierUnavailable,
    };
    assert_eq!(lost.encode(), b"\x01\x82\x08mailhost\x00\xa0");
}

#[test]
fn recorder_packets_are_laid_out_as_documented_and_bounded() {
    let statement = common::statement();
    let signed = statement.encode();
    let opening = Opening {
        statement,
        key_fingerprint: [5; 32],
        certificate: None,
    };
    let keep = |length| RecorderRequest {
        request: 7,
        keep: Keep::Authentication(Box::new(Authentication {
            opening: opening.clone(),
            record: vec![b'x'; length],
        })),
    };
    let header = b"\x04\x01\x00\x00\x00\x00\x00\x00\x00\x07";
    let length = u32::try_from(signed.len()).unwrap().to_be_bytes();
    let said = [&length[..], &signed, &[5; 32], &[0]].concat();
    assert_eq!(
        keep(2).encode(),
        [&header[..], &said, b"\x00\x00\x00\x02xx"].concat()
    );
    let longest = keep(MAX_LOG_RECORD);
    assert!(longest.encode().len() <= MAX_RECORDER_PACKET);
    assert_eq!(RecorderRequest::decode(&longest.encode()), Ok(longest));
    assert_eq!(
        RecorderRequest::decode(&keep(MAX_LOG_RECORD + 1).encode()),
        Err(DecodeError::Oversized)
    );
    let end = SessionEnd {
        session: SessionId::from_bytes([9; 16]),
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        ended: 5,
        reason: Refusal::RevokedKey,
    };
    let keep = Keep::End(end.clone());
    let packet = keep.packet(7);
    let header = b"\x04\x02\x00\x00\x00\x00\x00\x00\x00\x07";
    let length = u32::try_from(end.encode().len()).unwrap().to_be_bytes();
    assert_eq!(packet, [&header[..], &length, &end.encode()].concat());
    assert_eq!(
        RecorderRequest::decode(&packet),
        Ok(RecorderRequest { request: 7, keep })
    );
    let header = b"\x04\x81\x00\x00\x00\x00\x00\x00\x00\x07";
    let reply = |verdict| RecorderReply {
        request: 7,
        verdict,
    };
    let refused = reply(Err(Refusal::RecorderUnavailable));
    assert_eq!(refused.encode(), [&header[..], &[0, 134]].concat());
    let kept = reply(Ok(()));
    let packet = [header, &[0, 0][..]].concat();
    assert_eq!(packet.len(), RECORDER_REPLY_SIZE);
    assert_eq!(kept.encode(), packet);
    assert_eq!(RecorderReply::decode(&packet), Ok(kept));
}
