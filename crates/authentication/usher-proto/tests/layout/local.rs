//! Packets between processes of one host.

use usher_base::DecodeError;
use usher_proto::{
    AgentAnswer, Authentication, FromLender, Keep, LocalReply, LocalRequest, MAX_FRAME,
    MAX_LOG_RECORD, MAX_PUBLIC_KEY_SIZE, MAX_RECORDER_PACKET, MAX_RELAY_PACKET, MAX_SIGNATURE_SIZE,
    MAX_STATEMENT_SIZE, Opening, ProgramEnd, RECORDER_REPLY_SIZE, RecorderReply, RecorderRequest,
    Refusal, RelayReply, RelayRequest, SessionEnd, SessionId, ToLender, agent,
};

use crate::common::{self, connection};

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
    let owner = LocalRequest::OwnerAtProxy {
        host: "mailhost".parse().unwrap(),
        service: "imap".parse().unwrap(),
    };
    assert_eq!(owner.encode(), b"\x01\x08\x08mailhost\x04imap");
    let uid = LocalReply::Owner { uid: 1000 };
    assert_eq!(uid.encode(), [1, 136, 0, 0, 3, 232]);
    let how = LocalRequest::HowEnded {
        host: "mailhost".parse().unwrap(),
        service: "imap".parse().unwrap(),
        client: connection().client,
    };
    let how = how.encode();
    assert_eq!(how[..16], b"\x01\x09\x08mailhost\x04imap"[..]);
    assert_eq!(LocalReply::Ended(None).encode(), [1, 137, 0]);
    let (by_signal, number) = (true, 11);
    let end = ProgramEnd { by_signal, number };
    assert_eq!(LocalReply::Ended(Some(end)).encode(), [1, 137, 1, 1, 11]);
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
    assert_eq!(
        agent::answer_length([0, 0, 16, 0], agent::MAX_AGENT_ANSWER),
        Ok(4096)
    );
    for longer in [[0, 0, 16, 1], [0xff; 4]] {
        assert_eq!(
            agent::answer_length(longer, agent::MAX_AGENT_ANSWER),
            Err(DecodeError::Oversized)
        );
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
    let forward = |keys, addresses, frame| RelayRequest::Forward {
        channel: "h".repeat(63).parse().unwrap(),
        server_host_keys: vec![common::server_key(); keys],
        control: vec![connection().server; addresses],
        frame: vec![0; frame],
    };
    let longest = forward(2, 8, 4 + MAX_FRAME);
    assert!(longest.encode().len() <= MAX_RELAY_PACKET);
    assert_eq!(RelayRequest::decode(&longest.encode()), Ok(longest));
    assert_eq!(
        RelayRequest::decode(&forward(1, 0, 13).encode()),
        Err(DecodeError::Malformed { field: "control" })
    );
    let field = "server_host_keys";
    assert_eq!(
        RelayRequest::decode(&forward(0, 1, 13).encode()),
        Err(DecodeError::Malformed { field })
    );
    for (keys, addresses, frame) in [
        (3, 1, 13),
        (300, 1, 13),
        (1, 9, 13),
        (1, 300, 13),
        (1, 1, 5 + MAX_FRAME),
        (1, 1, MAX_RELAY_PACKET),
    ] {
        assert_eq!(
            RelayRequest::decode(&forward(keys, addresses, frame).encode()),
            Err(DecodeError::Oversized)
        );
    }
    let lost = RelayReply::ChannelLost {
        channel: "mailhost".parse().unwrap(),
        refusal: Refusal::VerifierUnavailable,
    };
    assert_eq!(lost.encode(), b"\x02\x82\x08mailhost\x00\xa0");
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
