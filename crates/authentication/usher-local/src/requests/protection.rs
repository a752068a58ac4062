//! The answers of the protector.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use usher_base::HostName;

/// How the traffic of programs is protected.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProtectionView {
    /// The generation of the configuration in force.
    pub generation: u64,
    /// The `application` blocks, in the order of the policy.
    pub applications: Vec<ApplicationView>,
    /// The names that are looked up, in their order.
    pub names: Vec<NameView>,
    /// The connections with services that are protected for every program, a description of each.
    #[serde(default)]
    pub services: Vec<String>,
    /// The classes of the policy, each with its level.
    pub classes: Vec<String>,
    /// The bits of packets' marks that are Usher's.
    #[serde(default)]
    pub marks: u32,
    /// Entries of Usher in the SPD.
    pub spd_entries: usize,
    /// Sockets that were older than the policy, or that another program had made, and that have been
    /// governed since this protector found them.
    #[serde(default)]
    pub adopted_sockets: u64,
    /// Counters of the kernel programs, by name; those above zero.
    pub counters: BTreeMap<String, u64>,
    /// The reason that LSM programs do not see how governed programs use sockets; see
    /// [`ProtectionView::UNSEEN`]. None: they see it, or nothing is protected.
    #[serde(default)]
    pub unseen_calls: Option<String>,
    /// The reason that scripts of one interpreter are not told apart, so that a block that names a script
    /// governs nothing. None: they are, or nothing is protected and the protector may load LSM programs.
    #[serde(default)]
    pub unseen_scripts: Option<String>,
    /// Troubles that keep traffic from being protected as the policy says, each for people.
    pub troubles: Vec<String>,
}

impl ProtectionView {
    /// The calls of governed programs that Usher does not see without LSM programs.
    pub const UNSEEN: &str = "packet sockets and sockets of other families that become IP traffic, and \
                              reads and writes on connections that another program has accepted, for up \
                              to 5 seconds";
}

/// An `application` block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationView {
    /// The block's place in the policy.
    pub place: String,
    /// Its programs that have a file.
    pub programs: Vec<String>,
    /// Its programs without a file: nothing of theirs is protected until there is one.
    pub missing: Vec<String>,
    /// Its networks after the order of the text is resolved.
    pub networks: usize,
}

/// A page of the live sockets of governed programs, in an order that does not change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketsView {
    /// At most [`SocketsView::MOST`].
    pub sockets: Vec<SocketView>,
    /// The number of all live sockets; of more than 1,048,576 this number.
    pub total: u64,
    /// The position after which the next page begins; none on the last page.
    pub next: Option<u64>,
}

impl SocketsView {
    /// Limit of sockets of a page.
    pub const MOST: u64 = 4096;
}

/// A live socket of a governed program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketView {
    /// The kernel's number of it, which `ss -e` shows as `sk`, in hexadecimal.
    pub cookie: u64,
    /// The program that made it, as the policy names it; of a file that the policy no longer names,
    /// the first program of the block.
    pub program: String,
    /// The account that it belongs to.
    pub uid: u32,
    /// A process that holds it.
    pub process: u32,
    /// The number of processes that hold it.
    pub holders: u32,
    /// `tcp`, `udp`, or the number of another protocol.
    pub protocol: String,
    /// The state of a TCP socket, as `ss` names it; none for other protocols.
    pub state: Option<String>,
    /// Its own end.
    pub local: SocketAddr,
    /// Its peer; none: it is not connected.
    pub peer: Option<SocketAddr>,
    /// How its packets are treated.
    #[serde(flatten)]
    pub treatment: TreatmentView,
    /// The statement of the policy that decides, or the head of the block where each packet has one
    /// of its own; none for peers on this host, of which policies say nothing.
    pub line: Option<String>,
    /// The SA by which it sends; none: it is not protected, or there is none.
    pub sa_out: Option<SaView>,
    /// The SA by which it receives.
    pub sa_in: Option<SaView>,
}

/// How the packets of a socket are treated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "treatment", rename_all = "snake_case")]
pub enum TreatmentView {
    /// Each by its own addresses and ports: a listener, or a datagram socket without a peer.
    EachPacket,
    /// They pass without protection.
    Bypass,
    /// They do not pass.
    Discard,
    /// They are protected.
    Protect {
        /// The name of the class.
        class: String,
        /// `mandatory` or `optional`.
        level: String,
    },
}

/// An SA. All sockets of a class and a pair of addresses share it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaView {
    /// Its SPI, in hexadecimal.
    pub spi: String,
    /// The bytes that it has carried, of all sockets.
    pub bytes: u64,
    /// When it was made, in seconds since 1970.
    pub since: u64,
}

/// A name in `network` statements that is looked up, with its last answer, which is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameView {
    /// The name.
    pub name: HostName,
    /// The addresses of its last answer; none: it has never been answered.
    pub addresses: Vec<IpAddr>,
    /// Addresses of earlier answers, which are in force beside them.
    #[serde(default)]
    pub former: Vec<FormerAddress>,
    /// True if there were more of them than are kept: those that were answered longest ago have gone.
    #[serde(default)]
    pub is_crowded: bool,
    /// Seconds since the last answer; none: it has never been answered.
    pub age: Option<u64>,
    /// The reason why the last look-up failed.
    pub why_not: Option<String>,
}

/// An address that the last answer for a name lacks, and that is in force all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerAddress {
    /// The address.
    pub address: IpAddr,
    /// Seconds since the first answer that lacks it.
    pub age: u64,
}
