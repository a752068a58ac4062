//! The answer of the protector.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How the traffic of programs is protected.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProtectionView {
    /// The generation of the configuration in force.
    pub generation: u64,
    /// The `application` blocks, in the order of the policy.
    pub applications: Vec<ApplicationView>,
    /// The classes of the policy, each with its level.
    pub classes: Vec<String>,
    /// Entries of Usher in the SPD.
    pub spd_entries: usize,
    /// Sockets that were older than the policy, or that another program had made, and that have been
    /// governed since this protector found them.
    #[serde(default)]
    pub adopted_sockets: u64,
    /// What the kernel programs have counted, by name; those above zero.
    pub counters: BTreeMap<String, u64>,
    /// What keeps traffic from being protected as the policy says, each for people.
    pub troubles: Vec<String>,
}

/// An `application` block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationView {
    /// The block's place in the policy.
    pub place: String,
    /// Its programs that have a file.
    pub programs: Vec<String>,
    /// Its programs without a file: nothing of theirs is protected until there is one.
    pub missing: Vec<String>,
    /// Its networks after the order of the text is resolved.
    pub networks: usize,
}
