//! The hosts whose policies are known, and the knowledge that two hosts have of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use usher_base::{HostName, UserName};
use usher_policy::{Host, Name, Policy, Principal, Service};
use usher_proto::HostPublicKey;

use crate::how::Route;

/// A host with its checked policy.
#[derive(Clone, Debug)]
pub struct HostPolicy {
    /// The host: the name of its own `host` block in its policy.
    pub name: HostName,
    /// Its policy in force, or a candidate, at the time of the question ([`Policy::at`]).
    pub policy: Policy,
    /// The state of its users.
    pub users: UserState,
}

/// A host's knowledge of its users besides its policy. By default there is none: no user is
/// disabled, and every user has the needed keys.
#[derive(Clone, Debug, Default)]
pub struct UserState {
    /// The users who are disabled on the host.
    pub disabled: BTreeSet<UserName>,
    /// By purpose, the users with a valid public key for it; absent if unknown.
    pub keys: Option<BTreeMap<Option<Name>, BTreeSet<UserName>>>,
    /// By purpose, the users' keys that are no longer valid; used only for explanations.
    pub former_keys: BTreeMap<Option<Name>, BTreeMap<UserName, Vec<FormerKey>>>,
    /// By purpose and principal, the users whose list trusts a valid authority to name it; used
    /// only if [`Self::keys`] are known.
    pub authorities: BTreeMap<Option<Name>, BTreeMap<String, BTreeSet<UserName>>>,
    /// Whether the host accepts every user's certificate of some authority, for services whose keys have no
    /// particular purpose: then a user without a listed key may have such a certificate.
    pub certified: bool,
}

/// A key of a user's list that is no longer valid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FormerKey {
    /// In the form of **ssh-keygen**.
    pub fingerprint: String,
    /// The reason.
    pub fault: KeyFault,
}

/// The reason why a key of a user's list is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyFault {
    /// The key is on the list of revoked keys.
    Revoked,
    /// The key's `expiry-time` has passed.
    Expired,
}

impl fmt::Display for FormerKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            KeyFault::Revoked => "is revoked",
            KeyFault::Expired => "has expired",
        };
        write!(formatter, "{} {what}", self.fingerprint)
    }
}

/// The users who can have a valid key for a purpose, as far as is known.
pub(crate) enum Holders<'n> {
    Everybody,
    These(&'n BTreeSet<UserName>),
    Nobody,
}

impl Holders<'_> {
    /// Whether the user can have a valid key.
    pub(crate) fn has(&self, user: &UserName) -> bool {
        match self {
            Self::Everybody => true,
            Self::These(users) => users.contains(user),
            Self::Nobody => false,
        }
    }
}

impl UserState {
    pub(crate) fn holders(&self, purpose: &Option<Name>) -> Holders<'_> {
        let keys = self.keys.as_ref();
        self.listed(purpose, keys.and_then(|keys| keys.get(purpose)))
    }

    /// These users, if keys for this purpose are known and must be listed; otherwise everybody.
    fn listed<'n>(
        &self,
        purpose: &Option<Name>,
        users: Option<&'n BTreeSet<UserName>>,
    ) -> Holders<'n> {
        if self.keys.is_none() || (self.certified && purpose.is_none()) {
            Holders::Everybody
        } else {
            users.map_or(Holders::Nobody, Holders::These)
        }
    }

    /// The user's keys for a purpose that are no longer valid.
    pub(crate) fn former_keys(&self, purpose: &Option<Name>, user: &UserName) -> &[FormerKey] {
        let of_purpose = self.former_keys.get(purpose);
        of_purpose
            .and_then(|users| users.get(user))
            .map_or(&[], Vec::as_slice)
    }

    /// The users who can have a certificate that names a principal and is valid for a service.
    pub(crate) fn certified(&self, service: &Service, principal: &Principal) -> Holders<'_> {
        let trusted = self.authorities.get(&service.keys);
        let users = trusted.and_then(|trusted| trusted.get(principal.as_ref()));
        self.listed(&service.keys, users)
    }
}

/// The hosts whose policies are known. The policies of others are unknown.
#[derive(Clone, Debug, Default)]
pub struct Network {
    hosts: BTreeMap<HostName, HostPolicy>,
    by_key: BTreeMap<HostPublicKey, HostName>,
}

