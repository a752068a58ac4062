//! Why a connection is refused, and which line would have to change.

use serde::Serialize;
use usher_policy::{Clause, Moment, Name, Objection as OfPolicy, may_be_user};
use usher_proto::{HostName, ServiceName, UserName};

use crate::decision::Question;
use crate::network::{FormerKey, HostPolicy};

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
    /// The user is root, an account of Usher's or the one that serves: no policy makes it a user.
    #[error(
        "`service {service}` of {host} can never admit {user}: root, Usher's accounts and the \
         service's own are no users of it"
    )]
    NeverAdmitted {
        host: HostName,
        service: ServiceName,
        user: UserName,
    },
    /// The user is a guest in the sets that a block names, and the latest time is over.
    #[error("{user} was a guest of `{block}` of {host}, and that is over since {until}")]
    GuestOver {
        host: HostName,
        /// `client NAME` or `service NAME`.
        block: String,
        user: UserName,
        until: Moment,
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
        /// The host's name for the other.
        block: HostName,
        port: u16,
        own: u16,
    },
    /// No pair of addresses is right for both.
    #[error("{client} and {server} agree on no addresses that a connection between them can have")]
    NoCommonAddress {
        client: HostName,
        server: HostName,
        /// That of the two whose policy would have to change, perhaps.
        host: HostName,
        /// Its name for the other.
        block: HostName,
    },
    /// The user is disabled.
    #[error("{user} is disabled on {host}")]
    Disabled { host: HostName, user: UserName },
    /// The server knows no good key of the user for this service.
    #[error("{host} has no good public key of {user}{}{}", purpose(.keys), faults(.former))]
    NoKey {
        host: HostName,
        user: UserName,
        keys: Option<Name>,
        /// Those that were good once.
        former: Vec<FormerKey>,
    },
}

impl Objection {
    /// What a host's policy objects to a connection with another host, which it calls `other`.
    pub(crate) fn of_policy(
        policy: &HostPolicy,
        question: &Question,
        other: &HostName,
        objection: OfPolicy<'_>,
    ) -> Self {
        let (host, other) = (policy.name.clone(), other.clone());
        let (user, service) = (question.user.clone(), question.service.clone());
        let clauses = objection.clause().into_iter().collect();
        let reason = match objection {
            OfPolicy::UnknownHost => Reason::HostUnknown { host, other },
            OfPolicy::NoClientEntry => Reason::NoClientBlock {
                host,
                service,
                server: other,
            },
            OfPolicy::NotInClient(client) => Reason::UserNotInClient {
                host,
                client: client.name.clone(),
                user,
            },
            OfPolicy::NoService => Reason::NoService { host, service },
            OfPolicy::NotAdmitted(_) => Reason::UserNotAdmitted {
                host,
                service,
                user,
            },
            OfPolicy::NeverAdmitted(_) => Reason::NeverAdmitted {
                host,
                service,
                user,
            },
            OfPolicy::GuestOver(guest) => Reason::GuestOver {
                host,
                block: format!("{} {}", guest.named_by.0, guest.named_by.1),
                user,
                until: guest.until,
            },
            OfPolicy::HostNotAdmitted(_) => Reason::HostNotAdmitted {
                host,
                service,
                client: other,
            },
        };
        Self {
            host: policy.name.clone(),
            reason,
            clauses,
        }
    }
}

fn purpose(keys: &Option<Name>) -> String {
    keys.as_ref()
        .map_or_else(String::new, |keys| format!(" for {keys}"))
}

/// What is wrong with the keys that there are.
fn faults(former: &[FormerKey]) -> String {
    let faults: Vec<String> = former.iter().map(FormerKey::to_string).collect();
    if faults.is_empty() {
        return String::new();
    }
    format!(" ({})", faults.join(", "))
}

impl Reason {
    /// What to do, if the connection is meant to be permitted; none where nothing can be done.
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::HostUnknown { host, other } => {
                format!("make {other} known on {host}: `usher host add {other} ...`")
            }
            Self::KeyDiffers { host, other } => format!(
                "compare with /etc/usher/host_key.pub on {other}, and correct `host {other}` on \
                 {host}"
            ),
            Self::NoClientBlock {
                host,
                service,
                server,
            } => format!(
                "add `service {service} at {server} port PORT;` to a `client` block on {host}"
            ),
            Self::NeverAdmitted { .. } => return None,
            // What a service can never admit no `users` block takes.
            Self::UserNotInClient { user, .. } if !may_be_user(user) => return None,
            Self::UserNotInClient { host, user, .. } | Self::UserNotAdmitted { host, user, .. } => {
                format!(
                    "add {user} to one of the `users` blocks that it names on {host}, or name another \
                 one"
                )
            }
            Self::GuestOver { host, user, .. } => {
                format!("write a later time for the guest {user} on {host}")
            }
            Self::NoService { host, service } => {
                format!("add a block `service {service} {{ ... }}` on {host}")
            }
            Self::HostNotAdmitted { host, client, .. } => {
                format!("add {client} to its `hosts` on {host}")
            }
            Self::PortDiffers { host, offered, .. } => {
                format!("write `port {offered}` in the `client` block on {host}")
            }
            Self::OtherPort { port, .. } => format!("ask for port {port}"),
            Self::ControlDiffers {
                host, own, block, ..
            } => {
                format!("write `control {own};` in `host {block}` on {host}")
            }
            Self::NoCommonAddress { host, block, .. } => format!(
                "write the addresses that the two hosts have in `host {host}` and `host {block}` \
                 on {host}"
            ),
            Self::Disabled { user, .. } => format!("`usher user enable {user}`"),
            Self::NoKey { user, keys, .. } => {
                let key = keys
                    .as_ref()
                    .map_or_else(String::new, |keys| format!(" --key {keys}"));
                format!("`usher user add {user} --public-key FILE{key}`")
            }
        };
        Some(remedy)
    }
}
