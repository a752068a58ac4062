//! A charon that is absent, silent or talks nonsense: an error in plain words, in bounded time.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use usher_ike::IkeError;
use usher_ike::vici::{Connection, LARGEST_MESSAGE, MessageError, Section};

/// Longer than any test takes, except where silence is what it tests.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// A socket at which every request is answered by these bytes, and then nothing more.
fn answering(answer: Vec<u8>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vici");
    let listener = UnixListener::bind(&path).expect("bind");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                    if stream.write_all(&answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (folder, path)
}

fn packet(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a short one");
    [&length.to_be_bytes(), body].concat()
}

async fn ask(answer: Vec<u8>, limit: Duration) -> Result<Section, IkeError> {
    let (_folder, path) = answering(answer);
    let mut connection = Connection::open(&path, limit).await.expect("it listens");
    connection.command("version", &Section::new()).await
}

#[tokio::test]
async fn an_answer_is_read() {
    let answer = ask(packet(b"\x01\x03\x01k\x00\x01v"), LONG).await;
    assert_eq!(answer.expect("an answer").text("k").as_deref(), Some("v"));
}

#[tokio::test]
async fn an_absent_charon_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let outcome = Connection::open(&folder.path().join("vici"), LONG).await;
    let error = outcome.expect_err("nothing listens").to_string();
    assert!(error.contains("charon is not running"), "{error}");
}

#[tokio::test]
async fn silence_ends_by_the_limit() {
    for answer in [
        Vec::new(),
        packet(b"\x01")[..3].to_vec(),
        9_u32.to_be_bytes().to_vec(),
    ] {
        let error = ask(answer, SHORT).await.expect_err("no answer");
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
        let error = ask(answer, LONG).await.expect_err("nonsense");
        let IkeError::Nonsense(reason) = error else {
            panic!("{error}, and not {expected}");
        };
        assert_eq!(reason, expected);
    }
}

#[tokio::test]
async fn an_endless_stream_of_events_ends() {
    let event = packet(b"\x07\x01e");
    let many = event.repeat(200_000);
    let error = ask(many, LONG).await.expect_err("no answer among them");
    assert!(
        matches!(error, IkeError::Nonsense(MessageError::TooMany)),
        "{error}"
    );
}

#[tokio::test]
async fn a_refusal_has_its_reason() {
    let refusal = Section::new()
        .value("success", "no")
        .value("errmsg", "no such thing");
    let body = refusal.encode().expect("short");
    let error = ask(packet(&[b"\x01", body.as_slice()].concat()), LONG).await;
    let error = error.expect_err("a refusal");
    assert!(error.to_string().contains("no such thing"), "{error}");
    assert!(error.leaves_the_connection_usable());
}
