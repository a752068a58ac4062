#![no_main]

#[allow(dead_code, reason = "the proxy's part")]
#[path = "../../crates/usher/src/proxy/imap/mod.rs"]
mod imap;

use imap::{LoginFilter, MAX_PIECE, Progress};

/// The complete output and the result, if the bytes arrive in pieces of `size`.
fn feed(bytes: &[u8], size: usize) -> (Vec<u8>, Progress) {
    let mut filter = LoginFilter::new("alice");
    let mut output = Vec::new();
    let mut pieces = bytes.chunks(size);
    while let Some(piece) = pieces.next() {
        match filter.push(piece, &mut output) {
            Progress::Continue => {}
            Progress::LetThrough(mut rest) => {
                pieces.for_each(|piece| rest.extend_from_slice(piece));
                return (output, Progress::LetThrough(rest));
            }
            Progress::End => return (output, Progress::End),
        }
    }
    (output, Progress::Continue)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((size, input)) = bytes.split_first() else {
        return;
    };
    // The first byte selects the size of the pieces.
    let (output, progress) = feed(input, usize::from(*size).max(1));
    // A client that waits for a line gets lines.
    assert!(output.is_empty() || output.ends_with(b"\r\n"));
    if let Progress::LetThrough(rest) = &progress {
        assert!(input.ends_with(rest));
    }
    // Independent of the pieces. In large pieces, an overlong line ends earlier.
    if input.len() <= MAX_PIECE {
        assert_eq!((output, progress), feed(input, MAX_PIECE));
    }
});
