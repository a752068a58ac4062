#![no_main]
//! A record of the log, a verifier key and a checkpoint: each has only one accepted spelling.

use std::sync::LazyLock;

use usher_log::{Record, VerifyingKey};

static KEY: LazyLock<VerifyingKey> = LazyLock::new(|| {
    VerifyingKey::parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
        .expect("a key")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::decode(bytes) {
        assert_eq!(record.encode(), bytes);
        let _verified = record.verify(KEY.public_key());
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(key) = VerifyingKey::parse(text) {
            assert_eq!(key.to_string(), text.strip_suffix('\n').unwrap_or(text));
        }
        let _checkpoint = KEY.open(text);
    }
});
