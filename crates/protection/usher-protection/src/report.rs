//! The state of the IKE daemon and the peers, for administrators.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use usher_base::HostName;

/// How far the negotiation of SAs is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// charon's version; none until it has answered.
    pub charon: Option<String>,
    /// The reason that charon cannot be used at present; none: it can.
    pub trouble: Option<String>,
    /// Classes of the policy that this charon cannot negotiate at all, and what it lacks for them.
    pub lacks: Option<String>,
    /// What another program has lately taken out of charon, and Usher has loaded again.
    #[serde(default)]
    pub unloaded: Option<String>,
    /// One entry for each address of each peer.
    pub peers: Vec<PeerReport>,
}

/// A peer at one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its name in the policy.
    pub name: HostName,
    /// Its address.
    pub address: IpAddr,
    /// The progress of the hosts in authenticating each other.
    pub state: PeerState,
    /// When the hosts authenticated each other, in seconds since 1970.
    pub since: Option<u64>,
    /// The algorithms of the IKE SA.
    pub algorithms: Option<String>,
    /// The reason that something is not negotiated: the outcome of the last attempt that failed.
    pub why_not: Option<String>,
    /// The classes of the policy.
    pub classes: Vec<ClassReport>,
}

/// How far a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerState {
    /// Nothing is negotiated yet, or not any more.
    Unreached,
    /// Negotiation is under way.
    Negotiating,
    /// There is an IKE SA.
    Established,
}

/// A class of traffic with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassReport {
    /// Its name.
    pub class: String,
    /// True if there are SAs.
    pub protected: bool,
    /// Since when there is this pair, in seconds since 1970.
    pub since: Option<u64>,
    /// The protocol and its algorithms: `ESP AES_GCM_16-256`.
    pub algorithms: Option<String>,
    /// The SPI of the inbound SA, in hexadecimal.
    pub spi_in: Option<String>,
    /// The SPI of the outbound SA, in hexadecimal.
    pub spi_out: Option<String>,
    /// Bytes that came in by all its pairs.
    pub bytes_in: u64,
    /// Bytes that went out by all its pairs.
    pub bytes_out: u64,
    /// The reason that it cannot be negotiated.
    pub why_not: Option<String>,
    /// Since when the peer is held to it where the policy says `optional`, in seconds since 1970; none: it
    /// is not, and is served in the clear while there are no SAs.
    #[serde(default)]
    pub held_since: Option<u64>,
    /// This host's addresses from which programs sent in the last ten minutes and that have no SAs.
    pub sources_without: Vec<IpAddr>,
}
