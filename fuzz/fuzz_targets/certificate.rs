//! Threat model: A22

#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _outcome = checks::certificate(bytes);
});
