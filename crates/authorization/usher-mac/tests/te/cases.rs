//! Policies, processes and objects about which the module is asked.

use proptest::prelude::*;
use usher_label::{NameValue, TypedValue};
use usher_mac_blocks::ModuleSettings;
use usher_mac_blocks::te::{Class, TypeEnforcement};

use crate::block::block;

/// An element as the module sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    Nothing,
    Unknown,
    Of(&'static str),
}

pub fn name(text: &str) -> NameValue {
    text.parse().unwrap()
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Element {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Of(text) => TypedValue::Name(name(text)).to_bytes().to_vec(),
            Self::Nothing => vec![0; 120],
            Self::Unknown => {
                let mut bytes = vec![0; 120];
                bytes[..4].copy_from_slice(&5u32.to_ne_bytes());
                bytes
            }
        }
    }
}

pub const DOMAINS: [&str; 3] = [
    "imapd",
    "web",
    "a_domain_whose_name_has_the_full_length_of_sixty_three_letters_",
];
pub const TYPES: [&str; 3] = ["mail", "spool", "12345678"];

/// The permissions that the rules of a case are drawn from.
pub fn permissions(class: Class) -> Vec<&'static str> {
    match class {
        Class::Capability => vec!["kill", "setuid", "sys_admin", "checkpoint_restore"],
        _ => class.permissions().to_vec(),
    }
}

/// A rule with its words, which the model reads.
#[derive(Debug, Clone)]
pub struct Allow {
    pub domain: &'static str,
    pub object: &'static str,
    pub class: Class,
    pub words: Vec<&'static str>,
}

#[derive(Debug, Clone)]
pub struct Policy {
    pub permissive: Vec<&'static str>,
    pub allow: Vec<Allow>,
    /// Domain, type of the program, new domain; the first two once.
    pub transitions: Vec<[&'static str; 3]>,
    /// Domain, type of the directory, class, type; the first three once.
    pub creations: Vec<(&'static str, &'static str, Class, &'static str)>,
    pub relabels: Vec<[&'static str; 3]>,
}

impl Policy {
    pub fn settings(&self) -> TypeEnforcement {
        let (domains, types) = (DOMAINS.join(", "), TYPES.join(", "));
        let mut statements = vec![format!("domain {domains}"), format!("type {types}")];
        if !self.permissive.is_empty() {
            statements.push(format!("permissive {}", self.permissive.join(", ")));
        }
        statements.extend(self.allow.iter().map(|rule| {
            let (domain, class, words) = (rule.domain, rule.class, rule.words.join(" "));
            // The model does not look at the object of a capability either.
            let is_capability = class == Class::Capability;
            let object = if is_capability { "self" } else { rule.object };
            format!("allow {domain} {object} {class} {words}")
        }));
        let transitions = self.transitions.iter();
        statements.extend(transitions.map(|names| format!("transition {}", names.join(" "))));
        let creations = self.creations.iter();
        statements.extend(creations.map(|(domain, directory, class, created)| {
            format!("create {domain} {directory} {class} {created}")
        }));
        let relabels = self.relabels.iter();
        statements.extend(relabels.map(|names| format!("relabel {}", names.join(" "))));
        read(&format!("{};", statements.join("; ")))
    }
}

/// The settings of these statements.
pub fn read(statements: &str) -> TypeEnforcement {
    match block("te", statements) {
        ModuleSettings::Te(types) => types,
        other => panic!("{other:?}"),
    }
}

fn domain() -> impl Strategy<Value = &'static str> {
    prop::sample::select(DOMAINS.to_vec())
}

fn any_domain() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => domain(), 1 => Just("unconfined")]
}

fn file_type() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => prop::sample::select(TYPES.to_vec()),
        1 => prop::sample::select(vec!["untyped", "terminal"]),
    ]
}

fn class() -> impl Strategy<Value = Class> {
    prop::sample::select(Class::ALL.to_vec())
}

