#![no_main]

use usher_ipsec::Event;

/// The smallest message: its header.
const HEADER: usize = 16;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A message that cannot be read is one more event.
    assert!(Event::all_in(bytes).count() <= bytes.len() / HEADER + 1);
});
