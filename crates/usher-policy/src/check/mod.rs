//! Blocks and statements to a [`Policy`]: what each statement means, names resolved, uniqueness kept.
//!
//! Order matters only inside: hosts and users first, since services and clients name them. A
//! block with a mistake still lends its name to the resolution of the others, so that one mistake
//! is one error.

mod application;
mod client;
mod connect;
mod expect;
mod fields;
mod files;
mod host;
mod limits;
mod mac;
mod peers;
mod served_by;
mod service;
mod unique;
mod users;
mod values;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use usher_proto::HostName;

use crate::error::{NameKind, PolicyErrorKind};
use crate::group::Groups;
use crate::include::is_path;
use crate::keywords::{BlockKind, outer_rule};
use crate::model::Policy;
use crate::name::Name;
use crate::report::Reporter;
use crate::source::Location;
use crate::tree::{Block, Tree};

/// Checks what the sources have, and in `groups` who is in the groups that they name. The policy is
/// whole only if the reporter stays empty.
pub(crate) fn check(tree: &Tree, groups: &Groups, reporter: &mut Reporter<'_>) -> Policy {
    let blocks = &tree.blocks;
    let hosts = declared::<HostName>(blocks, BlockKind::Host, NameKind::Host, reporter);
    let users = declared::<Name>(blocks, BlockKind::Users, NameKind::Block, reporter);
    let services = declared(blocks, BlockKind::Service, NameKind::Service, reporter);
    let clients = declared(blocks, BlockKind::Client, NameKind::Block, reporter);
    let modules = declared(blocks, BlockKind::Mac, NameKind::Block, reporter);

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
        let users = users::check(name, block, groups, reporter);
        if let Some(users) = users {
            policy.users.insert(users.name.clone(), users);
        }
    }
    let names = Names {
        users: &policy.users,
        hosts: &known_hosts,
        host_blocks: &policy.hosts,
        unions: RefCell::default(),
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
    let mut applications = application::ApplicationChecker::new(&policy.hosts);
    policy.applications = blocks
        .iter()
        .filter(|block| block.kind == BlockKind::Application)
        .filter_map(|block| applications.check(block, reporter))
        .collect();
    policy.mac = modules
        .into_iter()
        .filter_map(|Declared { name, block }| mac::check(name?, block, reporter))
        .collect();
    check_statements(tree, &mut policy, reporter);
    policy
}

/// The statements outside of blocks.
fn check_statements(tree: &Tree, policy: &mut Policy, reporter: &mut Reporter<'_>) {
    let mut limit: Option<Location> = None;
    for statement in &tree.statements {
        let Some(rule) = outer_rule(&statement.keyword) else {
            continue;
        };
        let field = fields::Field { rule, statement };
        match rule.keyword {
            "include" => check_include(field, reporter),
            "limit" => match limit {
                None => {
                    limit = Some(statement.location);
                    policy.each_user = limits::each_user(field, reporter).unwrap_or_default();
                }
                Some(first) => reporter.report_repeated(statement.location, first, |first| {
                    PolicyErrorKind::RepeatedOuterStatement {
                        statement: rule.keyword,
                        first,
                    }
                }),
            },
            _ => policy.expectations.extend(expect::check(field, reporter)),
        }
    }
}

/// `include "PATH";`, which the caller has followed.
fn check_include(field: fields::Field<'_>, reporter: &mut Reporter<'_>) {
    let Some(item) = field.single(reporter) else {
        return;
    };
    let Some(found) = values::text(item, reporter) else {
        return;
    };
    if !is_path(found) {
        let found = found.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidInclude { found });
    }
}

/// What services and clients may name.
struct Names<'p> {
    users: &'p BTreeMap<Name, crate::Users>,
    hosts: &'p BTreeSet<HostName>,
    /// Those hosts whose blocks are right.
    host_blocks: &'p BTreeMap<HostName, crate::Host>,
    /// The users of several blocks together, made once: thousands of services may name the same.
    unions: RefCell<BTreeMap<BTreeSet<Name>, Arc<crate::Members>>>,
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
