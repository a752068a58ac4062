#![no_main]
//! Policy text: parsing never panics, a printed policy parses to the same policy, and so does its
//! canonical form, which stays the same when it is formatted again.

use usher_policy::{Source, format, parse};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let source = |text: &str| Source { name: "fuzz".into(), text: text.into() };
    let read = |text: &str| parse(&[source(text)]);
    let policy = read(text);
    if let Ok(formatted) = format(&source(text)) {
        assert_eq!(read(&formatted).ok(), policy.as_ref().ok().cloned());
        assert_eq!(format(&source(&formatted)), Ok(formatted));
    }
    if let Ok(policy) = policy {
        let _ = policy.warnings();
        assert_eq!(read(&policy.to_text()), Ok(policy));
    }
});
