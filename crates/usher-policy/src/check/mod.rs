//! Blocks to a [`Policy`]: what each statement means, names resolved, uniqueness kept.
//!
//! Order matters only inside: hosts and users first, since services and clients name them. A
//! block with a mistake still lends its name to the resolution of the others, so that one mistake
//! is one error.

mod client;
mod fields;
mod host;
mod served_by;
mod service;
mod unique;
mod users;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use usher_proto::HostName;

use crate::error::{NameKind, PolicyErrorKind};
use crate::keywords::BlockKind;
use crate::model::Policy;
use crate::name::Name;
use crate::report::Reporter;
use crate::syntax::Block;

/// Checks the blocks. The policy is whole only if the reporter stays empty.
pub(crate) fn check(blocks: &[Block], reporter: &mut Reporter<'_>) -> Policy {
    let hosts = declared::<HostName>(blocks, BlockKind::Host, NameKind::Host, reporter);
    let users = declared::<Name>(blocks, BlockKind::Users, NameKind::Block, reporter);
    let services = declared(blocks, BlockKind::Service, NameKind::Service, reporter);
    let clients = declared(blocks, BlockKind::Client, NameKind::Block, reporter);

    let mut policy = Policy::default();
    let known_hosts: BTreeSet<HostName> = hosts
        .iter()
        .filter_map(|declared| declared.name.clone())
        .collect();

    let mut host_checker = host::HostChecker::default();
    for Declared { name, block } in hosts {
        if let Some(host) = host_checker.check(name, block, reporter) {
            policy.hosts.insert(host.name.clone(), host);
        }
    }
    for Declared { name, block } in users {
        let members = users::check(block, reporter);
        if let Some(name) = name {
            policy
                .users
                .insert(name.clone(), crate::Users { name, members });
        }
    }
    let names = Names {
        users: &policy.users,
        hosts: &known_hosts,
    };
    let mut service_checker = service::ServiceChecker::new(host_checker.controls());
    for Declared { name, block } in services {
        if let Some(service) = service_checker.check(name, block, &names, reporter) {
            policy.services.insert(service.name.clone(), service);
        }
    }
    let mut client_checker = client::ClientChecker::default();
    for Declared { name, block } in clients {
        if let Some(client) = client_checker.check(name, block, &names, reporter) {
            policy.clients.insert(client.name.clone(), client);
        }
    }
    policy
}

/// What services and clients may name.
struct Names<'p> {
    users: &'p BTreeMap<Name, crate::Users>,
    hosts: &'p BTreeSet<HostName>,
}

/// A block and the name that it defines; none when the name is missing, invalid or taken.
struct Declared<'b, N> {
    name: Option<N>,
    block: &'b Block,
}

fn declared<'b, N: FromStr + AsRef<str> + Ord + Clone>(
    blocks: &'b [Block],
    kind: BlockKind,
    name_kind: NameKind,
    reporter: &mut Reporter<'_>,
) -> Vec<Declared<'b, N>> {
    let mut taken = unique::Unique::default();
    blocks
        .iter()
        .filter(|block| block.kind == kind)
        .map(|block| {
            let name = block.name.as_ref().and_then(|item| {
                let name: N = values::name(item, name_kind, reporter)?;
                if let Some(first) = taken.claim(name.clone(), item.location) {
                    reporter.report_repeated(item.location, first, |first| {
                        let name = item.shown();
                        PolicyErrorKind::DuplicateBlock {
                            block: kind,
                            name,
                            first,
                        }
                    });
                    return None;
                }
                Some(name)
            });
            Declared { name, block }
        })
        .collect()
}
