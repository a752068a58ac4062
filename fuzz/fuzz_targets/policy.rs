#![no_main]
//! Policy text: parsing never panics, and what a policy prints as parses to the same policy.

use usher_policy::{Source, parse};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let read = |text: &str| parse(&[Source { name: "fuzz".into(), text: text.into() }]);
    if let Ok(policy) = read(text) {
        assert_eq!(read(&policy.to_text()), Ok(policy));
    }
});
