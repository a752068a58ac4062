//! The rules of docs/man/usher-mac-te.7.md, written again: the model searches them one by one, by their
//! words.

use std::collections::{BTreeMap, BTreeSet};

use usher_mac_blocks::te::Class;

use crate::cases::{Case, DOMAINS, Element, Policy, TYPES};
use crate::{EACCES, EINVAL, EPERM};

/// The permissions that were refused, or would have been: by domain, object and class.
pub type Noted = BTreeMap<(String, String, Class), BTreeSet<&'static str>>;

pub struct Model<'p> {
    pub policy: &'p Policy,
    pub noted: Noted,
}

fn is_declared(name: &str) -> bool {
    DOMAINS.contains(&name)
        || TYPES.contains(&name)
        || ["unconfined", "untyped", "terminal"].contains(&name)
}

fn is_domain(name: &str) -> bool {
    name == "unconfined" || DOMAINS.contains(&name)
}

/// The name that rules are searched by; none for one that is not known.
pub fn name_of<'n>(element: &Element, usual: &'n str) -> Option<&'n str> {
    match element {
        Element::Nothing => Some(usual),
        Element::Unknown => None,
        Element::Of(name) => is_declared(name).then_some(*name),
    }
}

impl Case {
    pub fn class(&self) -> Class {
        match self.kind {
            4 => Class::Directory,
            10 => Class::Link,
            2 | 6 => Class::Device,
            1 => Class::Pipe,
            12 => Class::Socket,
            _ => Class::File,
        }
    }

    fn is_for_everybody(&self) -> bool {
        let is_harmless = self.special.0 == 1 && [3, 5, 7, 8, 9].contains(&self.special.1);
        self.kind == 0 || self.kind == 2 && self.object == Element::Nothing && is_harmless
    }

    pub fn usual(&self) -> &'static str {
        let is_terminal = match self.special {
            (4 | 136..=143 | 204 | 229, _) => true,
            (5, minor) => minor != 1,
            _ => false,
        };
        match self.kind {
            1 | 12 => "unconfined",
            2 if is_terminal => "terminal",
            _ => "untyped",
        }
    }

    /// The permissions that an access takes.
    pub fn wanted(&self) -> Vec<&'static str> {
        let has = |bit: u32| self.access & bit != 0;
        let is_directory = self.kind == 4;
        let mut wanted = Vec::new();
        if has(4) {
            wanted.push("read");
        }
        if has(1) {
            wanted.push(if is_directory { "search" } else { "execute" });
        }
        match (has(2), has(8)) {
            _ if is_directory => {}
            (_, true) if self.class() == Class::File => wanted.push("append"),
            (true, _) | (_, true) => wanted.push("write"),
            _ => {}
        }
        wanted
    }

    pub fn wanted_of_mapping(&self) -> Vec<&'static str> {
        let bits = [(self.permitted & 1, "read"), (self.permitted & 2, "write")];
        let bits = bits.into_iter().chain([(self.protection & 4, "execute")]);
        bits.filter(|(bit, _)| *bit != 0)
            .map(|(_, word)| word)
            .collect()
    }
}

