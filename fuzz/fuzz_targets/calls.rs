//! Threat model: A116

#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _outcome = checks::calls(bytes);
});
