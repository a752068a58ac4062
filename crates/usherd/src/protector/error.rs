//! Reasons that a configuration is not put in force.

use std::path::Path;

use usher_ike::KeyError;
use usher_ipsec::IpsecError;

use crate::start::StartError;

/// A reason that a configuration is not put in force.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// The kernel's error.
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
    /// The policy has no IKE key for this host.
    #[error("the `host` block of {0} has no `ike-key`; `usher init` prints the statement")]
    NoIkeKey(String),
    /// The policy has another IKE key for this host.
    #[error(
        "no `ike-key` of the `host` block of {host} is the key in {}; {}.pub has the statement's text. The block \
         has both keys until the present one has been replaced (for Ed25519: `usher protection use-key`)",
        file.display(),
        file.display()
    )]
    OtherIkeKey {
        /// The host.
        host: String,
        /// The file.
        file: &'static Path,
    },
    /// The IKE key is unusable.
    #[error("{0}; `usher policy apply` then reads it again")]
    IkeKey(#[from] KeyError),
}

impl From<ProtectionError> for StartError {
    fn from(error: ProtectionError) -> Self {
        Self::InForce(error.into())
    }
}
