//! Reasons that a configuration is not put in force.

use usher_ike::KeyError;
use usher_ipsec::IpsecError;
use usher_local::paths;

/// A configuration is not put in force.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// The kernel.
    #[error(transparent)]
    Ipsec(#[from] IpsecError),
    /// The tables are too large.
    #[error("{0}")]
    Tables(String),
    /// This host is not in its policy.
    #[error(
        "no `host` block has this host's key, so it has no name for IKE; add the host with `usher host \
         add`"
    )]
    NoHost,
    /// It has no IKE key there.
    #[error("the `host` block of {0} has no `ike-key`; `usher init` prints the statement")]
    NoIkeKey(String),
    /// It has another IKE key.
    #[error(
        "no `ike-key` of the `host` block of {0} is the key in {key}; `usher init` prints the statement. \
         The block has both keys until `usher protection use-key` has replaced the present one",
        key = paths::IKE_KEY
    )]
    OtherIkeKey(String),
    /// The IKE key is unusable.
    #[error("{0}; `usher policy apply` then reads it again")]
    IkeKey(#[from] KeyError),
}
