//! The module `te`: its settings as it reads them, and what it has refused.
//!
//! The module notes what it refuses, and what it would refuse to a permissive domain ([`Denials`]). The
//! missing rules are made from these notes.

mod denial;
mod encode;
mod permissions;

pub(crate) use denial::denials;
pub use denial::{Denial, Denials};
pub(crate) use encode::encode;

use usher_mac_blocks::{MAXIMUM_NAMES, MAXIMUM_RELABELS, MAXIMUM_TYPE_RULES};

/// A mistake in the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeMistake {
    /// Too many names.
    #[error(
        "te takes at most {MAXIMUM_NAMES} domains and types, and the policy has {0}; give files \
         that the same domains use in the same way one type"
    )]
    TooManyNames(usize),
    /// Too many pairs.
    #[error(
        "the rules are about more than {MAXIMUM_TYPE_RULES} pairs of a domain and a type; give files that the same \
         domains use in the same way one type"
    )]
    TooManyPairs,
    /// Too many changes.
    #[error(
        "te takes at most {MAXIMUM_RELABELS} permitted changes of types, and the policy has {0}"
    )]
    TooManyRelabels(usize),
    /// A name with two meanings.
    #[error("the name {0} stands for two domains or types")]
    Repeated(String),
    /// A name that is not declared.
    #[error("a rule names {0}, which is not declared")]
    Undeclared(String),
    /// A class of objects that no process makes in a directory.
    #[error("a rule permits making something of class {0}, and folders have nothing of that class")]
    NotMade(&'static str),
    /// No memory.
    #[error("there is no memory for the settings")]
    NoMemory,
    /// No seed gives each name a place of its own.
    #[error("the names of domains and types cannot be told apart by their hash; rename one")]
    NoPlaces,
}
