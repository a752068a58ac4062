//! Threat model: M15

#![no_main]

use usher_mac::{Declaration, MAX_MODULE_SIZE, is_module_name};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(declared) = Declaration::read(bytes) {
        assert!(bytes.len() <= MAX_MODULE_SIZE);
        assert!(is_module_name(&declared.name));
        assert!(declared.entry_points.is_sorted() && !declared.entry_points.is_empty());
    }
});
