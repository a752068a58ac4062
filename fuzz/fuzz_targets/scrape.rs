#![no_main]

#[allow(dead_code, reason = "the exporter's part")]
#[path = "../../crates/usherd/src/exporter/request.rs"]
mod request;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // An accepted request is complete and a GET; what follows it makes no difference.
    if let Ok(format) = request::decode(bytes) {
        assert!(request::is_whole(bytes));
        assert!(bytes.starts_with(b"GET /metrics"));
        let longer = [bytes, b"body"].concat();
        assert_eq!(request::decode(&longer), Ok(format));
    }
});