/// The reason why policies do not form a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Two policies are given for one host.
    #[error("two policies are given for the host {0}: give one")]
    SameName(HostName),
    /// A policy lacks its own host's key and addresses.
    #[error(
        "the policy of {0} has no block `host {0}`, so its key and addresses are not known: add \
         the block (`usher host add` on that host), or name the host as its policy does"
    )]
    NoBlockForItself(HostName),
    /// Two hosts that could not be distinguished.
    #[error(
        "{first} and {second} have the same host key by their own policies: these are not two \
         hosts; correct one of the two"
    )]
    SameKey {
        /// One of the two hosts.
        first: HostName,
        /// The other one of the two hosts.
        second: HostName,
    },
}

impl Network {
    /// Puts policies together.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn new(hosts: impl IntoIterator<Item = HostPolicy>) -> Result<Self, NetworkError> {
        let mut network = Self::default();
        for host in hosts {
            let name = host.name.clone();
            let Some(own) = host.policy.hosts.get(&name) else {
                return Err(NetworkError::NoBlockForItself(name));
            };
            if network.hosts.contains_key(&name) {
                return Err(NetworkError::SameName(name));
            }
            for key in &own.keys {
                if let Some(first) = network.by_key.insert(*key, name.clone()) {
                    let second = name;
                    return Err(NetworkError::SameKey { first, second });
                }
            }
            network.hosts.insert(name, host);
        }
        Ok(network)
    }

    /// The hosts, by name.
    pub fn hosts(&self) -> impl Iterator<Item = &HostPolicy> {
        self.hosts.values()
    }

    /// A host whose policy is known.
    pub fn host(&self, name: &HostName) -> Option<&HostPolicy> {
        self.hosts.get(name)
    }

    /// The host that has a key of this block, if its policy is known.
    pub(crate) fn host_of_block(&self, block: &Host) -> Option<&HostPolicy> {
        let name = block.keys.iter().find_map(|key| self.by_key.get(key));
        self.hosts.get(name?)
    }

    /// The name in this network of the host that a policy calls `name`: keys carry identity, names
    /// do not.
    pub(crate) fn as_called_here<'n>(
        &'n self,
        policy: &'n Policy,
        name: &'n HostName,
    ) -> &'n HostName {
        let block = policy.hosts.get(name);
        let known = block.and_then(|block| self.host_of_block(block));
        known.map_or(name, |known| &known.name)
    }

    /// Whether a name, which no host here has, is the one that the policy of `by` uses for `host`.
    pub(crate) fn is_called(&self, name: &HostName, host: &HostName, by: &HostName) -> bool {
        self.host(name).is_none()
            && self
                .host(by)
                .is_some_and(|by| self.as_called_here(&by.policy, name) == host)
    }
}

impl HostPolicy {
    /// The host's block for itself, which [`Network::new`] has checked.
    pub(crate) fn own(&self) -> &Host {
        &self.policy.hosts[&self.name]
    }

    /// The host's block for another host of the network.
    pub(crate) fn block_of(&self, other: &Self) -> Option<&Host> {
        let mut keys = other.own().keys.iter();
        keys.find_map(|key| self.policy.host_by_key(key))
    }
}

/// The mutual knowledge of two hosts whose policies are known.
pub(crate) struct Acquaintance<'n> {
    /// The client's block for the server.
    pub(crate) server: Option<&'n Host>,
    /// The server's block for the client.
    pub(crate) client: Option<&'n Host>,
    /// Whether the client's port for the control channel is the server's. True if the client has no
    /// block.
    pub(crate) control_agrees: bool,
    /// The possible pairs of addresses: the client uses `to` and holds `from`, the server holds
    /// `to` and accepts `from` as the client's.
    pub(crate) routes: Vec<Route>,
}

impl<'n> Acquaintance<'n> {
    pub(crate) fn of(client: &'n HostPolicy, server: &'n HostPolicy) -> Self {
        let blocks = (client.block_of(server), server.block_of(client));
        let (own_client, own_server) = (client.own(), server.own());
        let routes = match blocks {
            (Some(server_block), Some(client_block)) => {
                let to = server_block.addresses.iter();
                let to = to.filter(|address| own_server.addresses.contains(address));
                to.flat_map(|&to| {
                    let from = client_block.addresses.iter();
                    from.filter(move |from| {
                        from.is_ipv4() == to.is_ipv4() && own_client.addresses.contains(from)
                    })
                    .map(move |&from| Route { from, to })
                })
                .collect()
            }
            _ => Vec::new(),
        };
        Self {
            server: blocks.0,
            client: blocks.1,
            control_agrees: blocks
                .0
                .is_none_or(|block| block.control == own_server.control),
            routes,
        }
    }
}
