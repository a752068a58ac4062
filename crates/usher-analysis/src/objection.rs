//! Why a connection is refused, and which line would have to change.

use serde::Serialize;
use usher_policy::{Clause, Name};
use usher_proto::{HostName, ServiceName, UserName};

/// One reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Objection {
    /// Whose policy, or users, would have to change.
    pub host: HostName,
    /// Why.
    pub reason: Reason,
    /// What would have to change there; empty where something would have to be added.
    pub clauses: Vec<Clause>,
}

/// Why. Displays as an explanation; [`Reason::remedy`] says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are named for what they are")]
pub enum Reason {
    /// The client has no `host` block with the server's key, or the server none with the client's.
    #[error("{host} does not know the host {other}: no `host` block has its key")]
    HostUnknown { host: HostName, other: HostName },
    /// A host's block for another has not the key that the other one says it has.
    #[error("the key that {host} has for {other} is not the one that {other} has for itself")]
    KeyDiffers { host: HostName, other: HostName },
    /// No `client` block names the service.
    #[error("no `client` block of {host} names {service} at {server}")]
    NoClientBlock {
        host: HostName,
        service: ServiceName,
        server: HostName,
    },
    /// The `client` block does not speak of the user.
    #[error("`client {client}` of {host} does not permit {user}")]
    UserNotInClient {
        host: HostName,
        client: Name,
        user: UserName,
    },
    /// The server has no such service.
    #[error("{host} offers no service {service}")]
    NoService {
        host: HostName,
        service: ServiceName,
    },
    /// The service does not admit the user.
    #[error("`service {service}` of {host} does not admit {user}")]
    UserNotAdmitted {
        host: HostName,
        service: ServiceName,
        user: UserName,
    },
    /// The service does not admit anybody from the client's host.
    #[error("`service {service}` of {host} admits nobody from {client}")]
    HostNotAdmitted {
        host: HostName,
        service: ServiceName,
        client: HostName,
    },
    /// The client expects the service at another port.
    #[error("{host} expects the service at port {port}, but it is offered at port {offered}")]
    PortDiffers {
        host: HostName,
        port: u16,
        offered: u16,
    },
    /// The question was of another port.
    #[error("it is not at port {asked}: {host} says port {port}")]
    OtherPort {
        host: HostName,
        asked: u16,
        port: u16,
    },
    /// The client looks for the control channel at another port.
    #[error(
        "{host} looks for the control channel of {other} at port {port}, but it is at port {own}"
    )]
    ControlDiffers {
        host: HostName,
        other: HostName,
        port: u16,
        own: u16,
    },
    /// No pair of addresses is right for both.
    #[error("{client} and {server} agree on no addresses that a connection between them can have")]
    NoCommonAddress { client: HostName, server: HostName },
    /// The user is disabled.
    #[error("{user} is disabled on {host}")]
    Disabled { host: HostName, user: UserName },
    /// The server knows no good key of the user for this service.
    #[error("{host} has no good public key of {user}{}", purpose(.keys))]
    NoKey {
        host: HostName,
        user: UserName,
        keys: Option<Name>,
    },
}

fn purpose(keys: &Option<Name>) -> String {
    keys.as_ref()
        .map_or_else(String::new, |keys| format!(" for {keys}"))
}

impl Reason {
    /// What to do, if the connection is meant to be permitted.
    pub fn remedy(&self) -> String {
        match self {
            Self::HostUnknown { host, other } => {
                format!("make {other} known on {host}: `usher host add {other} ...`")
            }
            Self::KeyDiffers { host, other } => format!(
                "compare with /etc/usher/host_key.pub on {other}, and correct `host {other}` on \
                 {host}"
            ),
            Self::NoClientBlock {
                service, server, ..
            } => format!("add `service {service} at {server} port PORT;` to a `client` block"),
            Self::UserNotInClient { user, .. } | Self::UserNotAdmitted { user, .. } => format!(
                "add {user} to one of the `users` blocks that it names, or name another one"
            ),
            Self::NoService { service, .. } => format!("add a block `service {service} {{ ... }}`"),
            Self::HostNotAdmitted { client, .. } => format!("add {client} to its `hosts`"),
            Self::PortDiffers { offered, .. } => {
                format!("write `port {offered}` in the `client` block")
            }
            Self::OtherPort { port, .. } => format!("ask for port {port}"),
            Self::ControlDiffers { own, other, .. } => {
                format!("write `control {own};` in `host {other}`")
            }
            Self::NoCommonAddress { client, server } => format!(
                "write in `host {client}` and `host {server}` on both the addresses that the \
                 hosts have"
            ),
            Self::Disabled { user, .. } => format!("`usher user enable {user}`"),
            Self::NoKey { user, keys, .. } => {
                let key = keys
                    .as_ref()
                    .map_or_else(String::new, |keys| format!(" --key {keys}"));
                format!("`usher user add {user} --public-key FILE{key}`")
            }
        }
    }
}
