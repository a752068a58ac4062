//! `usher policy diff`: the gains and losses of users.

use serde_json::{Value, json};
use usher_analysis::{
    Change, How, ModuleChange, Network, Offer, Request, TrafficChange, difference, module_changes,
    traffic_changes,
};
use usher_policy::{Programs, Protocol, joined};

use super::NO;
use super::explain::units;
use super::hosts::Loaded;
use super::who_can::{note_on_groups, only_with};
use crate::output::{self, Output, first};

/// The text when nothing changes.
pub const NOTHING_CHANGES: &str =
    "nothing changes: no user gains or loses access, and every service stays as it is\n";

/// Prints the difference; the exit code is that of diff(1).
pub fn run(output: &Output, old: &Loaded, new: &Loaded) -> u8 {
    warn_of_hosts((&old.network, "OLD"), (&new.network, "NEW"));
    warn_of_hosts((&new.network, "NEW"), (&old.network, "OLD"));
    let changes = difference(&old.network, &new.network);
    let traffic = traffic_changes(&old.network, &new.network);
    let modules = module_changes(&old.network, &new.network);
    let nothing = changes.is_empty() && traffic.is_empty() && modules.is_empty();
    let value: Vec<Value> = changes
        .iter()
        .map(|change| json!(change))
        .chain(traffic.iter().map(|change| json!(change)))
        .chain(modules.iter().map(|change| json!(change)))
        .collect();
    // JSON of `usher policy diff`: a list of [`difference::Change`], then of [`TrafficChange`], then of [`ModuleChange`].
    output.print(&value, || {
        if nothing {
            return NOTHING_CHANGES.to_owned();
        }
        let texts = changes.iter().map(|change| change_text(change, usize::MAX));
        let texts = texts.chain(traffic.iter().map(traffic_text));
        texts.chain(modules.iter().map(module_text)).collect()
    });
    if nothing { 0 } else { NO }
}

/// Warns of hosts that only one of two networks has: differences there are no change of policy.
fn warn_of_hosts((network, called): (&Network, &str), (other, without): (&Network, &str)) {
    let only = network
        .hosts()
        .filter(|host| other.host(&host.name).is_none());
    for host in only {
        let name = &host.name;
        output::warn(&format!(
            "{name} is only in {called}: in {without} its policy is not known, and the other hosts' \
             policies alone decide about it"
        ));
    }
}

/// A change of how a program's traffic is treated, for people.
pub fn traffic_text(change: &TrafficChange) -> String {
    let text = format!("traffic of {} on {}\n", change.program, change.host);
    let gone = "is left alone: no `application` block names it any more";
    text + &statement_changes(change.before.as_deref(), change.after.as_deref(), gone)
}

/// A change of a module's settings, for people.
pub fn module_text(change: &ModuleChange) -> String {
    let text = format!("module {} on {}\n", change.module, change.host);
    let gone = "has its defaults: the policy has no `mac` block of it any more";
    text + &statement_changes(change.before.as_deref(), change.after.as_deref(), gone)
}

/// The statements that were added or removed. `gone` says what the removal of the whole block means.
fn statement_changes(before: Option<&[String]>, after: Option<&[String]>, gone: &str) -> String {
    let (had, has) = (before.unwrap_or_default(), after.unwrap_or_default());
    if before.is_some() && after.is_none() {
        return format!("- {gone}\n") + &changed_lines('-', had, &[]);
    }
    if before.is_none() && has.is_empty() {
        return "+ a block without statements\n".to_owned();
    }
    let (own_had, blocks_had) = by_block(had);
    let (own_has, blocks_has) = by_block(has);
    let mut text = changed_lines('-', own_had, own_has) + &changed_lines('+', own_has, own_had);
    for (head, inner) in &blocks_had {
        match blocks_has.iter().find(|(other, _)| other == head) {
            None => text += &changed_lines('-', inner, &[]),
            Some((_, new)) => {
                let changes = changed_lines('-', inner, new) + &changed_lines('+', new, inner);
                if !changes.is_empty() {
                    text += &format!("  {head}\n{changes}  }}\n");
                }
            }
        }
    }
    let is_new = |block: &&(&str, &[String])| !blocks_had.iter().any(|(head, _)| *head == block.0);
    text.extend(
        blocks_has
            .iter()
            .filter(is_new)
            .map(|(_, inner)| changed_lines('+', inner, &[])),
    );
    if text.is_empty() {
        "! the same statements decide in another order\n".to_owned()
    } else {
        text
    }
}

/// A block inside another: its first line, and all its lines.
type Inner<'t> = (&'t str, &'t [String]);

/// The statements before the first block inside, and the blocks inside, which come last in the canonical
/// form.
fn by_block(lines: &[String]) -> (&[String], Vec<Inner<'_>>) {
    let is_head = |line: &String| line.ends_with('{');
    let first = lines.iter().position(is_head).unwrap_or(lines.len());
    let (own, blocks) = lines.split_at(first);
    let blocks = blocks.split_inclusive(|line| line == "}");
    (
        own,
        blocks.map(|block| (block[0].as_str(), block)).collect(),
    )
}

/// The statements of `of` that `without` does not have, each after the sign.
fn changed_lines(sign: char, of: &[String], without: &[String]) -> String {
    let lines = of.iter().filter(|line| !without.contains(line));
    lines.map(|line| format!("{sign} {line}\n")).collect()
}

