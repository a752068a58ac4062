//! Invariants for any bytes, one function per fuzz target. The fuzzer calls them with bytes it
//! invents. The test `corpus` of usher-proto calls them with the committed corpus, whose file names
//! state the outcome.
//!
//! Each function returns `"accepted"` or the reason as a word. It panics if the decoder breaks its
//! promise: accepted bytes must encode to the same bytes.
#![allow(dead_code, reason = "a fuzz target uses one of these")]

use usher_base::DecodeError;
use usher_proto::{
    AgentAnswer, Authenticator, CallReply, CallRequest, Certificate, ClientBody, ClientFrame,
    FRAME_LENGTH_SIZE, FrameBuffer, FromLender, KeeperReply, KeeperRequest, LocalReply,
    LocalRequest, MAX_FRAME, RecorderReply, RecorderRequest, RelayReply, RelayRequest, RevokedKeys,
    RevokedKeysError, ServerFrame, Statement, ToLender, session_id, ssh_key,
};

/// A statement's bytes.
pub fn statement(bytes: &[u8]) -> &'static str {
    match Statement::decode(bytes) {
        Ok(statement) => {
            assert_eq!(statement.encode(), bytes);
            "accepted"
        }
        Err(error) => word(error),
    }
}

/// The statement that the signatures of the corpus sign.
pub const SIGNED: &[u8] = include_bytes!("corpus/statement/accepted-ipv4.bin");

/// An SSHSIG blob, over [`SIGNED`].
pub fn authenticator(bytes: &[u8]) -> &'static str {
    let authenticator = Authenticator {
        statement: SIGNED.to_vec(),
        signature: bytes.to_vec(),
    };
    let armoured = authenticator.signature_pem();
    match authenticator.verify_signature() {
        Ok(_key) => {
            assert!(
                armoured.is_ok(),
                "a signature that verifies can be written into the log"
            );
            "accepted"
        }
        Err(refusal) => refusal.name(),
    }
}

/// The payload of a frame from a client; also as a stream through the frame buffer.
pub fn client_frame(bytes: &[u8]) -> &'static str {
    stream(bytes);
    match ClientFrame::decode(bytes) {
        Ok(frame) => {
            assert_eq!(&frame.encode()[FRAME_LENGTH_SIZE..], bytes);
            if let ClientBody::Open { authenticator, .. } = &frame.body {
                let _signature = authenticator.verify_signature();
                let _statement = Statement::decode(&authenticator.statement);
                let _session = session_id(&authenticator.statement);
            }
            "accepted"
        }
        Err(error) => word(error),
    }
}

/// The payload of a frame from a server.
pub fn server_frame(bytes: &[u8]) -> &'static str {
    match ServerFrame::decode(bytes) {
        Ok(frame) => {
            assert_eq!(&frame.encode()[FRAME_LENGTH_SIZE..], bytes);
            "accepted"
        }
        Err(error) => word(error),
    }
}

/// A record between verifier and keeper, read in both directions.
pub fn keeper_record(bytes: &[u8]) -> &'static str {
    let request = KeeperRequest::decode(bytes).map(|request| request.encode());
    let reply = KeeperReply::decode(bytes).map(|reply| reply.encode().to_vec());
    both_directions(bytes, request, reply)
}

/// A packet between program and signer, read in both directions.
pub fn local(bytes: &[u8]) -> &'static str {
    let request = LocalRequest::decode(bytes).map(|request| request.encode());
    let reply = LocalReply::decode(bytes).map(|reply| reply.encode());
    both_directions(bytes, request, reply)
}

/// A packet between the signer and the lender of an agent, read in both directions.
pub fn lending(bytes: &[u8]) -> &'static str {
    let request = ToLender::decode(bytes).map(|packet| packet.encode());
    let reply = FromLender::decode(bytes).map(|packet| packet.encode());
    both_directions(bytes, request, reply)
}

/// The key whose signatures [`agent`] accepts.
pub const AGENT_KEY: &str = include_str!("corpus/agent/key.pub");

