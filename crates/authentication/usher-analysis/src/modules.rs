//! Compares the settings of the modules of mandatory access control by two states of a network's
//! policies.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use usher_base::HostName;
use usher_policy::Name;

use crate::network::{HostPolicy, Network};

/// A module of a host whose settings are others than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleChange {
    /// The host.
    pub host: HostName,
    /// The module.
    pub module: String,
    /// Its former settings, one string a statement; none: the policy had no block of it.
    pub before: Option<Vec<String>>,
    /// Its present settings.
    pub after: Option<Vec<String>>,
}

/// The modules whose settings are others, ordered by host and module. A host whose policy only one of the
/// two networks has is left out.
pub fn module_changes(before: &Network, after: &Network) -> Vec<ModuleChange> {
    let mut changes = Vec::new();
    for host in before.hosts() {
        let Some(now) = after.host(&host.name) else {
            continue;
        };
        let (had, has) = (settings(host), settings(now));
        let modules: BTreeSet<&Name> = had.keys().chain(has.keys()).copied().collect();
        for module in modules {
            let (before, after) = (had.get(module).cloned(), has.get(module).cloned());
            if before != after {
                changes.push(ModuleChange {
                    host: host.name.clone(),
                    module: module.to_string(),
                    before,
                    after,
                });
            }
        }
    }
    changes
}

fn settings(host: &HostPolicy) -> BTreeMap<&Name, Vec<String>> {
    let blocks = host.policy.mac.iter();
    blocks
        .map(|block| (&block.module, block.settings.lines()))
        .collect()
}