fn allow() -> impl Strategy<Value = Allow> {
    let object = prop_oneof![2 => file_type(), 1 => any_domain()];
    (domain(), object, class()).prop_flat_map(|(domain, object, class)| {
        let all = permissions(class);
        let some = prop::sample::subsequence(all.clone(), 1..=all.len());
        some.prop_map(move |words| Allow {
            domain,
            object,
            class,
            words,
        })
    })
}

/// Few names and many rules, so that many accesses are permitted.
pub fn policy() -> impl Strategy<Value = Policy> {
    let transition = (any_domain(), file_type(), domain());
    let creation = (any_domain(), file_type(), 0usize..6, file_type());
    (
        prop_oneof![
            3 => Just(Vec::new()),
            1 => prop::sample::subsequence(DOMAINS.to_vec(), 1..=3),
        ],
        prop::collection::vec(allow(), 0..120),
        prop::collection::vec(transition, 0..8),
        prop::collection::vec(creation, 0..8),
        prop::collection::vec((domain(), file_type(), file_type()), 0..24),
    )
        .prop_map(|(permissive, allow, transitions, creations, relabels)| {
            let mut policy = Policy {
                permissive,
                allow,
                transitions: Vec::new(),
                creations: Vec::new(),
                relabels: relabels.into_iter().map(|(d, f, t)| [d, f, t]).collect(),
            };
            for (domain, program, next) in transitions {
                let mut there = policy.transitions.iter();
                if !there.any(|[own, of, _]| (*own, *of) == (domain, program)) {
                    policy.transitions.push([domain, program, next]);
                }
            }
            for (domain, directory, class, created) in creations {
                let class = Class::ALL[class];
                let mut there = policy.creations.iter();
                if !there.any(|(own, of, kind, _)| (*own, *of, *kind) == (domain, directory, class))
                {
                    policy.creations.push((domain, directory, class, created));
                }
            }
            policy
        })
}

#[derive(Debug, Clone)]
pub struct Case {
    pub own: Element,
    pub object: Element,
    pub last: Element,
    /// Bits of `access`.
    pub access: u32,
    pub protection: u32,
    /// What mprotect(2) can make of a mapping.
    pub permitted: u32,
    /// The type of the file, in four bits, and its device.
    pub kind: u32,
    pub special: (u32, u32),
    pub argument: u32,
    pub interface: u32,
    pub capability: u32,
    /// The other process is this one.
    pub is_own_process: bool,
}

fn element() -> impl Strategy<Value = Element> {
    let named = [DOMAINS, TYPES].concat();
    prop_oneof![
        2 => Just(Element::Nothing),
        1 => Just(Element::Unknown),
        12 => prop::sample::select(named).prop_map(Element::Of),
        1 => prop::sample::select(vec![
            "unconfined", "untyped", "terminal", "gone", "mail2", "123456789",
        ]).prop_map(Element::Of),
    ]
}

/// Mostly a domain.
fn own() -> impl Strategy<Value = Element> {
    prop_oneof![4 => domain().prop_map(Element::Of), 1 => element()]
}

pub fn case() -> impl Strategy<Value = Case> {
    let elements = (own(), element(), element());
    let file = (
        prop::sample::select(vec![0u32, 1, 2, 4, 6, 8, 10, 12]),
        prop::sample::select(vec![
            (1u32, 1u32),
            (1, 3),
            (1, 9),
            (4, 1),
            (5, 0),
            (5, 1),
            (8, 0),
            (136, 7),
            (0, 0),
        ]),
    );
    let numbers = (0u32..16, 0u32..8, 0u32..4, 0u32..20, 0u32..3);
    let others = (
        prop::sample::select(vec![5u32, 7, 21, 40, 41, 63, 64]),
        any::<bool>(),
    );
    (elements, file, numbers, others).prop_map(|(elements, file, numbers, others)| {
        let (own, object, last) = elements;
        let (access, protection, permitted, argument, interface) = numbers;
        Case {
            own,
            object,
            last,
            access,
            protection,
            permitted,
            kind: file.0,
            special: file.1,
            argument,
            interface,
            capability: others.0,
            is_own_process: others.1,
        }
    })
}
