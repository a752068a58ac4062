#![no_main]

use usher_system::new_files::Event;

/// The smallest event: its head.
const HEAD: usize = 24;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // Bytes that cannot be read are one more event.
    assert!(Event::all_in(bytes).count() <= bytes.len() / HEAD + 1);
});
