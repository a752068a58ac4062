//! `usher policy diff`: who gains what, who loses what.

use std::fmt::Write;

use usher_analysis::{Change, How, Offer, Request, difference};
use usher_policy::{Programs, Protocol};
use usher_proto::name::UserName;

use super::NO;
use super::explain::units;
use super::hosts::Loaded;
use super::who_can::{note, only_with};
use crate::output::Output;

/// Tells it; the exit code is that of diff(1).
pub fn run(output: &Output, old: &Loaded, new: &Loaded) -> u8 {
    let changes = difference(&old.network, &new.network);
    output.print(&changes, || {
        let texts = changes.iter().map(|change| text(change, usize::MAX));
        texts.collect()
    });
    if changes.is_empty() { 0 } else { NO }
}

/// A change for people. Of those who gain or lose at most `names` are named, the rest is counted.
pub fn text(change: &Change, names: usize) -> String {
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
    let mut text = format!("{service}@{server} from {client}{}\n", note(*known));
    for (sign, verb, users) in [('+', "gain", gain), ('-', "lose", lose)] {
        if !users.is_empty() {
            let _ = writeln!(text, "{sign} {verb}: {}", first(users, names));
        }
    }
    for change in certificates {
        let principal = &change.principal;
        for (sign, verb, users, anybody) in [
            ('+', "gain", &change.gain, change.anybody_gains),
            ('-', "lose", &change.lose, change.anybody_loses),
        ] {
            if anybody {
                let _ = writeln!(
                    text,
                    "{sign} {verb}: whoever's certificate names {principal}"
                );
            } else if !users.is_empty() {
                let (users, certificate) = (first(users, names), only_with(&[principal]));
                let _ = writeln!(text, "{sign} {verb}: {users}{certificate}");
            }
        }
    }
    if let Some((before, after)) = how {
        let _ = writeln!(
            text,
            "! otherwise: {}",
            differences(before, after).join("; ")
        );
    }
    text
}

/// At most `names` of the users, and how many more there are.
fn first(users: &[UserName], names: usize) -> String {
    let named: Vec<&str> = users.iter().take(names).map(UserName::as_ref).collect();
    match users.len() - named.len() {
        0 => named.join(", "),
        rest => format!("{} and {rest} more", named.join(", ")),
    }
}

/// What is another, in the words of the policy language.
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

/// What policies say of how, in the same order for all: keywords and values, `-` for what is at
/// its default or not known.
fn statements(how: &How) -> Vec<(&'static str, String)> {
    let (client, server) = (how.client.as_ref(), how.server.as_ref());
    let quoted = |texts: &mut dyn Iterator<Item = &String>| {
        let texts: Vec<String> = texts.map(|text| format!("{text:?}")).collect();
        texts.join(" ")
    };
    let listed = |texts: Vec<String>| Some(texts.join(", ")).filter(|text| !text.is_empty());
    let programs = |request: &Request| match &request.programs {
        Programs::Asking => None,
        Programs::Any => Some("any".to_owned()),
        Programs::Listed(paths) => Some(quoted(&mut paths.iter())),
    };
    let files = |offer: &Offer| {
        let files = offer.files.as_ref()?.iter();
        listed(
            files
                .map(|rule| format!("{:?} {}", rule.path, rule.access))
                .collect(),
        )
    };
    let connect = |offer: &Offer| {
        let connect = offer.connect.as_ref()?;
        Some(if connect.entries.is_empty() {
            "none".to_owned()
        } else {
            connect.to_string()
        })
    };
    let said = [
        ("port", how.port.map(|port| port.to_string())),
        ("programs", client.and_then(programs)),
        (
            "protocol",
            client.and_then(|request| match request.protocol {
                Protocol::Raw => None,
                Protocol::Imap => Some("imap".to_owned()),
            }),
        ),
        (
            "key",
            client.and_then(|request| Some(request.key.as_ref()?.to_string())),
        ),
        (
            "loopback",
            client.and_then(|request| {
                let proxy = request.proxy.iter();
                listed(proxy.map(|address| address.ip().to_string()).collect())
            }),
        ),
        (
            "program",
            server.and_then(|offer| Some(quoted(&mut offer.program.as_ref()?.iter()))),
        ),
        ("account", server.and_then(|offer| offer.account.clone())),
        ("files", server.and_then(files)),
        ("connect", server.and_then(connect)),
        ("style", server.map(|offer| offer.style.to_string())),
        (
            "keys",
            server.and_then(|offer| Some(offer.keys.as_ref()?.to_string())),
        ),
        (
            "session",
            server.map(|offer| units(offer.session_seconds).to_string()),
        ),
        (
            "reauthenticate",
            server.and_then(|offer| Some(units(offer.reauthenticate_seconds?).to_string())),
        ),
        (
            "protection",
            server.and_then(|offer| Some(offer.protection?.to_string())),
        ),
    ];
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    said.into_iter()
        .map(|(keyword, value)| (keyword, shown(value)))
        .collect()
}
