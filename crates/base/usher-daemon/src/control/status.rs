//! The status that every daemon reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::role::HasRole;

/// The state of a daemon.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct StatusView {
    /// Its role.
    pub role: String,
    /// Version of the program.
    pub version: String,
    /// Generation of the configuration in force; 0: the role has none, or none was applied and
    /// everything is refused.
    pub generation: u64,
    /// Named numbers: counters and table fill.
    pub numbers: BTreeMap<String, u64>,
    /// Troubles that keep the daemon from its work, each for people. `usher doctor` fails if there
    /// is any.
    #[serde(default)]
    pub troubles: Vec<String>,
}

impl StatusView {
    /// The state of a daemon of the role `R` with these numbers.
    #[must_use]
    pub fn new<'a, R: HasRole>(
        generation: u64,
        numbers: impl IntoIterator<Item = (&'a str, u64)>,
        troubles: Vec<String>,
    ) -> Self {
        let numbers = numbers.into_iter();
        Self {
            role: R::ROLE.name.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            generation,
            numbers: numbers.map(|(name, n)| (name.to_owned(), n)).collect(),
            troubles,
        }
    }
}
