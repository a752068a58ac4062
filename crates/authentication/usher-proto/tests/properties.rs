//! Properties of every value and of all bytes.
#![forbid(unsafe_code)]

mod common;

use proptest::prelude::*;
use usher_base::ConnectionTuple;
use usher_proto::{
    CallReply, CallRequest, Chain, ChainTip, ClientBody, ClientFrame, FRAME_LENGTH_SIZE,
    FrameBuffer, FromLender, KeeperReply, KeeperRequest, LocalReply, LocalRequest, MAX_CALL_PACKET,
    MAX_CHAIN_GAP, MAX_FRAME, MAX_LENDING_PACKET, MAX_LOCAL_PACKET, MAX_RECORDER_PACKET,
    MAX_RELAY_PACKET, MAX_STATEMENT_SIZE, RecorderReply, RecorderRequest, Refusal, RelayReply,
    RelayRequest, ServerFrame, Statement, ToLender,
};

/// A round trip, every truncation refused, a byte more refused, and one changed byte either
/// refused or the spelling of another value: the format is canonical. The last argument returns
/// the value that a truncation may leave, if there is one.
macro_rules! format_properties {
    ($module:ident, $strategy:path, $encode:expr, $decode:path, $limit:expr) => {
        format_properties!($module, $strategy, $encode, $decode, $limit, |_| None);
    };
    ($module:ident, $strategy:path, $encode:expr, $decode:path, $limit:expr, $shorter:expr) => {
        mod $module {
            use super::*;

            proptest! {
                #[test]
                fn goes_there_and_back(value in $strategy()) {
                    let bytes: Vec<u8> = $encode(&value);
                    prop_assert!(bytes.len() <= $limit);
                    prop_assert_eq!($decode(&bytes), Ok(value));
                }

                #[test]
                fn is_refused_when_truncated_or_followed_by_more(
                    value in $strategy(),
                    cut in any::<prop::sample::Index>(),
                ) {
                    let mut bytes: Vec<u8> = $encode(&value);
                    let shorter = Some(&value).and_then($shorter);
                    let whole = shorter.as_ref().map_or(bytes.len(), |value| $encode(value).len());
                    let cut = cut.index(bytes.len());
                    if let Some(shorter) = shorter {
                        prop_assert_eq!($decode(&bytes[..whole]), Ok(shorter));
                    }
                    prop_assert!(cut == whole || $decode(&bytes[..cut]).is_err());
                    bytes.push(0);
                    prop_assert!($decode(&bytes).is_err());
                }

                #[test]
                fn has_one_spelling(
                    value in $strategy(),
                    place in any::<prop::sample::Index>(),
                    change in 1..=u8::MAX,
                ) {
                    let mut bytes: Vec<u8> = $encode(&value);
                    let place = place.index(bytes.len());
                    bytes[place] ^= change;
                    if let Ok(other) = $decode(&bytes) {
                        prop_assert_ne!(&other, &value);
                        prop_assert_eq!($encode(&other), bytes);
                    }
                }

                #[test]
                fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
                    if let Ok(value) = $decode(&bytes) {
                        prop_assert_eq!($encode(&value), bytes);
                    }
                }
            }
        }
    };
}

/// An opening frame is whole without its first connection.
fn without_first(frame: &ClientFrame) -> Option<ClientFrame> {
    let mut frame = frame.clone();
    match &mut frame.body {
        ClientBody::Open { first, .. } => first.take().map(|_| frame),
        _ => None,
    }
}

