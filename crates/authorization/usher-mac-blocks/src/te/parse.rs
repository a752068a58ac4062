//! A block's words to data.

use std::collections::{BTreeMap, BTreeSet};

use usher_language::{Field, Fields, Found, Item, Reporter, Unique, joined};

use super::model::{AllowedWhat, CreatedWhere, Permissive, TypeEnforcement};
use super::{
    ALLOW, ATTRIBUTE, CREATE, Class, DOMAIN, PERMISSIVE, RELABEL, RESERVED, SELF, TERMINAL,
    TRANSITION, TYPE, TypeName, UNCONFINED, UNTYPED,
};
use crate::limits::{MAXIMUM_ATTRIBUTES, MAXIMUM_NAMES, MAXIMUM_RELABELS, MAXIMUM_TYPE_RULES};
use crate::mistake::MacMistake;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    Domain,
    Type,
    /// An attribute of domains, or else of types.
    Attribute {
        of_domains: bool,
    },
}

/// The settings of a block; what has mistakes is left out.
pub(crate) fn settings(fields: &Fields<'_>, reporter: &Reporter<'_>) -> TypeEnforcement {
    let mut reading = Reading {
        reporter,
        settings: TypeEnforcement::default(),
        listed: Unique::default(),
        rules: 0,
    };
    reading.declarations(fields);
    reading.attributes(fields);
    reading.permissive(fields);
    for field in fields.all(ALLOW) {
        if reading.allow(field).is_none() && reporter.is_full() {
            break;
        }
    }
    for field in fields.all(TRANSITION) {
        reading.transition(field);
    }
    for field in fields.all(CREATE) {
        reading.creation(field);
    }
    reading.relabels(fields);
    reading.settings
}

struct Reading<'r> {
    reporter: &'r Reporter<'r>,
    settings: TypeEnforcement,
    listed: Unique<TypeName>,
    rules: usize,
}