impl Model<'_> {
    fn permissions(
        &self,
        domain: Option<&str>,
        object: Option<&str>,
        class: Class,
    ) -> Vec<&'static str> {
        let rules = self.policy.allow.iter();
        let rules = rules.filter(|rule| {
            Some(rule.domain) == domain
                && rule.class == class
                && (class == Class::Capability || Some(rule.object) == object)
        });
        rules.flat_map(|rule| rule.words.clone()).collect()
    }

    /// Whether a domain has permissions for an object.
    fn ask(
        &mut self,
        domain: Option<&str>,
        object: Option<&str>,
        class: Class,
        wanted: &[&'static str],
        error: i32,
    ) -> i32 {
        let permitted = self.permissions(domain, object, class);
        let lacking: Vec<_> = wanted
            .iter()
            .filter(|word| !permitted.contains(word))
            .collect();
        if lacking.is_empty() {
            return 0;
        }
        if let (Some(domain), Some(object)) = (domain, object) {
            let about = (domain.to_owned(), object.to_owned(), class);
            self.noted.entry(about).or_default().extend(lacking);
        }
        match domain {
            Some(domain) if self.policy.permissive.contains(&domain) => 0,
            _ => error,
        }
    }

    pub fn may(
        &mut self,
        own: &Element,
        object: &Element,
        usual: &str,
        class: Class,
        wanted: &[&'static str],
    ) -> i32 {
        if *own == Element::Nothing {
            return 0;
        }
        let (domain, object) = (name_of(own, "unconfined"), name_of(object, usual));
        self.ask(domain, object, class, wanted, EACCES)
    }

    pub fn may_file(&mut self, case: &Case, wanted: &[&'static str]) -> i32 {
        if case.is_for_everybody() {
            return 0;
        }
        self.may(&case.own, &case.object, case.usual(), case.class(), wanted)
    }

    /// Reads and writes of an open file.
    pub fn uses_open(&mut self, case: &Case) -> i32 {
        if case.is_for_everybody() {
            return 0;
        }
        let usual = case.usual();
        let mut wanted = case.wanted();
        let object = name_of(&case.object, usual);
        let permitted = self.permissions(name_of(&case.own, "unconfined"), object, Class::File);
        if case.class() == Class::File && !permitted.contains(&"write") {
            for word in &mut wanted {
                if *word == "write" {
                    *word = "append";
                }
            }
        }
        self.may(&case.own, &case.object, usual, case.class(), &wanted)
    }

    pub fn in_directory(&mut self, case: &Case, wanted: &[&'static str]) -> i32 {
        self.may(&case.own, &case.last, "untyped", Class::Directory, wanted)
    }

    fn created<'n>(
        &self,
        domain: Option<&'n str>,
        directory: Option<&'n str>,
        class: Class,
    ) -> Option<&'n str> {
        let mut rules = self.policy.creations.iter();
        let rule = rules.find(|(own, above, of, _)| {
            Some(*own) == domain && Some(*above) == directory && *of == class
        });
        rule.map(|(.., created)| *created).or(directory)
    }

    pub fn makes(&mut self, case: &Case, class: Class) -> i32 {
        if case.own == Element::Nothing {
            return 0;
        }
        match self.in_directory(case, &["add_name"]) {
            0 => {}
            refused => return refused,
        }
        let domain = name_of(&case.own, "unconfined");
        let created = self.created(domain, name_of(&case.last, "untyped"), class);
        self.ask(domain, created, class, &["create"], EACCES)
    }

    /// The answer about a change of a name: first about its directory, then about its file.
    pub fn changes_name(&mut self, case: &Case, above: &'static str, of_file: &'static str) -> i32 {
        match self.in_directory(case, &[above]) {
            0 => self.may_file(case, &[of_file]),
            refused => refused,
        }
    }

    pub fn of_new_file(&self, case: &Case) -> Element {
        let domain = name_of(&case.own, "unconfined");
        let above = name_of(&case.object, "untyped");
        match (self.created(domain, above, case.class()), &case.object) {
            (Some(created), _) => Element::Of(known(created)),
            (None, Element::Of(directory)) => Element::Of(directory),
            (None, _) => Element::Of("untyped"),
        }
    }

    /// The answer, and the element of the new program.
    pub fn new_program(&mut self, case: &Case) -> (i32, Element) {
        let program = name_of(&case.object, "untyped");
        let (next, element) = if case.last != case.own {
            if case.own == Element::Nothing {
                return (0, case.last.clone());
            }
            let next = match case.last {
                Element::Nothing => None,
                _ => name_of(&case.last, "unconfined"),
            };
            (next, case.last.clone())
        } else {
            let domain = name_of(&case.own, "unconfined");
            let mut rules = self.policy.transitions.iter();
            let rule = rules.find(|[own, of, _]| Some(*own) == domain && Some(*of) == program);
            let Some([.., next]) = rule else {
                return (0, case.last.clone());
            };
            (Some(*next), Element::Of(next))
        };
        let answer = self.ask(next, program, Class::File, &["entrypoint"], EACCES);
        (answer, element)
    }

    pub fn relabels_process(&mut self, case: &Case) -> i32 {
        let (former, wanted) = (&case.object, &case.last);
        let Element::Of(next) = wanted else {
            return EINVAL;
        };
        if !DOMAINS.contains(next) {
            return EINVAL;
        }
        if *former == Element::Nothing {
            return 0;
        }
        let domain = name_of(former, "unconfined");
        self.ask(domain, Some(*next), Class::Process, &["transition"], EPERM)
    }

    pub fn relabels_file(&self, case: &Case) -> i32 {
        let to = name_of(&case.last, "untyped");
        let Some(to) = to.filter(|name| !is_domain(name)) else {
            return EINVAL;
        };
        if case.own == Element::Nothing {
            return 0;
        }
        let (domain, from) = (name_of(&case.own, ""), name_of(&case.object, "untyped"));
        let mut rules = self.policy.relabels.iter();
        let is_permitted = rules.any(|[own, before, after]| {
            Some(*own) == domain && Some(*before) == from && *after == to
        });
        let is_permissive = domain.is_some_and(|domain| self.policy.permissive.contains(&domain));
        if is_permitted || is_permissive {
            0
        } else {
            EPERM
        }
    }

    pub fn uses_capability(&mut self, case: &Case, is_initial: bool) -> i32 {
        const WORDS: [(u32, &str); 4] = [
            (5, "kill"),
            (7, "setuid"),
            (21, "sys_admin"),
            (40, "checkpoint_restore"),
        ];
        if case.own == Element::Nothing || !is_initial {
            return 0;
        }
        let word = WORDS.iter().find(|(number, _)| *number == case.capability);
        let domain = name_of(&case.own, "unconfined");
        match word {
            Some((_, word)) => self.ask(domain, domain, Class::Capability, &[*word], EPERM),
            None if case.capability >= 64 => EPERM,
            // A capability without a name.
            None => match domain {
                Some(domain) if self.policy.permissive.contains(&domain) => 0,
                _ => EPERM,
            },
        }
    }
}

fn known(name: &str) -> &'static str {
    let all = [DOMAINS, TYPES].concat();
    let all = all.into_iter().chain(["unconfined", "untyped", "terminal"]);
    all.into_iter().find(|own| *own == name).unwrap()
}
