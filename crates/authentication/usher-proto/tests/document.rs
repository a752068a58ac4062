//! docs/PROTOCOL.md against the code.
#![forbid(unsafe_code)]

use usher_proto::{
    FrameBuffer, KEEPER_RECORD_SIZE, MAX_KEEPER_REQUEST, MAX_LOG_RECORD, MAX_RECORDER_PACKET,
    MAX_RELAY_PACKET, Refusal, SessionId,
};

/// docs/PROTOCOL.md lists every refusal with its code, name, text and fault, and the constants.
#[test]
fn the_document_tells_the_code() {
    let document = include_str!("../../../../docs/PROTOCOL.md");
    let rows = document.to_lowercase();
    for refusal in Refusal::ALL {
        let (code, name, fault) = (refusal.code(), refusal.name(), refusal.fault());
        let row = format!("| {code} | `{name}` | {refusal} | {fault:?} |").to_lowercase();
        assert!(rows.contains(&row), "{row}");
    }
    let thousands = |number: usize| match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    };
    for (what, value) in [
        ("connection tuple", usher_base::CONNECTION_TUPLE_SIZE),
        ("chain gap", usher_proto::MAX_CHAIN_GAP as usize),
        ("SSHSIG blob", usher_proto::MAX_SIGNATURE_SIZE),
        ("statement", usher_proto::MAX_STATEMENT_SIZE),
        ("bytes waiting in a frame buffer", FrameBuffer::CAPACITY),
        ("keeper record", KEEPER_RECORD_SIZE),
        ("keeper request", MAX_KEEPER_REQUEST),
        ("local packet", usher_proto::MAX_LOCAL_PACKET),
        ("lending packet", usher_proto::MAX_LENDING_PACKET),
        ("answer of an ssh-agent", usher_proto::MAX_AGENT_ANSWER),
        ("relay packet", MAX_RELAY_PACKET),
        ("recorder packet", MAX_RECORDER_PACKET),
        ("end of a session", usher_proto::MAX_SESSION_END_SIZE),
        ("record of the log", MAX_LOG_RECORD),
    ] {
        let row = format!("| {what} | {}", thousands(value));
        assert!(document.contains(&row), "{row}");
    }
    let vector = usher_proto::Chain::generate(2, [0; 16], [0; 16]);
    let anchor = SessionId::from_bytes(vector.anchor());
    assert!(document.contains(&format!("h[0] = {anchor}")));
}