impl Reading<'_> {
    fn declarations(&mut self, fields: &Fields<'_>) {
        for keyword in [DOMAIN, TYPE] {
            for field in fields.all(keyword) {
                for (_, item) in field.words() {
                    self.declaration(keyword, field, item);
                }
            }
        }
    }

    fn declaration(&mut self, keyword: &str, field: &Field<'_>, item: &Item) -> Option<()> {
        let name = self.new_name(field, item)?;
        let settings = &mut self.settings;
        if settings.domains.len() + settings.types.len() == MAXIMUM_NAMES {
            return field.refuse(item, MacMistake::TooManyTypeNames);
        }
        let names = match keyword {
            DOMAIN => &mut settings.domains,
            _ => &mut settings.types,
        };
        let place = self.reporter.origin(item.location, item.location);
        names.insert(name, place);
        Some(())
    }

    /// A name that this statement declares.
    fn new_name(&mut self, field: &Field<'_>, item: &Item) -> Option<TypeName> {
        let name = read_name(field, item)?;
        if RESERVED.contains(&name.as_ref()) {
            let reserved = joined(RESERVED, ", ");
            return field.refuse(
                item,
                MacMistake::ReservedTypeName {
                    found: found(item),
                    reserved,
                },
            );
        }
        let repeated = |first| MacMistake::RepeatedTypeName {
            found: found(item),
            first,
        };
        self.listed
            .take(name.clone(), item, self.reporter, repeated)?;
        Some(name)
    }

    fn attributes(&mut self, fields: &Fields<'_>) {
        for field in fields.all(ATTRIBUTE) {
            self.attribute(field);
        }
    }

    fn attribute(&mut self, field: &Field<'_>) -> Option<()> {
        let (name, members) = field.sequence()?.split_first()?;
        let name = self.new_name(field, name)?;
        let Some(first) = members.first() else {
            return field.missing();
        };
        if self.settings.attributes.len() == MAXIMUM_ATTRIBUTES {
            return field.refuse(first, MacMistake::TooManyAttributes);
        }
        let mut named = BTreeSet::new();
        let mut kind = None;
        for item in members {
            let (member, stands) = self.known(field, item)?;
            if matches!(stands, Stands::Attribute { .. }) || *kind.get_or_insert(stands) != stands {
                let found = found(item);
                return field.refuse(item, MacMistake::MixedAttribute { found });
            }
            named.insert(member);
        }
        self.settings.attributes.insert(name, named);
        Some(())
    }

    fn permissive(&mut self, fields: &Fields<'_>) {
        let mut domains = BTreeSet::new();
        for field in fields.all(PERMISSIVE) {
            if field.is_any() {
                self.settings.permissive = Permissive::Any;
                return;
            }
            for (_, item) in field.words() {
                domains.extend(self.domain(field, item));
            }
        }
        self.settings.permissive = Permissive::Domains(domains);
    }

    /// A name that some statement declares, or that always exists.
    fn known(&self, field: &Field<'_>, item: &Item) -> Option<(TypeName, Stands)> {
        let name = read_name(field, item)?;
        let settings = &self.settings;
        let stands = match name.as_ref() {
            UNCONFINED => Stands::Domain,
            UNTYPED | TERMINAL => Stands::Type,
            known if settings.domains.contains_key(known) => Stands::Domain,
            known if settings.types.contains_key(known) => Stands::Type,
            known => {
                let members = settings.attributes.get(known);
                let first = members.and_then(BTreeSet::first);
                let Some(first) = first else {
                    let found = found(item);
                    return field.refuse(item, MacMistake::UndeclaredTypeName { found });
                };
                let of_domains =
                    first.as_ref() == UNCONFINED || settings.domains.contains_key(first);
                Stands::Attribute { of_domains }
            }
        };
        Some((name, stands))
    }

    /// A declared domain.
    fn domain(&self, field: &Field<'_>, item: &Item) -> Option<TypeName> {
        match self.known(field, item)? {
            (name, Stands::Domain) if name.as_ref() != UNCONFINED => Some(name),
            _ => field.refuse(item, MacMistake::NotADomain { found: found(item) }),
        }
    }

    /// A declared domain, or the one of processes without an element.
    fn any_domain(&self, field: &Field<'_>, item: &Item) -> Option<TypeName> {
        match self.known(field, item)? {
            (name, Stands::Domain) => Some(name),
            _ => field.refuse(item, MacMistake::NotADomain { found: found(item) }),
        }
    }

    fn file_type(&self, field: &Field<'_>, item: &Item) -> Option<TypeName> {
        match self.known(field, item)? {
            (name, Stands::Type) => Some(name),
            _ => field.refuse(item, MacMistake::NotAType { found: found(item) }),
        }
    }

    fn allow(&mut self, field: &Field<'_>) -> Option<()> {
        let [domain, object, class, permissions @ ..] = field.sequence()? else {
            return field.missing();
        };
        let what = self.what(field, [domain, object, class])?;
        if permissions.is_empty() {
            return field.missing();
        }
        let mut permitted = BTreeSet::new();
        for item in permissions {
            let word = item.word().or_else(|| field.expected_word(item))?;
            let Some(permission) = what.class.permission(word) else {
                let mistake = MacMistake::UnknownPermission {
                    class: what.class.word(),
                    found: found(item),
                    permissions: joined(what.class.permissions(), ", "),
                };
                return field.refuse(item, mistake);
            };
            permitted.insert(permission);
        }
        if !self.settings.allow.contains_key(&what) {
            let rules = self.settings.expand(&what).count();
            self.count(rules, field, domain)?;
        }
        let origin = field.origin();
        let (all, _) = self
            .settings
            .allow
            .entry(what)
            .or_insert_with(|| (BTreeSet::new(), origin));
        all.extend(permitted);
        Some(())
    }

    fn what(&self, field: &Field<'_>, [domain, object, class]: [&Item; 3]) -> Option<AllowedWhat> {
        let (named, stands) = self.known(field, domain)?;
        match stands {
            Stands::Domain | Stands::Attribute { of_domains: true } => {}
            _ => {
                return field.refuse(
                    domain,
                    MacMistake::NotADomain {
                        found: found(domain),
                    },
                );
            }
        }
        let members = self.settings.attributes.get(&named);
        if named.as_ref() == UNCONFINED || members.is_some_and(|all| all.contains(UNCONFINED)) {
            return field.refuse(domain, MacMistake::AllowsUnconfined);
        }
        let word = class.word().or_else(|| field.expected_word(class))?;
        let Some(class) = Class::of_word(word) else {
            let classes = joined(Class::ALL, ", ");
            return field.refuse(
                class,
                MacMistake::UnknownClass {
                    found: found(class),
                    classes,
                },
            );
        };
        let is_self = object.is_word(SELF);
        if class == Class::Capability && !is_self {
            let found = found(object);
            return field.refuse(object, MacMistake::CapabilityOfOthers { found });
        }
        let object = if is_self {
            read_name(field, object)?
        } else {
            self.known(field, object)?.0
        };
        Some(AllowedWhat {
            domain: named,
            object,
            class,
        })
    }

    /// Counts rules; none where they are too many.
    fn count(&mut self, rules: usize, field: &Field<'_>, item: &Item) -> Option<()> {
        if self.rules + rules > MAXIMUM_TYPE_RULES {
            return field.refuse(item, MacMistake::TooManyTypeRules);
        }
        self.rules += rules;
        Some(())
    }

    fn transition(&mut self, field: &Field<'_>) -> Option<()> {
        let [Some(domain), Some(program), Some(next)] = field.parts()? else {
            return None;
        };
        let key = (
            self.any_domain(field, domain)?,
            self.file_type(field, program)?,
        );
        let target = self.domain(field, next)?;
        let transitions = &self.settings.transitions;
        if let Some((_, first)) = transitions.get(&key) {
            let first = first.place.clone();
            return field.refuse(domain, MacMistake::RepeatedTransition { first });
        }
        self.count(1, field, domain)?;
        let place = field.origin();
        self.settings.transitions.insert(key, (target, place));
        Some(())
    }

    fn creation(&mut self, field: &Field<'_>) -> Option<()> {
        let [Some(domain), Some(directory), Some(class), Some(created)] = field.parts()? else {
            return None;
        };
        let key = CreatedWhere {
            domain: self.any_domain(field, domain)?,
            directory: self.file_type(field, directory)?,
            class: Class::of_word(class.word()?)?,
        };
        let created = self.file_type(field, created)?;
        if let Some((_, first)) = self.settings.creations.get(&key) {
            let first = first.place.clone();
            return field.refuse(domain, MacMistake::RepeatedCreation { first });
        }
        self.count(1, field, domain)?;
        let place = field.origin();
        self.settings.creations.insert(key, (created, place));
        Some(())
    }

    fn relabels(&mut self, fields: &Fields<'_>) {
        if let Some(field) = fields.all(RELABEL).nth(MAXIMUM_RELABELS) {
            let mistake = MacMistake::TooManyRelabels;
            self.reporter.report(field.statement.location, mistake);
        }
        let relabels = fields.all(RELABEL).take(MAXIMUM_RELABELS);
        let relabels = relabels.filter_map(|field| {
            let [Some(domain), Some(from), Some(to)] = field.parts()? else {
                return None;
            };
            let domain = self.domain(field, domain)?;
            let (from, to) = (self.file_type(field, from)?, self.file_type(field, to)?);
            Some(((domain, from, to), field.origin()))
        });
        let relabels: BTreeMap<_, _> = relabels.collect();
        self.settings.relabels = relabels;
    }
}

fn found(item: &Item) -> Found {
    Found(item.shown())
}

/// Reads a word as a name.
fn read_name(field: &Field<'_>, item: &Item) -> Option<TypeName> {
    let word = item.word().or_else(|| field.expected_word(item))?;
    match word.parse() {
        Ok(name) => Some(name),
        Err(_) => field.refuse(item, MacMistake::InvalidTypeName { found: found(item) }),
    }
}
