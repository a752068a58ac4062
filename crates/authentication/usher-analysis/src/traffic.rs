//! Compares how the traffic of programs is protected by two states of a network's policies.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use usher_base::HostName;
use usher_policy::protection::{Application, Names, ProgramName, compile};

use crate::network::{HostPolicy, Network};

/// A program of a host whose traffic is treated otherwise than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrafficChange {
    /// The host.
    pub host: HostName,
    /// The program.
    pub program: String,
    /// Its former `application` block, one string a line of its canonical form; none: it had no block, and its
    /// traffic was left alone.
    pub before: Option<Vec<String>>,
    /// Its present block.
    pub after: Option<Vec<String>>,
}

/// The programs whose traffic is treated otherwise, ordered by host and program. A block that says
/// the same in other words is no change. A host whose policy only one of the two networks has is
/// left out.
pub fn traffic_changes(before: &Network, after: &Network) -> Vec<TrafficChange> {
    let mut changes = Vec::new();
    for host in before.hosts() {
        let Some(now) = after.host(&host.name) else {
            continue;
        };
        let (had, has) = (programs(host), programs(now));
        let programs: BTreeSet<&ProgramName> = had.keys().chain(has.keys()).copied().collect();
        for program in programs {
            let (before, after) = (had.get(program).copied(), has.get(program).copied());
            let same = match (before, after) {
                (Some(before), Some(after)) => say_the_same(before, after),
                _ => false,
            };
            if !same {
                changes.push(TrafficChange {
                    host: host.name.clone(),
                    program: program.to_string(),
                    before: before.map(statements),
                    after: after.map(statements),
                });
            }
        }
    }
    changes
}

fn programs(host: &HostPolicy) -> BTreeMap<&ProgramName, &Application> {
    let blocks = host.policy.applications.iter();
    let programs = blocks.flat_map(|block| block.programs.iter().map(move |name| (name, block)));
    programs.collect()
}

/// Whether both blocks come to the same tables, whatever their names stand for.
fn say_the_same(one: &Application, other: &Application) -> bool {
    let rules = |block: &Application| {
        let mut block = block.clone();
        block.programs.clear();
        compile(&[block], &Names::default(), u16::MAX).ok()
    };
    // Names have no addresses here, so blocks with any are compared as they are written.
    let has_name = |block: &Application| {
        block
            .networks
            .iter()
            .any(|network| network.addresses.is_empty())
    };
    if has_name(one) || has_name(other) {
        one.networks == other.networks && one.protections == other.protections
    } else {
        rules(one) == rules(other)
    }
}

/// The lines of a block between its braces, as its canonical form has them.
fn statements(block: &Application) -> Vec<String> {
    let text = block.to_text();
    let inner = text.lines().filter_map(|line| line.strip_prefix("  "));
    inner.map(str::to_owned).collect()
}