/// A change, for people. It names at most `names` users who gain or lose access, and counts the rest.
pub fn change_text(change: &Change, names: usize) -> String {
    let Change {
        client,
        service,
        server,
        known,
        gain,
        lose,
        certificates,
        how,
    } = change;
    let mut text = format!(
        "{service}@{server} from {client}{}\n",
        note_on_groups(*known)
    );
    for (sign, verb, users) in [('+', "gain", gain), ('-', "lose", lose)] {
        if !users.is_empty() {
            text += &format!("{sign} {verb}: {}\n", first(users, names));
        }
    }
    for change in certificates {
        let principal = &change.principal;
        for (sign, verb, users, anybody) in [
            ('+', "gain", &change.gain, change.anybody_gains),
            ('-', "lose", &change.lose, change.anybody_loses),
        ] {
            if anybody {
                text += &format!("{sign} {verb}: users whose certificate names {principal}\n");
            } else if !users.is_empty() {
                let (users, certificate) = (first(users, names), only_with(&[principal]));
                text += &format!("{sign} {verb}: {users}{certificate}\n");
            }
        }
    }
    if let Some((before, after)) = how {
        text += &format!("! changes: {}\n", differences(before, after).join("; "));
    }
    text
}

/// The differences, in the words of the policy language.
fn differences(before: &How, after: &How) -> Vec<String> {
    let pairs = statements(before).into_iter().zip(statements(after));
    let different = pairs.filter(|(before, after)| before != after);
    let mut told: Vec<String> = different
        .map(|((keyword, before), (_, after))| format!("{keyword} {before} -> {after}"))
        .collect();
    let connect = |how: &How| how.server.as_ref().map(|offer| offer.connect.clone());
    if told.is_empty() && connect(before) != connect(after) {
        told.push("connect: the same hosts at other addresses".to_owned());
    }
    told
}

/// The terms of a right in a fixed order: keywords and values, `none` for statements that are not there
/// and for unknown values.
fn statements(how: &How) -> Vec<(&'static str, String)> {
    // Only rights are compared, and these have no routes.
    let How {
        port,
        routes: _,
        client,
        server,
        protected_programs,
    } = how;
    let port = [port.map(|port| port.to_string())];
    let protected = [listed(protected_programs.iter().cloned())];
    let client = client.as_ref().map(requested).unwrap_or_default();
    let server = server.as_ref().map(offered).unwrap_or_default();
    let keywords = ["port"].into_iter().chain(REQUESTED).chain(OFFERED);
    let keywords = keywords.chain(["protected programs"]);
    let values = port.into_iter().chain(client).chain(server);
    let values = values.chain(protected);
    keywords
        .zip(values.map(|value| value.unwrap_or_else(|| "none".to_owned())))
        .collect()
}

const REQUESTED: [&str; 5] = [
    "programs",
    "protocol",
    "key",
    "loopback",
    "client's protection",
];

/// The values of [`REQUESTED`]. Every field is named, so that a new field does not compile unseen.
fn requested(request: &Request) -> [Option<String>; REQUESTED.len()] {
    let Request {
        programs,
        key,
        protocol,
        proxy,
        protection,
    } = request;
    [
        match programs {
            Programs::Asking => None,
            Programs::Any => Some("any".to_owned()),
            Programs::Listed(paths) => Some(quoted(paths.iter())),
        },
        match protocol {
            Protocol::Raw => None,
            Protocol::Imap => Some("imap".to_owned()),
        },
        key.as_ref().map(ToString::to_string),
        listed(proxy.iter().map(|address| address.ip().to_string())),
        protection.map(|kind| kind.to_string()),
    ]
}

const OFFERED: [&str; 13] = [
    "program",
    "account",
    "identify",
    "files",
    "umask",
    "setuid",
    "pam",
    "connect",
    "style",
    "keys",
    "session",
    "reauthenticate",
    "service's protection",
];

/// The values of [`OFFERED`].
fn offered(offer: &Offer) -> [Option<String>; OFFERED.len()] {
    let Offer {
        style,
        program,
        files,
        umask,
        setuid,
        pam_session,
        connect,
        account,
        identify,
        keys,
        session_seconds,
        reauthenticate_seconds,
        protection,
    } = offer;
    [
        program.as_ref().map(|program| quoted(program.iter())),
        account.clone(),
        identify.clone(),
        files.as_ref().and_then(|files| {
            let files = files.iter();
            listed(files.map(|rule| format!("{:?} {}", rule.path, rule.access)))
        }),
        umask.map(|umask| format!("{umask:03o}")),
        setuid.then(|| "permit".to_owned()),
        pam_session.then(|| "session".to_owned()),
        // `connect none` is a statement of its own.
        Some(match connect {
            Some(connect) if connect.entries.is_empty() => "none".to_owned(),
            Some(connect) => connect.to_string(),
            None => "anywhere".to_owned(),
        }),
        Some(style.to_string()),
        keys.as_ref().map(ToString::to_string),
        Some(units(*session_seconds).to_string()),
        reauthenticate_seconds.map(|seconds| units(seconds).to_string()),
        protection.map(|protection| protection.to_string()),
    ]
}

fn quoted<'t>(texts: impl Iterator<Item = &'t String>) -> String {
    joined(texts.map(|text| format!("{text:?}")), " ")
}

/// The values of a list; none for an empty list.
fn listed(texts: impl Iterator<Item = String>) -> Option<String> {
    Some(joined(texts, ", ")).filter(|text| !text.is_empty())
}
