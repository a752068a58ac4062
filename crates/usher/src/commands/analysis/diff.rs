//! `usher policy diff`: who gains what, who loses what.

use std::collections::BTreeMap;
use std::fmt::Write;

use usher_analysis::{Change, How, difference};
use usher_proto::name::UserName;

use super::NO;
use super::hosts::Loaded;
use super::who_can::{note, only_with};
use crate::failure::Failure;
use crate::output::Output;

/// Tells it; the exit code is that of diff(1).
///
/// # Errors
/// When a view has no JSON form, which is a defect.
pub fn run(output: &Output, old: &Loaded, new: &Loaded) -> Result<u8, Failure> {
    let changes = difference(&old.network, &new.network);
    let texts: Vec<String> = changes
        .iter()
        .map(|change| text(change, usize::MAX))
        .collect::<Result<_, _>>()?;
    output.print(&changes, || texts.concat());
    Ok(if changes.is_empty() { 0 } else { NO })
}

/// A change for people. Of those who gain or lose at most `names` are named, the rest is counted.
///
/// # Errors
/// When a view has no JSON form, which is a defect.
pub fn text(change: &Change, names: usize) -> Result<String, Failure> {
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
            differences(before, after)?.join("; ")
        );
    }
    Ok(text)
}

/// At most `names` of the users, and how many more there are.
fn first(users: &[UserName], names: usize) -> String {
    let named: Vec<&str> = users.iter().take(names).map(UserName::as_ref).collect();
    match users.len() - named.len() {
        0 => named.join(", "),
        rest => format!("{} and {rest} more", named.join(", ")),
    }
}

/// What is another, by the names that JSON has for it.
fn differences(before: &How, after: &How) -> Result<Vec<String>, Failure> {
    let (before, after) = (flat(before)?, flat(after)?);
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&String>| value.map_or("-", String::as_str).to_owned();
    let different = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| {
            let (before, after) = (before.get(name), after.get(name));
            format!("{name} {} -> {}", shown(before), shown(after))
        });
    Ok(different.collect())
}

/// The members of a view, those of its parts included.
fn flat(how: &How) -> Result<BTreeMap<String, String>, Failure> {
    let value = serde_json::to_value(how).map_err(|error| Failure::Question(error.to_string()))?;
    let mut members = BTreeMap::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(part) => {
                let part = part
                    .iter()
                    .map(|(inner, value)| (format!("{name} {inner}"), value.to_string()));
                members.extend(part);
            }
            None => {
                members.insert(name.clone(), value.to_string());
            }
        }
    }
    Ok(members)
}
