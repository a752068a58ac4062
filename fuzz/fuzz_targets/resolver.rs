#![no_main]

use usher_policy::protection::{ResolverReply, ResolverRequest};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = ResolverRequest::decode(bytes) {
        assert_eq!(request.encode(), bytes);
    }
    if let Ok(reply) = ResolverReply::decode(bytes) {
        assert_eq!(reply.encode(), bytes);
    }
});
