//! `client` blocks: what local users may authenticate to.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::Arc;

use serde::Serialize;
use usher_base::{HostName, ServiceName};
use usher_language::{Name, words};
use usher_protection::Kind;

use crate::members::Members;

/// A `client` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The block's name.
    pub name: Name,
    /// Names of the `users` blocks that it speaks of.
    pub user_blocks: BTreeSet<Name>,
    /// Its services in the order of the text. A pair of service and host stands at most once in
    /// a whole policy, and so does a pair of host and port.
    pub services: Vec<ClientService>,
}

/// A service on a host to which local users may authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientService {
    /// The service's name on its host.
    pub service: ServiceName,
    /// The host, which the policy declares.
    pub host: HostName,
    /// The service's TCP port there.
    pub port: u16,
    /// The local users who may authenticate to it; shared by all services that name the same blocks.
    pub users: Arc<Members>,
    /// The proxy's treatment of this service's connections.
    pub protocol: Protocol,
    /// The purpose of the user's key that opens its sessions; none: the key without a purpose.
    pub key: Option<Name>,
    /// The programs whose connections are authenticated.
    pub programs: Programs,
    /// How IPsec protects all connections with the service's port, except those of programs that an
    /// `application` block has; none: this block demands no protection.
    pub protection: Option<Kind>,
}

impl ClientService {
    /// As its statement has it: `SERVICE at HOST port PORT`.
    pub fn target(&self) -> String {
        format!("{} at {} port {}", self.service, self.host, self.port)
    }
}

/// The programs whose connections to a service of another host are authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Programs {
    /// Those that ask for it: connect_by_user(3), `usher connect`, the proxy.
    #[default]
    Asking,
    /// All: a plain connect(2) of any program to the service's port at an address of the host.
    Any,
    /// These programs and no others, by their paths: their plain connect(2), and the connections that they
    /// ask for.
    Listed(Arc<BTreeSet<String>>),
}

impl Programs {
    /// The listed programs; none if connections of other programs may be authenticated as well.
    pub fn listed(&self) -> Option<&Arc<BTreeSet<String>>> {
        match self {
            Self::Listed(paths) => Some(paths),
            Self::Asking | Self::Any => None,
        }
    }

    /// Whether plain connections are authenticated, those of any program or of the listed ones.
    pub fn with_plain(&self) -> bool {
        *self != Self::Asking
    }
}

/// Limit of entries of `programs`: each is looked up when an unknown program connects.
pub const MAXIMUM_PROGRAMS: usize = 64;

words! {
    /// The protocol that the proxy carries, as far as the proxy knows it.
    #[derive(Default)]
    pub enum Protocol {
        /// Nothing: bytes pass unread.
        #[default]
        Raw = "raw",
        /// IMAP: the proxy answers a client that insists on LOGIN, and passes no password on.
        Imap = "imap",
    }
}

/// A socket on which the proxy listens for one service of one host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyListener {
    /// A [`Host::loopback`](crate::Host::loopback) address with the service's port.
    pub address: SocketAddrV4,
    /// The host that it stands for.
    pub host: HostName,
    /// The service.
    pub service: ServiceName,
    /// How its connections are treated.
    pub protocol: Protocol,
}
