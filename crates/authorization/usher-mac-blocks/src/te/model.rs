//! The settings as data, and their canonical form.

use std::collections::{BTreeMap, BTreeSet};

use usher_language::{Origin, joined};

use super::{
    ALLOW, ATTRIBUTE, CREATE, Class, DOMAIN, PERMISSIVE, RELABEL, TRANSITION, TYPE, TypeName,
};

/// The settings of the module. Default: no domain, so that no process is in one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeEnforcement {
    /// The domains, each with its place in the text.
    pub domains: BTreeMap<TypeName, Origin>,
    /// The types.
    pub types: BTreeMap<TypeName, Origin>,
    /// The members of attributes: domains, or else types.
    pub attributes: BTreeMap<TypeName, BTreeSet<TypeName>>,
    /// Domains to which nothing is refused.
    pub permissive: Permissive,
    /// The permissions of domains, as the text has them: with attributes and `self`.
    pub allow: BTreeMap<AllowedWhat, (BTreeSet<&'static str>, Origin)>,
    /// By a domain and the type of a program: the domain that the process gets.
    pub transitions: BTreeMap<(TypeName, TypeName), (TypeName, Origin)>,
    /// The types of what domains make.
    pub creations: BTreeMap<CreatedWhere, (TypeName, Origin)>,
    /// A domain, and the former and the new type of a file.
    pub relabels: BTreeMap<(TypeName, TypeName, TypeName), Origin>,
}

/// Which domains are permissive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permissive {
    /// All.
    Any,
    /// These.
    Domains(BTreeSet<TypeName>),
}

impl Default for Permissive {
    fn default() -> Self {
        Self::Domains(BTreeSet::new())
    }
}

/// The domain and the objects of an `allow`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllowedWhat {
    /// A domain, or an attribute of domains.
    pub domain: TypeName,
    /// A type, a domain, an attribute, or `self`.
    pub object: TypeName,
    /// The class of the objects.
    pub class: Class,
}

/// The domain and the directory of a `create`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CreatedWhere {
    /// The domain of the process.
    pub domain: TypeName,
    /// The type of the directory.
    pub directory: TypeName,
    /// The class of what is made.
    pub class: Class,
}

impl AllowedWhat {
    /// The statement with these permissions, without `;`.
    pub fn statement<'w>(&self, permissions: impl IntoIterator<Item = &'w str>) -> String {
        let (domain, object, class) = (&self.domain, &self.object, self.class);
        let permissions = joined(permissions, " ");
        format!("{ALLOW} {domain} {object} {class} {permissions}")
    }
}

impl TypeEnforcement {
    /// The statements in their canonical form, without `;`.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let names = |keyword: &'static str, names: &BTreeMap<TypeName, Origin>| -> Vec<String> {
            let names = names.keys().map(|name| format!("{keyword} {name}"));
            names.collect()
        };
        lines.extend(names(DOMAIN, &self.domains));
        lines.extend(names(TYPE, &self.types));
        for (name, members) in &self.attributes {
            lines.push(format!("{ATTRIBUTE} {name} {}", joined(members, " ")));
        }
        match &self.permissive {
            Permissive::Any => lines.push(format!("{PERMISSIVE} any")),
            Permissive::Domains(domains) if domains.is_empty() => {}
            Permissive::Domains(domains) => {
                lines.push(format!("{PERMISSIVE} {}", joined(domains, ", ")));
            }
        }
        for (what, (permissions, _)) in &self.allow {
            lines.push(what.statement(permissions.iter().copied()));
        }
        for ((domain, program), (next, _)) in &self.transitions {
            lines.push(format!("{TRANSITION} {domain} {program} {next}"));
        }
        for (place, (created, _)) in &self.creations {
            let (domain, directory, class) = (&place.domain, &place.directory, place.class);
            lines.push(format!("{CREATE} {domain} {directory} {class} {created}"));
        }
        for (domain, from, to) in self.relabels.keys() {
            lines.push(format!("{RELABEL} {domain} {from} {to}"));
        }
        lines
    }

    /// Whether nothing is refused to a domain.
    pub fn is_permissive(&self, domain: &TypeName) -> bool {
        match &self.permissive {
            Permissive::Any => true,
            Permissive::Domains(domains) => domains.contains(domain),
        }
    }
}
