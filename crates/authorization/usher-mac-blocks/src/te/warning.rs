//! Statements that are allowed but probably not meant.

use std::fmt;

use usher_language::Origin;

use super::{Class, CreatedWhere, Permissive, TypeEnforcement, TypeName, UNCONFINED};

/// A statement that has no effect, or another than it seems. Displays as an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeWarning {
    /// The statement; none for a part of the block.
    pub origin: Option<Origin>,
    explanation: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for TypeWarning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.explanation)
    }
}

impl TypeEnforcement {
    /// All warnings, in the order of the canonical form.
    pub fn warnings(&self) -> Vec<TypeWarning> {
        let mut warnings = Vec::new();
        self.warn_of_permissive(&mut warnings);
        self.warn_of_empty_classes(&mut warnings);
        for ((domain, program), (next, origin)) in &self.transitions {
            self.warn_of_transition(domain, program, next, origin, &mut warnings);
        }
        for (place, (created, origin)) in &self.creations {
            self.warn_of_creation(place, created, origin, &mut warnings);
        }
        warnings
    }

    fn warn_of_permissive(&self, warnings: &mut Vec<TypeWarning>) {
        let whom = match &self.permissive {
            Permissive::Domains(domains) if domains.is_empty() => return,
            Permissive::Any => "any".to_owned(),
            Permissive::Domains(domains) => usher_language::joined(domains, ", "),
        };
        warnings.push(TypeWarning {
            origin: None,
            explanation: format!("`permissive {whom}`: nothing is refused to these domains"),
            remedy: "complete their rules (`usher mac learn`), then remove the statement"
                .to_owned(),
        });
    }

    /// Warns of an `allow` about no object. Objects of some classes have only domains, others only types.
    fn warn_of_empty_classes(&self, warnings: &mut Vec<TypeWarning>) {
        for (what, (_, origin)) in &self.allow {
            let is_of_domains = self.expand(what).any(|one| self.is_domain(one.object));
            let (has, lacks) = match is_of_domains {
                true if what.class.is_of_domains() => continue,
                false if what.class.is_of_files() => continue,
                true => ("a domain", "a type"),
                false => ("a type", "a domain"),
            };
            let (class, object) = (what.class, &what.object);
            warnings.push(TypeWarning {
                origin: Some(origin.clone()),
                explanation: format!(
                    "this `allow` permits nothing: `{object}` is {has}, and objects of class {class} have \
                     {lacks}"
                ),
                remedy: format!("name {lacks} in place of `{object}`, or remove the statement"),
            });
        }
    }

    fn is_domain(&self, name: &TypeName) -> bool {
        name.as_ref() == UNCONFINED || self.domains.contains_key(name)
    }

    fn warn_of_transition(
        &self,
        domain: &TypeName,
        program: &TypeName,
        next: &TypeName,
        origin: &Origin,
        warnings: &mut Vec<TypeWarning>,
    ) {
        // The kernel reads a program for the first domain, and maps it for the second one.
        let needs = [
            (domain, "execute"),
            (domain, "read"),
            (next, "entrypoint"),
            (next, "read"),
            (next, "execute"),
        ];
        for (whose, permission) in needs {
            if whose.as_ref() == UNCONFINED
                || self.is_permissive(whose)
                || self.permits(whose, program, Class::File, permission)
            {
                continue;
            }
            warnings.push(TypeWarning {
                origin: Some(origin.clone()),
                explanation: format!(
                    "this `transition` is refused: `{whose}` lacks the permission {permission} for \
                     `{program}`"
                ),
                remedy: format!("write `allow {whose} {program} file {permission};`"),
            });
        }
    }

    fn warn_of_creation(
        &self,
        place: &CreatedWhere,
        created: &TypeName,
        origin: &Origin,
        warnings: &mut Vec<TypeWarning>,
    ) {
        let (domain, class) = (&place.domain, place.class);
        if domain.as_ref() == UNCONFINED || self.is_permissive(domain) {
            return;
        }
        let needs = [
            (&place.directory, Class::Directory, "add_name"),
            (created, class, "create"),
        ];
        for (of, class, permission) in needs {
            if self.permits(domain, of, class, permission) {
                continue;
            }
            warnings.push(TypeWarning {
                origin: Some(origin.clone()),
                explanation: format!(
                    "this `create` is refused: `{domain}` lacks the permission {permission} for `{of}`"
                ),
                remedy: format!("write `allow {domain} {of} {class} {permission};`"),
            });
        }
    }
}
