//! Makes a [`Policy`] of blocks and statements: takes each value, resolves names, refuses duplicates.
//! The tables ([`crate::dialect`]) have been applied by [`Fields`](usher_language::Fields) before.
//!
//! Hosts and users come first, because services and clients name them. A block with a mistake still
//! lends its name to the others, so that one mistake is one error. A value that was reported may be
//! replaced by its default: nothing of a policy with a mistake is used.

mod client;
mod connect;
mod files;
mod host;
mod outside;
mod served_by;
mod service;
mod users;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use usher_base::{HostName, ServiceName};
use usher_language::{Item, Name, Reporter, Tree, declared, nearest};

use crate::dialect::BlockKind;
use crate::members::Groups;
use crate::members::Members;
use crate::members::Users;
use crate::mistake::PolicyMistake;
use crate::model::{Host, Needs, Policy};
use crate::names::{BLOCK, HOST, SERVICE};

/// Checks the sources. `groups` has the members of the groups that they name. The policy is whole only if the
/// reporter stays empty.
pub(crate) fn check_policy(tree: &Tree<'_>, groups: &Groups, reporter: &Reporter<'_>) -> Policy {
    let blocks = &tree.blocks;
    let hosts = declared::<HostName>(blocks, BlockKind::Host.word(), &HOST, reporter);
    let users = declared::<Name>(blocks, BlockKind::Users.word(), &BLOCK, reporter);
    let services = declared::<ServiceName>(blocks, BlockKind::Service.word(), &SERVICE, reporter);
    let clients = declared::<Name>(blocks, BlockKind::Client.word(), &BLOCK, reporter);

    let mut policy = Policy::default();
    let known_hosts: BTreeSet<HostName> =
        hosts.iter().filter_map(|host| host.name.clone()).collect();
    let mut host_checker = host::HostChecker::default();
    let hosts = hosts
        .into_iter()
        .filter_map(|host| host_checker.check(host, reporter));
    policy.hosts = hosts.map(|host| (host.name.clone(), host)).collect();
    let users = users
        .into_iter()
        .filter_map(|users| users::check_users(users, groups, reporter));
    policy.users = users.map(|users| (users.name.clone(), users)).collect();
    let names = Names {
        users: &policy.users,
        hosts: &known_hosts,
        host_blocks: &policy.hosts,
        unions: RefCell::default(),
        reporter,
    };
    let mut service_checker = service::ServiceChecker::new(host_checker.controls());
    let services = services
        .into_iter()
        .filter_map(|service| service_checker.check(service, &names));
    policy.services = services
        .map(|service| (service.name.clone(), service))
        .collect();
    let mut client_checker = client::ClientChecker::default();
    let clients = clients
        .into_iter()
        .filter_map(|client| client_checker.check(client, &names));
    policy.clients = clients
        .map(|client| (client.name.clone(), client))
        .collect();
    let host = |name: &HostName| policy.hosts.get(name).map(|host| host.addresses.clone());
    policy.applications = usher_protection::check_applications(tree, host, reporter);
    policy.mac = usher_mac_blocks::check(tree, reporter);
    outside::check_outside(tree, &mut policy, reporter);
    policy.needs = Needs(tree.needs(reporter));
    policy
}

/// The names that services and clients may use.
struct Names<'p> {
    users: &'p BTreeMap<Name, Users>,
    hosts: &'p BTreeSet<HostName>,
    /// The hosts whose blocks have no mistake.
    host_blocks: &'p BTreeMap<HostName, Host>,
    /// The users of several blocks together, made once: thousands of services may name the same.
    unions: RefCell<BTreeMap<BTreeSet<Name>, Arc<Members>>>,
    reporter: &'p Reporter<'p>,
}

impl Names<'_> {
    /// Returns the host if the policy has it, and reports it otherwise.
    fn known_host(&self, found: HostName, item: &Item) -> Option<HostName> {
        if self.hosts.contains(&found) {
            return Some(found);
        }
        let nearest = nearest_name(found.as_ref(), self.hosts, self.reporter);
        let mistake = PolicyMistake::UnknownHost { found, nearest };
        self.reporter.refuse_unknown(item.location, mistake)
    }
}

/// Returns the defined name that is nearest to `found`. Does not search once the reporter is full, because no
/// one would see the result.
fn nearest_name<'n, N: AsRef<str> + 'n>(
    found: &str,
    names: impl IntoIterator<Item = &'n N>,
    reporter: &Reporter<'_>,
) -> Option<String> {
    if reporter.is_full() {
        None
    } else {
        nearest(found, names.into_iter().map(AsRef::as_ref))
    }
}