format_properties!(
    statement,
    common::arbitrary::any_statement,
    Statement::encode,
    Statement::decode,
    MAX_STATEMENT_SIZE
);
format_properties!(
    client_frame,
    common::arbitrary::client_frame,
    |frame: &ClientFrame| frame.encode()[FRAME_LENGTH_SIZE..].to_vec(),
    ClientFrame::decode,
    MAX_FRAME,
    without_first
);
format_properties!(
    server_frame,
    common::arbitrary::server_frame,
    |frame: &ServerFrame| frame.encode()[FRAME_LENGTH_SIZE..].to_vec(),
    ServerFrame::decode,
    MAX_FRAME
);
format_properties!(
    keeper_request,
    common::arbitrary::keeper_request,
    KeeperRequest::encode,
    KeeperRequest::decode,
    usher_proto::MAX_KEEPER_REQUEST
);
format_properties!(
    keeper_reply,
    common::arbitrary::keeper_reply,
    |record: &KeeperReply| record.encode().to_vec(),
    KeeperReply::decode,
    usher_proto::KEEPER_RECORD_SIZE
);
format_properties!(
    local_request,
    common::arbitrary::local_request,
    LocalRequest::encode,
    LocalRequest::decode,
    MAX_LOCAL_PACKET
);
format_properties!(
    local_reply,
    common::arbitrary::local_reply,
    LocalReply::encode,
    LocalReply::decode,
    MAX_LOCAL_PACKET
);
format_properties!(
    to_lender,
    common::arbitrary::to_lender,
    ToLender::encode,
    ToLender::decode,
    MAX_LENDING_PACKET
);
format_properties!(
    from_lender,
    common::arbitrary::from_lender,
    FromLender::encode,
    FromLender::decode,
    MAX_LENDING_PACKET
);
format_properties!(
    call_request,
    common::arbitrary::call_request,
    CallRequest::encode,
    CallRequest::decode,
    MAX_CALL_PACKET
);
format_properties!(
    call_reply,
    common::arbitrary::call_reply,
    CallReply::encode,
    CallReply::decode,
    MAX_CALL_PACKET
);
format_properties!(
    relay_request,
    common::arbitrary::relay_request,
    RelayRequest::encode,
    RelayRequest::decode,
    MAX_RELAY_PACKET
);
format_properties!(
    relay_reply,
    common::arbitrary::relay_reply,
    RelayReply::encode,
    RelayReply::decode,
    MAX_RELAY_PACKET
);
format_properties!(
    recorder_request,
    common::arbitrary::recorder_request,
    RecorderRequest::encode,
    RecorderRequest::decode,
    MAX_RECORDER_PACKET
);
format_properties!(
    recorder_reply,
    common::arbitrary::recorder_reply,
    RecorderReply::encode,
    RecorderReply::decode,
    MAX_RECORDER_PACKET
);

proptest! {
    #[test]
    fn connection_tuples_go_there_and_back(tuple in common::arbitrary::tuple()) {
        prop_assert_eq!(ConnectionTuple::decode(&tuple.encode()), Ok(tuple));
    }

    #[test]
    fn connection_tuples_have_one_spelling(bytes in any::<[u8; 36]>()) {
        if let Ok(tuple) = ConnectionTuple::decode(&bytes) {
            prop_assert_eq!(tuple.encode(), bytes);
        }
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut(
        frames in prop::collection::vec(common::arbitrary::client_frame(), 1..6),
        cuts in prop::collection::vec(1_usize..500, 1..40),
    ) {
        let stream: Vec<u8> = frames.iter().flat_map(ClientFrame::encode).collect();
        let mut buffer = FrameBuffer::new();
        let mut found = Vec::new();
        let mut rest = stream.as_slice();
        let mut cuts = cuts.into_iter().cycle();
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            buffer.push(piece);
            rest = tail;
            while let Some(payload) = buffer.next().unwrap() {
                found.push(ClientFrame::decode(&payload).unwrap());
            }
        }
        prop_assert_eq!(found, frames);
        prop_assert_eq!(buffer.pending(), 0);
    }

    #[test]
    fn any_stream_leaves_the_buffer_bounded(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2_000), 1..12),
    ) {
        let mut buffer = FrameBuffer::new();
        for piece in pieces {
            buffer.push(&piece);
            prop_assert!(buffer.pending() <= FrameBuffer::CAPACITY);
            while let Ok(Some(payload)) = buffer.next() {
                prop_assert!(payload.len() <= MAX_FRAME);
            }
        }
    }

    /// The window: whatever subset of the elements arrives in order, an element is accepted
    /// exactly when it is after the tip and at most 64 ahead of it.
    #[test]
    fn a_tip_accepts_exactly_its_window(
        length in 1_u32..400,
        seed in any::<[u8; 16]>(),
        salt in any::<[u8; 16]>(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
    ) {
        let chain = Chain::generate(length, seed, salt);
        let mut tip = ChainTip::at_anchor(chain.anchor());
        let elements: Vec<_> = chain.collect();
        for index in order {
            let element = index.get(&elements);
            let result = tip.advance(&salt, length, element);
            if element.position <= tip.position {
                prop_assert_eq!(result, Err(Refusal::ChainReplayed));
            } else if element.position - tip.position > MAX_CHAIN_GAP {
                prop_assert_eq!(result, Err(Refusal::ChainGap));
            } else {
                tip = result.unwrap();
                prop_assert_eq!(tip.position, element.position);
            }
        }
    }

    #[test]
    fn a_changed_signature_never_verifies_and_never_panics(
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let mut authenticator = common::authenticator();
        authenticator.verify_signature().unwrap();
        let place = place.index(authenticator.signature.len());
        authenticator.signature[place] ^= change;
        prop_assert!(authenticator.verify_signature().is_err());
        // A changed blob may still be a well-formed one.
        if let Ok(pem) = authenticator.signature_pem() {
            prop_assert!(pem.starts_with("-----BEGIN SSH SIGNATURE-----\n"));
        }
    }

    #[test]
    fn a_changed_statement_never_verifies(
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let mut authenticator = common::authenticator();
        let place = place.index(authenticator.statement.len());
        authenticator.statement[place] ^= change;
        prop_assert!(authenticator.verify_signature().is_err());
    }
}
