//! The graph: groups of users with identical rights, hosts as clusters of their services, and an
//! edge for each right of a group. In Graphviz's DOT language.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use usher_base::{HostName, ServiceName, UserName};
use usher_policy::Principal;

use crate::network::Network;
use crate::rights::{Known, Right};
use crate::sets::Universe;

/// Names shown of a group or of the hosts of an edge; the rest is counted.
const SHOWN: usize = 5;

/// Draws all rights. Even with many users there are few nodes: users with identical rights share
/// one. Users without rights are left out.
pub fn graph(network: &Network) -> String {
    let mut universe = Universe::new(&[network]);
    let rights = universe.rights(network);
    let mut groups: BTreeMap<Vec<Held<'_>>, Vec<&UserName>> = BTreeMap::new();
    for class in universe.classes() {
        let Some(user) = class.first() else { continue };
        let held: Vec<Held<'_>> = (0..rights.len())
            .flat_map(|number| held_by(user, number, &rights[number], &universe))
            .collect();
        if !held.is_empty() {
            groups.entry(held).or_default().extend(class);
        }
    }
    let mut services: BTreeMap<&HostName, BTreeMap<&ServiceName, String>> = BTreeMap::new();
    let mut not_known = BTreeSet::new();
    for right in &rights {
        let label = format!("{}\\nport {}", right.service, right.port);
        services
            .entry(right.server)
            .or_default()
            .entry(right.service)
            .or_insert(label);
        if right.known == Known::ClientOnly {
            not_known.insert(right.server);
        }
    }
    let mut text = String::from(
        "digraph usher {\n  rankdir=LR;\n  ranksep=2;\n  node [fontname=\"sans-serif\", fontsize=11];\n  \
         edge [fontname=\"sans-serif\", fontsize=9, color=gray40];\n",
    );
    for (server, services) in &services {
        let style = if not_known.contains(server) {
            "dashed"
        } else {
            "rounded"
        };
        let _ = writeln!(
            text,
            "  subgraph \"cluster {server}\" {{\n    label=\"{server}\"; style={style};"
        );
        for (service, label) in services {
            let _ = writeln!(
                text,
                "    \"{service}@{server}\" [shape=component, label=\"{label}\"];"
            );
        }
        text += "  }\n";
    }
    for (number, (held, mut users)) in groups.into_iter().enumerate() {
        users.sort();
        let label = short(users.iter().map(|user| user.as_ref()), "\\n");
        draw_users(&mut text, &format!("users {number}"), &label, held, &rights);
    }
    for (number, (principal, held)) in held_by_anybody(&rights).into_iter().enumerate() {
        let label = format!("whoever's certificate\\nnames {}", escaped(principal));
        draw_users(
            &mut text,
            &format!("holders {number}"),
            &label,
            held,
            &rights,
        );
    }
    text + "}\n"
}

/// The number of a right, and the principal that a certificate must name for this right.
type Held<'n> = (usize, Option<&'n Principal>);

/// How the users of a class hold a right. Rights that any user with a certificate has are drawn
/// separately.
fn held_by<'n>(
    user: &UserName,
    number: usize,
    right: &Right<'n>,
    universe: &Universe<'n>,
) -> Vec<Held<'n>> {
    if universe.contains(right.users, user) {
        return vec![(number, None)];
    }
    let by_certificate = right.by_certificate.iter();
    by_certificate
        .filter(|by| !by.anybody && universe.contains(by.users, user))
        .map(|by| (number, Some(by.principal)))
        .collect()
}

/// The rights of any user whose certificate names a principal.
fn held_by_anybody<'n>(rights: &[Right<'n>]) -> BTreeMap<&'n Principal, Vec<Held<'n>>> {
    let mut holders: BTreeMap<&Principal, Vec<Held<'_>>> = BTreeMap::new();
    for (number, right) in rights.iter().enumerate() {
        for by in right.by_certificate.iter().filter(|by| by.anybody) {
            holders
                .entry(by.principal)
                .or_default()
                .push((number, None));
        }
    }
    holders
}

/// A node of users, and an edge to each of their services.
fn draw_users(
    text: &mut String,
    node: &str,
    label: &str,
    held: Vec<Held<'_>>,
    rights: &[Right<'_>],
) {
    let _ = writeln!(
        text,
        "  \"{node}\" [shape=box, style=rounded, label=\"{label}\"];"
    );
    let mut reach: BTreeMap<_, BTreeSet<&HostName>> = BTreeMap::new();
    for (number, principal) in held {
        let right = &rights[number];
        let service = (right.server, right.service, principal);
        reach.entry(service).or_default().insert(right.client);
    }
    for ((server, service, principal), clients) in reach {
        let certificate = principal.map_or_else(String::new, |principal| {
            format!("\\nif a certificate names {}", escaped(principal))
        });
        let _ = writeln!(
            text,
            "  \"{node}\" -> \"{service}@{server}\" [label=\"from {}{certificate}\"];",
            short(clients.iter().map(|client| client.as_ref()), ", ")
        );
    }
}

/// Escapes a principal for a DOT string. It has no quotes.
fn escaped(principal: &Principal) -> String {
    principal.as_ref().replace('\\', "\\\\")
}

/// The first names, and the number of the others. Names need no escape in DOT strings.
fn short<'n>(names: impl ExactSizeIterator<Item = &'n str>, separator: &str) -> String {
    let rest = names.len().saturating_sub(SHOWN);
    let mut shown: Vec<String> = names.take(SHOWN).map(str::to_owned).collect();
    if rest > 0 {
        shown.push(format!("and {rest} more"));
    }
    shown.join(separator)
}
