//! Values that the tests of the keeper's modules share.

use usher_kernel::admission::SessionRecord;
use usher_proto::chain::ChainTip;

/// A session of alice that has used no element of its chain.
pub fn record() -> SessionRecord {
    SessionRecord {
        uid: 1000,
        service: 1,
        user: "alice".parse().unwrap(),
        host: "laptop".parse().unwrap(),
        tip: ChainTip::at_anchor([0; 16]),
        chain_length: 1,
        chain_salt: [0; 16],
        token_anchor: [0; 11],
        key_fingerprint: [0; 32],
        certified: false,
        host_number: 0,
        opened: 0,
        expires: 0,
        ended: None,
    }
}
