//! Rules without attributes and `self`, one for each domain, type and class.

use std::slice;

use super::{AllowedWhat, Class, SELF, TypeEnforcement, TypeName};

/// An `allow` about one domain and one type or domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpandedAllow<'p> {
    /// The domain.
    pub domain: &'p TypeName,
    /// The type or domain of the objects.
    pub object: &'p TypeName,
    /// Their class.
    pub class: Class,
}

impl TypeEnforcement {
    /// The domains or types that a name of a statement means.
    fn members<'p>(&'p self, name: &'p TypeName) -> impl Iterator<Item = &'p TypeName> {
        let members = self.attributes.get(name);
        let own: &[TypeName] = match members {
            Some(_) => &[],
            None => slice::from_ref(name),
        };
        own.iter().chain(members.into_iter().flatten())
    }

    /// The parts of an `allow`: for one domain, and one type or domain each.
    pub fn expand<'p>(&'p self, what: &'p AllowedWhat) -> impl Iterator<Item = ExpandedAllow<'p>> {
        self.members(&what.domain).flat_map(move |domain| {
            let is_self = what.object.as_ref() == SELF;
            let object = if is_self { domain } else { &what.object };
            self.members(object).map(move |object| ExpandedAllow {
                domain,
                object,
                class: what.class,
            })
        })
    }

    /// Whether a domain has a permission.
    pub(super) fn permits(
        &self,
        domain: &TypeName,
        object: &TypeName,
        class: Class,
        permission: &str,
    ) -> bool {
        let wanted = ExpandedAllow {
            domain,
            object,
            class,
        };
        let allow = self.allow.iter();
        let mut allow = allow.filter(|(what, (permissions, _))| {
            what.class == class && permissions.contains(permission)
        });
        allow.any(|(what, _)| self.expand(what).any(|one| one == wanted))
    }
}