/// An ssh-agent's answer to a request to sign [`SIGNED`] with [`AGENT_KEY`].
pub fn agent(bytes: &[u8]) -> &'static str {
    let key = ssh_key::PublicKey::from_openssh(AGENT_KEY).unwrap();
    match AgentAnswer::decode(bytes) {
        Ok(AgentAnswer::Signature(signature)) => {
            assert_eq!(&bytes[5..], signature);
            match Authenticator::from_signature(SIGNED.to_vec(), &key, &signature) {
                Ok(authenticator) => {
                    let signer = authenticator.verify_signature();
                    assert_eq!(signer.unwrap().key.key_data(), key.key_data());
                    "accepted"
                }
                Err(refusal) => refusal.name(),
            }
        }
        Ok(AgentAnswer::Failure) => {
            assert_eq!(bytes, [5]);
            "failure"
        }
        Err(error) => word(error),
    }
}

/// A packet between a service's process and the keeper, read in both directions.
pub fn calls(bytes: &[u8]) -> &'static str {
    let request = CallRequest::decode(bytes).map(|request| request.encode());
    let reply = CallReply::decode(bytes).map(|reply| reply.encode());
    both_directions(bytes, request, reply)
}

/// A packet between signer and courier, read in both directions.
pub fn relay(bytes: &[u8]) -> &'static str {
    let request = RelayRequest::decode(bytes).map(|request| request.encode());
    let reply = RelayReply::decode(bytes).map(|reply| reply.encode());
    both_directions(bytes, request, reply)
}

/// A packet between keeper and recorder, read in both directions.
pub fn recorder(bytes: &[u8]) -> &'static str {
    let request = RecorderRequest::decode(bytes).map(|request| request.encode());
    let reply = RecorderReply::decode(bytes).map(|reply| reply.encode());
    both_directions(bytes, request, reply)
}

/// A list of revoked keys.
pub fn revoked_keys(bytes: &[u8]) -> &'static str {
    match RevokedKeys::parse(bytes) {
        Ok(_) => "accepted",
        Err(RevokedKeysError::Damaged(error)) => word(error),
        Err(RevokedKeysError::Empty) => "truncated",
        Err(RevokedKeysError::NotUnderstood(_)) => "not_understood",
        Err(RevokedKeysError::Line(_)) => "malformed",
    }
}

/// A certificate. Every list of revoked keys is asked about its signed contents.
pub fn certificate(bytes: &[u8]) -> &'static str {
    match Certificate::decode(bytes) {
        Ok(certificate) => {
            assert_eq!(certificate.as_bytes(), bytes);
            let read = Certificate::parse(&certificate.line());
            assert_eq!(read.as_ref(), Ok(&certificate));
            let certified = certificate.certified().unwrap();
            let _revoked = RevokedKeys::default().has_certificate(&certified);
            let _now = certificate.check(certificate.valid_after);
            match certificate.verify() {
                Ok(()) => "accepted",
                Err(refusal) => refusal.name(),
            }
        }
        Err(refusal) => refusal.name(),
    }
}

/// The same bytes, whole and byte by byte, yield the same frames and the same end.
fn stream(bytes: &[u8]) {
    let mut whole = FrameBuffer::new();
    let mut pieces = FrameBuffer::new();
    whole.push(bytes);
    let mut frames = Vec::new();
    for byte in bytes.chunks(1) {
        pieces.push(byte);
        while let Ok(Some(frame)) = pieces.next() {
            assert!(frame.len() <= MAX_FRAME);
            frames.push(frame);
        }
    }
    if bytes.len() > FrameBuffer::CAPACITY {
        return;
    }
    for frame in frames {
        assert_eq!(whole.next(), Ok(Some(frame)));
    }
    assert_eq!(whole.next(), pieces.next());
}

/// No bytes are valid in both directions: a packet sent back to its sender is refused.
fn both_directions<T: AsRef<[u8]>>(
    bytes: &[u8],
    request: Result<T, DecodeError>,
    reply: Result<T, DecodeError>,
) -> &'static str {
    match (request, reply) {
        (Ok(_), Ok(_)) => panic!("the same bytes are a request and a reply"),
        (Ok(again), Err(_)) | (Err(_), Ok(again)) => {
            assert_eq!(again.as_ref(), bytes);
            "accepted"
        }
        // The type is unknown in one direction, so the other direction's error counts.
        (Err(DecodeError::UnknownType), Err(error)) | (Err(error), Err(_)) => word(error),
    }
}

fn word(error: DecodeError) -> &'static str {
    match error {
        DecodeError::Truncated => "truncated",
        DecodeError::Oversized => "oversized",
        DecodeError::UnknownVersion => "unknown_version",
        DecodeError::UnknownType => "unknown_type",
        DecodeError::Malformed { .. } => "malformed",
        DecodeError::TrailingBytes => "trailing_bytes",
    }
}
