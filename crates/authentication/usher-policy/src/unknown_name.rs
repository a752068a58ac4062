//! Names in `expect` statements that the policy lacks.

use std::collections::BTreeSet;

use serde::Serialize;
use usher_base::HostName;
use usher_language::{MAXIMUM_ERRORS, Place, nearest, words};

use crate::model::Expectation;
use crate::model::Policy;

/// A name in an `expect` statement that nothing in the policy has: a slip, or what it named was
/// removed. The statement tests nothing then.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnknownName {
    /// The place of the statement.
    pub place: Place,
    /// The kind of thing that the name should belong to.
    pub kind: ExpectedKind,
    /// The name.
    pub name: String,
    /// The name that was most likely meant. Looked for in the first [`MAXIMUM_ERRORS`] only.
    pub nearest: Option<String>,
}

words! {
    /// The kinds of things that an `expect` statement names.
    pub enum ExpectedKind {
        /// A user of a `users` block.
        User = "user",
        /// A host with a `host` block.
        Host = "host",
        /// A service with a `service` block, or of a `client` block.
        Service = "service",
    }
}

impl std::fmt::Display for UnknownName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.name;
        match self.kind {
            ExpectedKind::User => write!(formatter, "no `users` block has the user `{name}`"),
            ExpectedKind::Host => write!(formatter, "no `host` block is called `{name}`"),
            ExpectedKind::Service => write!(
                formatter,
                "no `service` block is called `{name}`, and no `client` block names such a service"
            ),
        }?;
        match &self.nearest {
            Some(nearest) => write!(formatter, "; did you mean `{nearest}`?"),
            None => Ok(()),
        }
    }
}

impl Policy {
    /// The names in `expect` statements that this policy lacks, in the order of the statements.
    /// If a `users` block has a group or a principal, every user may be one: no user is unknown.
    pub fn unknown_names<'p>(&'p self) -> Vec<UnknownName> {
        if self.expectations.is_empty() {
            return Vec::new();
        }
        let blocks = self.users.values();
        let anybody = blocks
            .clone()
            .any(|block| !block.principals.is_empty() || !block.groups.is_empty());
        let users: BTreeSet<&str> = blocks
            .flat_map(|block| block.users().chain(block.former.keys()))
            .map(AsRef::as_ref)
            .collect();
        let hosts: BTreeSet<&str> = self.hosts.keys().map(AsRef::as_ref).collect();
        let offered = self.services.keys();
        let wanted = self.client_services().map(|entry| &entry.service);
        let services: BTreeSet<&str> = offered.chain(wanted).map(AsRef::as_ref).collect();
        let mut unknown = Vec::new();
        for expectation in &self.expectations {
            let Expectation {
                user,
                from,
                service,
                at,
                origin,
                ..
            } = expectation;
            let user = (!anybody).then_some((ExpectedKind::User, user.as_ref(), &users));
            let host = |host: &'p HostName| (ExpectedKind::Host, host.as_ref(), &hosts);
            let (from, at) = (from.as_ref().map(host), at.as_ref().map(host));
            let service = Some((ExpectedKind::Service, service.as_ref(), &services));
            for (kind, name, known) in [user, from, service, at].into_iter().flatten() {
                if known.contains(name) {
                    continue;
                }
                let near = unknown.len() < MAXIMUM_ERRORS;
                unknown.push(UnknownName {
                    place: origin.place.clone(),
                    kind,
                    name: name.to_owned(),
                    nearest: near.then(|| nearest(name, known.iter().copied())).flatten(),
                });
            }
        }
        unknown
    }
}
