//! The entries of the table of a policy, by which the kernel programs decide (bpf/ipsec/policy.h).

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::marks::MarkMask;
use crate::plan::{Application, Line};
use crate::programs::Identities;
use crate::shared::{
    PATTERN_LOCAL, PATTERN_REMOTE, POLICY_IPV4, POLICY_IPV6, POLICY_ITEM, POLICY_PLACE,
    POLICY_PROGRAM, POLICY_SCRIPT, PolicyEntry, PolicyKey,
};

/// The bits of a key's `kind`, `generation` and `scope`.
const SCOPE_BITS: u32 = 3 * u32::BITS;

fn key(kind: u32, generation: u32, scope: u32, first: &[u8], length: u32) -> PolicyKey {
    let mut bytes = [0; 16];
    bytes[..first.len()].copy_from_slice(first);
    PolicyKey {
        length: SCOPE_BITS + length,
        kind,
        generation,
        scope,
        bytes,
    }
}

fn entry() -> PolicyEntry {
    PolicyEntry {
        number: 0,
        class: 0,
        patterns: 0,
        mark_ipv4: 0,
        mark_ipv6: 0,
    }
}

/// The entries for these applications, whose programs are identified, in the policy of a generation.
pub(crate) fn entries(
    applications: &[Application],
    programs: &[Identities],
    generation: u32,
    mask: MarkMask,
) -> Vec<(PolicyKey, PolicyEntry)> {
    let mut entries = Vec::new();
    let mut lists: BTreeMap<&[Line], u32> = BTreeMap::new();
    for (number, application) in (0_u32..).zip(applications) {
        let of_program = PolicyEntry {
            number,
            mark_ipv4: application.creation_mark(mask, true),
            mark_ipv6: application.creation_mark(mask, false),
            ..entry()
        };
        if let Some(identities) = programs.get(number as usize) {
            let files = identities.programs.iter();
            let files = files.map(|id| (POLICY_PROGRAM, id.get()));
            let scripts = identities.scripts.iter();
            let scripts = scripts.map(|id| (POLICY_SCRIPT, id.get()));
            let places = identities.places.iter();
            let places = places.map(|id| (POLICY_PLACE, id.get()));
            entries.extend(
                files
                    .chain(scripts)
                    .chain(places)
                    .map(|(kind, id)| (key(kind, 0, 0, &id.to_ne_bytes(), u64::BITS), of_program)),
            );
        }
        for (network, lines) in &application.networks {
            let new = u32::try_from(lists.len()).unwrap_or(u32::MAX);
            let of_network = match lines.as_slice() {
                [only] => PolicyEntry {
                    class: only.class.into(),
                    ..entry()
                },
                lines => {
                    let list = *lists.entry(lines).or_insert(new);
                    if list == new {
                        entries.extend(items(generation, list, lines));
                    }
                    PolicyEntry {
                        number: list,
                        patterns: lines.iter().fold(0, |all, line| all | 1 << pattern(line)),
                        ..entry()
                    }
                }
            };
            let length = u32::from(network.prefix_len());
            let key = match network {
                IpNet::V4(network) => {
                    let address = network.network().octets();
                    key(POLICY_IPV4, generation, number, &address, length)
                }
                IpNet::V6(network) => {
                    let address = network.network().octets();
                    key(POLICY_IPV6, generation, number, &address, length)
                }
            };
            entries.push((key, of_network));
        }
    }
    entries
}

fn pattern(line: &Line) -> u32 {
    let local = line.local.map_or(0, |_| PATTERN_LOCAL);
    local | line.remote.map_or(0, |_| PATTERN_REMOTE)
}

fn items(
    generation: u32,
    list: u32,
    lines: &[Line],
) -> impl Iterator<Item = (PolicyKey, PolicyEntry)> {
    (0..).zip(lines).map(move |(number, line)| {
        let [a, b] = line.local.unwrap_or(0).to_be_bytes();
        let [c, d] = line.remote.unwrap_or(0).to_be_bytes();
        let pattern = u8::try_from(pattern(line)).unwrap_or(0);
        let item = PolicyEntry {
            number,
            class: line.class.into(),
            ..entry()
        };
        let ports = [a, b, c, d, pattern];
        (key(POLICY_ITEM, generation, list, &ports, 40), item)
    })
}
