//! What the programs of bpf/mac and this crate share.

#![allow(dead_code, reason = "modules use the rest")]
#![allow(
    missing_docs,
    reason = "the headers of bpf/include have their documentation"
)]

include!(concat!(env!("OUT_DIR"), "/usher_mac_label.rs"));
include!(concat!(env!("OUT_DIR"), "/usher_mac_requests.rs"));
include!(concat!(env!("OUT_DIR"), "/usher_mac_policy.rs"));
include!(concat!(env!("OUT_DIR"), "/usher_mac_settings.rs"));
