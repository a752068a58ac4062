//! A charon that is absent, silent, hung or talks nonsense: an error in plain words, in bounded time and
//! memory, and once charon answers again the work goes on.
//!
//! Threat model: A139

#[path = "../impostor/mod.rs"]
mod impostor;
mod task;

use std::time::Duration;

use impostor::{Act, Impostor, answer, event, packet};
use proptest::prelude::*;
use usher_ike::IkeError;
use usher_ike::vici::{Connection, LARGEST_MESSAGE, MessageError, Section};

/// Longer than any test takes, except where silence is what it tests.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

async fn ask(act: Act, limit: Duration) -> Result<Section, IkeError> {
    let impostor = Impostor::with_fault("version", act);
    let connection = Connection::open(&impostor.path, limit).await;
    let mut connection = connection.expect("it listens");
    connection.command("version", &Section::new()).await
}

#[tokio::test]
async fn an_answer_is_read() {
    let answer = ask(Act::Send(packet(b"\x01\x03\x01k\x00\x01v")), LONG).await;
    assert_eq!(answer.expect("an answer").text("k").as_deref(), Some("v"));
}

#[tokio::test]
async fn an_absent_charon_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let outcome = Connection::open(&folder.path().join("vici"), LONG).await;
    let error = outcome.expect_err("nothing listens").to_string();
    assert!(error.contains("charon is not running"), "{error}");
    assert!(error.contains("strongswan.service"), "the remedy: {error}");
}

#[tokio::test]
async fn silence_ends_by_the_limit() {
    for answer in [
        Vec::new(),
        packet(b"\x01")[..3].to_vec(),
        9_u32.to_be_bytes().to_vec(),
    ] {
        let error = ask(Act::Send(answer), SHORT).await.expect_err("no answer");
        assert!(matches!(error, IkeError::Silent { .. }), "{error}");
        assert!(!error.leaves_the_connection_usable());
    }
}

#[tokio::test]
async fn nonsense_is_an_error() {
    let large = u32::try_from(LARGEST_MESSAGE + 1).expect("it fits");
    for (answer, expected) in [
        (packet(b""), MessageError::Truncated),
        (packet(b"\x09"), MessageError::Unexpected(9)),
        (packet(b"\x05"), MessageError::Unexpected(5)),
        (packet(b"\x01\x02"), MessageError::Misplaced(2)),
        (packet(b"\x01\x03\x05k"), MessageError::Truncated),
        (packet(b"\x07\x09x"), MessageError::Truncated),
        (large.to_be_bytes().to_vec(), MessageError::TooLarge),
        (
            b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            MessageError::TooLarge,
        ),
    ] {
        let error = ask(Act::Send(answer), LONG).await.expect_err("nonsense");
        let IkeError::Nonsense(reason) = error else {
            panic!("{error}, and not {expected}");
        };
        assert_eq!(reason, expected);
    }
}

#[tokio::test]
async fn an_endless_stream_of_events_ends() {
    let many = event("e", &Section::new()).repeat(10_000);
    let error = ask(Act::Repeat(many), LONG).await;
    let error = error.expect_err("no answer among them");
    assert!(
        matches!(error, IkeError::Nonsense(MessageError::TooMuch)),
        "{error}"
    );
}

/// Small elements take thirty times their bytes when they are decoded.
#[tokio::test]
async fn a_stream_of_small_elements_takes_bounded_memory() {
    let elements =
        |count: usize| [b"\x07\x01e", b"\x03\x00\x00\x00".repeat(count).as_slice()].concat();
    let most = packet(&elements(16_384)).repeat(100);
    let error = ask(Act::Repeat(most), LONG).await;
    let error = error.expect_err("no answer among them");
    assert!(
        matches!(error, IkeError::Nonsense(MessageError::TooMuch)),
        "{error}"
    );
    let error = ask(Act::Send(packet(&elements(16_385))), LONG).await;
    let error = error.expect_err("a message of too many elements");
    assert!(
        matches!(error, IkeError::Nonsense(MessageError::TooMany)),
        "{error}"
    );
}

/// A charon with 7,000 peers sends 20 MB. No other answer is as long.
#[tokio::test]
async fn a_list_may_be_longer_than_another_answer() {
    let sa = Section::new().section("usher-a", Section::new().value("state", [b'x'; 3_000]));
    let listed = event("list-sa", &sa).repeat(7_000);
    let all = [listed, answer(&Section::new())].concat();
    let impostor = Impostor::with_fault("list-sas", Act::Send(all.clone()));
    impostor.fault("version", Act::Send(all));
    let connection = Connection::open(&impostor.path, LONG).await;
    let mut connection = connection.expect("it listens");
    let mut count = 0;
    let asked = Section::new();
    let list = connection.listing("list-sas", &asked, |_| count += 1).await;
    list.expect("a list of 20 MB");
    assert_eq!(count, 7_000);
    let error = connection.command("version", &asked).await;
    let error = error.expect_err("an answer of 20 MB");
    assert!(
        matches!(error, IkeError::Nonsense(MessageError::TooMuch)),
        "{error}"
    );
}

#[tokio::test]
async fn a_refusal_has_its_reason() {
    let refusal = Section::new()
        .value("success", "no")
        .value("errmsg", "no such thing");
    let error = ask(Act::Send(answer(&refusal)), LONG).await;
    let error = error.expect_err("a refusal");
    assert!(error.to_string().contains("no such thing"), "{error}");
    assert!(error.leaves_the_connection_usable());
}

proptest! {
    #[test]
    fn decoded_messages_encode_to_an_equal_one(bytes in message_bytes(24)) {
        if let Ok(message) = Section::decode(&bytes) {
            let again = message.encode().expect("what was decoded fits");
            prop_assert_eq!(Section::decode(&again), Ok(message));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes before the end of the connection come to an answer or an error.
    // Threat model: P69
    #[test]
    fn any_bytes_are_an_answer_or_an_error(bytes in stream_of_bytes()) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let outcome = runtime.block_on(ask(Act::End(bytes), LONG));
        let is_silent = matches!(outcome, Err(IkeError::Silent { .. }));
        prop_assert!(!is_silent, "the end of the connection was not seen");
    }
}

/// Bytes in which elements are frequent, of fewer than so many pieces.
fn message_bytes(pieces: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\x01\x01s".to_vec()),
        Just(b"\x02".to_vec()),
        Just(b"\x03\x01k\x00\x02vv".to_vec()),
        Just(b"\x04\x01l".to_vec()),
        Just(b"\x05\x00\x01i".to_vec()),
        Just(b"\x06".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..pieces).prop_map(|pieces| pieces.concat())
}

/// Packets of all kinds with messages in which elements are frequent, and bytes that are none.
fn stream_of_bytes() -> impl Strategy<Value = Vec<u8>> {
    let head = prop_oneof![
        Just(b"\x01".to_vec()),
        Just(b"\x07\x01e".to_vec()),
        any::<u8>().prop_map(|kind| vec![kind])
    ];
    let whole =
        (head, message_bytes(12)).prop_map(|(head, message)| packet(&[head, message].concat()));
    let noise = proptest::collection::vec(any::<u8>(), 0..16);
    let part = prop_oneof![8 => whole, 1 => noise];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}
