//! The hosts whose policies are known, and what two of them know of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use usher_policy::{Host, Name, Policy, Principal, Service};
use usher_proto::{HostName, HostPublicKey, UserName};

use crate::how::Route;

/// A host with its checked policy.
#[derive(Clone, Debug)]
pub struct HostPolicy {
    /// The host: the name of its own `host` block in its policy.
    pub name: HostName,
    /// What it has in force, or would have, as it is at the time of the question
    /// ([`Policy::at`]).
    pub policy: Policy,
    /// What is known of its users.
    pub users: UserState,
}

/// What is known of a host's users besides its policy. By default nothing: nobody is disabled, and
/// everybody has the keys that it takes.
#[derive(Clone, Debug, Default)]
pub struct UserState {
    /// Those who are disabled on the host.
    pub disabled: BTreeSet<UserName>,
    /// By what keys are for, those with a good public key for it; absent when nothing is known.
    pub keys: Option<BTreeMap<Option<Name>, BTreeSet<UserName>>>,
    /// By what keys are for, the keys of users that are not good any more; only to tell why.
    pub former_keys: BTreeMap<Option<Name>, BTreeMap<UserName, Vec<FormerKey>>>,
    /// By what keys are for and by principal, those in whose list a good authority is trusted to
    /// name it; counts where [`Self::keys`] are known.
    pub authorities: BTreeMap<Option<Name>, BTreeMap<String, BTreeSet<UserName>>>,
    /// The host takes every user's certificate of some authority, for services whose keys are for
    /// nothing in particular: who has none in a list may have one.
    pub certified: bool,
}

/// A key of a user's list that is not good any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FormerKey {
    /// As **ssh-keygen** shows it.
    pub fingerprint: String,
    /// Why.
    pub fault: KeyFault,
}

/// Why a key of a user's list is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyFault {
    /// It is on the list of revoked keys.
    Revoked,
    /// Its `expiry-time` is over.
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

/// Who can have a good key for something, as far as is known.
pub(crate) enum Holders<'n> {
    Everybody,
    These(&'n BTreeSet<UserName>),
    Nobody,
}

impl Holders<'_> {
    /// Whether the user can.
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
        match &self.keys {
            Some(keys) if !(self.certified && purpose.is_none()) => {
                keys.get(purpose).map_or(Holders::Nobody, Holders::These)
            }
            _ => Holders::Everybody,
        }
    }

    /// The user's keys for something that are not good any more.
    pub(crate) fn former_keys(&self, purpose: &Option<Name>, user: &UserName) -> &[FormerKey] {
        let of_purpose = self.former_keys.get(purpose);
        of_purpose
            .and_then(|users| users.get(user))
            .map_or(&[], Vec::as_slice)
    }

    /// Who can have a certificate that names a principal and counts for a service.
    pub(crate) fn certified(&self, service: &Service, principal: &Principal) -> Holders<'_> {
        match &self.keys {
            Some(_) if !(self.certified && service.keys.is_none()) => {
                let trusted = self.authorities.get(&service.keys);
                let users = trusted.and_then(|trusted| trusted.get(principal.as_ref()));
                users.map_or(Holders::Nobody, Holders::These)
            }
            _ => Holders::Everybody,
        }
    }
}

/// The hosts whose policies are known. What others would say is not known here.
#[derive(Clone, Debug, Default)]
pub struct Network {
    hosts: BTreeMap<HostName, HostPolicy>,
    by_key: BTreeMap<HostPublicKey, HostName>,
}

/// Why policies are not those of different hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Two policies are given for one host.
    #[error("two policies are given for the host {0}: give one")]
    SameName(HostName),
    /// A policy does not say its own host's key and addresses.
    #[error(
        "the policy of {0} has no block `host {0}`, so its key and addresses are not known: add \
         the block (`usher host add` on that host), or name the host as its policy does"
    )]
    NoBlockForItself(HostName),
    /// Two hosts that could not be told apart.
    #[error(
        "{first} and {second} have the same host key by their own policies: these are not two \
         hosts; correct one of the two"
    )]
    SameKey {
        /// One of them.
        first: HostName,
        /// The other.
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
            if let Some(first) = network.by_key.insert(own.key, name.clone()) {
                let second = name;
                return Err(NetworkError::SameKey { first, second });
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

    /// The host with this key, if its policy is known.
    pub(crate) fn host_by_key(&self, key: &HostPublicKey) -> Option<&HostPolicy> {
        self.hosts.get(self.by_key.get(key)?)
    }

    /// What a host is called here that a policy calls `name`: keys carry identity, names do not.
    pub(crate) fn as_called_here<'n>(
        &'n self,
        policy: &'n Policy,
        name: &'n HostName,
    ) -> &'n HostName {
        let block = policy.hosts.get(name);
        let known = block.and_then(|block| self.host_by_key(&block.key));
        known.map_or(name, |known| &known.name)
    }

    /// Whether a name, which no host has here, is the one that the policy of `by` has for `host`.
    pub(crate) fn is_called(&self, name: &HostName, host: &HostName, by: &HostName) -> bool {
        self.host(name).is_none()
            && self
                .host(by)
                .is_some_and(|by| self.as_called_here(&by.policy, name) == host)
    }
}

impl HostPolicy {
    /// Its block for itself, which [`Network::new`] has found.
    pub(crate) fn own(&self) -> &Host {
        &self.policy.hosts[&self.name]
    }

    /// Its block for another host of the network.
    pub(crate) fn block_of(&self, other: &Self) -> Option<&Host> {
        self.policy.host_by_key(&other.own().key)
    }
}

/// What two hosts whose policies are known say of each other.
pub(crate) struct Acquaintance<'n> {
    /// The client's block for the server.
    pub(crate) server: Option<&'n Host>,
    /// The server's block for the client.
    pub(crate) client: Option<&'n Host>,
    /// The client looks for the control channel at the port at which the server has it. True where
    /// the client has no block.
    pub(crate) control_agrees: bool,
    /// The pairs of addresses that connections can have: the client uses `to` and holds `from`, the
    /// server holds `to` and takes `from` for the client's.
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
