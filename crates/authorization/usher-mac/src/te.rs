//! Settings of the module `te`: type enforcement. Processes have domains, files types; a domain does to
//! objects of a type what a rule permits, and nothing else.
//!
//! The module notes what it refuses, and what it would refuse to a permissive domain ([`Denials`]): of that
//! the missing rules are made.

mod class;
mod denial;
mod encode;

use usher_label::NameValue;

pub use class::{Class, Permissions};
pub(crate) use denial::denials;
pub use denial::{Denial, Denials};
pub(crate) use encode::encode;

/// Limit of domains and types together.
pub const MAX_TYPE_NAMES: usize = 256;
/// Limit of pairs of a domain and a type that rules are about.
pub const MAX_TYPE_PAIRS: usize = 4096;
/// Limit of changes of types.
pub const MAX_TYPE_RELABELS: usize = 256;

/// The domain of processes without an element.
pub const UNCONFINED: &str = "unconfined";
/// The type of files without an element.
pub const UNLABELLED: &str = "unlabelled";
/// The type of terminals without an element.
pub const TERMINAL: &str = "terminal";

/// The settings. Default: no domain, so that no process has one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeSettings {
    /// The domains, but for [`UNCONFINED`].
    pub domains: Vec<NameValue>,
    /// The types, but for [`UNLABELLED`] and [`TERMINAL`]. No type has the name of a domain.
    pub types: Vec<NameValue>,
    /// Domains to which nothing is refused.
    pub permissive: Vec<NameValue>,
    /// What domains do. Rules about the same objects permit together what each permits.
    pub allow: Vec<AllowRule>,
    /// The domains that programs get.
    pub transitions: Vec<TransitionRule>,
    /// The types that new files get.
    pub creations: Vec<CreationRule>,
    /// Changes of the types of files.
    pub relabels: Vec<RelabelRule>,
}

/// What a domain does with objects of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowRule {
    /// A declared domain.
    pub domain: NameValue,
    /// The type or domain of the objects.
    pub object: NameValue,
    /// Their class.
    pub class: Class,
    /// What is permitted. For [`Class::Capability`], about which `object` says nothing, the capabilities.
    pub permissions: Permissions,
}

/// The domain of programs that a domain executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionRule {
    /// The domain of the process.
    pub domain: NameValue,
    /// The type of the program.
    pub program: NameValue,
    /// The domain that the process gets.
    pub next: NameValue,
}

/// The type of what a domain makes in directories of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreationRule {
    /// The domain of the process.
    pub domain: NameValue,
    /// The type of the directory.
    pub directory: NameValue,
    /// The class of what is made.
    pub class: Class,
    /// Its type.
    pub created: NameValue,
}

/// A change of the type of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelabelRule {
    /// The domain of the process.
    pub domain: NameValue,
    /// The former type.
    pub from: NameValue,
    /// The new one.
    pub to: NameValue,
}

/// A mistake in the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeMistake {
    /// Too many names.
    #[error(
        "te takes at most {MAX_TYPE_NAMES} domains and types, and the policy has {0}; give files \
         that the same domains use in the same way one type"
    )]
    TooManyNames(usize),
    /// Too many pairs.
    #[error(
        "the rules are about more than {MAX_TYPE_PAIRS} pairs of a domain and a type; give files that the same \
         domains use in the same way one type"
    )]
    TooManyPairs,
    /// Too many changes.
    #[error(
        "te takes at most {MAX_TYPE_RELABELS} permitted changes of types, and the policy has {0}"
    )]
    TooManyRelabels(usize),
    /// A name that stands for two.
    #[error("the name {0} stands for two domains or types")]
    Repeated(String),
    /// A name that is not declared, or of the other kind.
    #[error(
        "a rule names {0}, which is not declared, or is a domain where a type must stand, or a type \
         where a domain must"
    )]
    Undeclared(String),
    /// A class of objects that no process makes in a directory.
    #[error("a rule permits making something of class {0}, and folders have nothing of that class")]
    NotMade(&'static str),
    /// No memory.
    #[error("there is no memory for the settings")]
    NoMemory,
    /// The names have no places of their own.
    #[error("the names of domains and types cannot be told apart by their hash; rename one")]
    NoPlaces,
}
