//! Threat model: P69

#![no_main]

use usher_ike::vici::Section;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Section::decode(bytes) {
        let again = message.encode().expect("what was decoded fits");
        assert_eq!(Section::decode(&again), Ok(message));
    }
});
