//! Live sockets of governed programs, as the kernel's iterator reports them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use usher_protection::{Class, Level};

use crate::marks::{BYPASS, DISCARD};
pub(crate) use crate::shared::LiveSocket as Row;

/// How the packets of a socket are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveTreatment {
    /// Each packet by its own addresses and ports: a listener, a datagram socket, or a connection
    /// that has carried nothing since the policy came in force.
    EachPacket,
    /// Without protection.
    Bypass,
    /// Not at all.
    Discard,
    /// By this class.
    Protect(Class, Level),
}

/// A socket, and one process that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSocket {
    /// Its own end; unspecified address: any.
    pub local: SocketAddr,
    /// Its peer; none: it is not connected.
    pub remote: Option<SocketAddr>,
    /// IPPROTO_TCP, IPPROTO_UDP, ...
    pub protocol: u16,
    /// The process, in the initial namespace.
    pub process: u32,
    /// The user that the socket belongs to, in the initial namespace.
    pub uid: u32,
    /// An index of [`usher_protection::Tables::applications`] of the tables in force.
    pub application: u32,
    /// What is known of its packets.
    pub treatment: LiveTreatment,
    /// The socket's mark.
    pub mark: u32,
    /// It is older than the policy, or was made by another program, and has just been adopted.
    pub adopted: bool,
}

impl From<Row> for LiveSocket {
    fn from(row: Row) -> Self {
        let address = |bytes: [u8; 16]| IpAddr::from(Ipv6Addr::from(bytes)).to_canonical();
        let local = SocketAddr::new(address(row.local_address), row.local_port);
        let remote = SocketAddr::new(address(row.remote_address), row.remote_port);
        let class = u8::try_from(row.class).unwrap_or(DISCARD);
        Self {
            local,
            remote: (row.remote_port != 0).then_some(remote),
            protocol: row.protocol,
            process: row.process,
            uid: row.uid,
            application: row.application,
            treatment: match (class, Class::of_mark(class)) {
                (0, _) => LiveTreatment::EachPacket,
                (BYPASS, _) => LiveTreatment::Bypass,
                (_, Some((class, level))) => LiveTreatment::Protect(class, level),
                (_, None) => LiveTreatment::Discard,
            },
            mark: row.mark,
            adopted: row.adopted != 0,
        }
    }
}
