//! Finds other users of packet marks on this host. A rule that sets or compares Usher's bits misroutes
//! packets, or takes their protection away. The tools of each subsystem list its rules. A program that
//! sets SO_MARK by itself has no rule and is not found.

mod lists;
mod nftables;
mod tool;

use std::collections::BTreeSet;
use std::time::Instant;

use serde::de::IgnoredAny;
use usher_policy::protection::MarkMask;

use lists::{iptables, routing_rules, strongswan, units, wireguard, xfrm};
use nftables::nftables;
use tool::{LIMIT, Unread, output};

/// All bits of a mark.
const ALL: u32 = u32::MAX;

/// A rule that sets or compares bits of marks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    /// The rule's place and text.
    rule: String,
    /// The bits that it sets or compares.
    bits: u32,
}

/// All that was found.
#[derive(Debug, Default)]
pub struct Found {
    users: Vec<User>,
    /// Lists that could not be read, each with the reason.
    pub unseen: Vec<String>,
}

/// A command that lists rules, and the reader of its list.
struct Tool {
    words: &'static [&'static str],
    read: fn(&str) -> Vec<User>,
}

const TOOLS: [Tool; 11] = [
    Tool::new(&["ip", "-json", "rule", "show"], routing_rules),
    Tool::new(&["ip", "-json", "-6", "rule", "show"], routing_rules),
    Tool::new(&["ip", "xfrm", "policy"], xfrm),
    // Without the keys of the SAs, which this process has no need to know.
    Tool::new(&["ip", "xfrm", "state", "list", "nokeys"], xfrm),
    Tool::new(&["nft", "-j", "list", "ruleset"], nftables),
    Tool::new(&["iptables-save"], iptables),
    Tool::new(&["ip6tables-save"], iptables),
    Tool::new(&["iptables-legacy-save"], iptables),
    Tool::new(&["ip6tables-legacy-save"], iptables),
    Tool::new(&["wg", "show", "all", "fwmark"], wireguard),
    Tool::new(
        &["systemctl", "show", "--property=Id,Mark", "*.socket"],
        units,
    ),
];

impl Tool {
    const fn new(words: &'static [&'static str], read: fn(&str) -> Vec<User>) -> Self {
        Self { words, read }
    }

    /// Refuses a list that should be JSON and is not. An empty text is an empty list.
    fn require_json(&self, text: String) -> Result<String, Unread> {
        let is_json = self.words.iter().any(|word| ["-j", "-json"].contains(word));
        if is_json && !text.trim().is_empty() {
            match serde_json::from_str::<IgnoredAny>(&text) {
                Ok(_) => Ok(text),
                Err(error) => Err(Unread::Json(error)),
            }
        } else {
            Ok(text)
        }
    }
}

/// Asks all tools. Tools that are not installed, and those whose lists cannot be read, are noted.
pub fn look() -> Found {
    let mut found = Found::default();
    let deadline = Instant::now() + LIMIT;
    for tool in &TOOLS {
        let Tool { words, read } = tool;
        match output(words, deadline).and_then(|text| tool.require_json(text)) {
            Ok(text) => found.users.extend(read(&text)),
            Err(reason) => found.unseen.push(format!("{} ({reason})", words.join(" "))),
        }
    }
    // Marks of charon's own sockets; the list of SAs has those of connections.
    for path in [
        "/etc/strongswan.conf",
        "/etc/strongswan.d/charon/kernel-netlink.conf",
        "/etc/strongswan.d/charon/socket-default.conf",
    ] {
        match std::fs::read_to_string(path) {
            Ok(text) => found.users.extend(strongswan(path, &text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => found.unseen.push(format!("{path} ({error})")),
        }
    }
    // A rule may be listed twice: iptables-save may be iptables-legacy-save, and IPv6 may have the
    // same rule as IPv4.
    let mut seen = BTreeSet::new();
    found.users.retain(|user| seen.insert(user.rule.clone()));
    found
}

impl Found {
    /// A line for each rule that uses bits of this mask, with the remedy.
    pub fn conflicts(&self, mask: MarkMask) -> Vec<String> {
        let conflicting = self
            .users
            .iter()
            .filter(|user| user.bits & mask.bits() != 0);
        let remedy = match self.free() {
            Some(free) => format!(
                "change the rule, or write `marks {free};` into the policy: no other use of these bits \
                 was found"
            ),
            None => "change the rule: no run of five bits is free for Usher".to_owned(),
        };
        conflicting
            .map(|user| {
                format!(
                    "{} uses the bits {:#010x} of packets' marks, some of which are Usher's ({mask}): \
                     packets of governed programs may be routed wrongly or dropped; {remedy}",
                    user.rule,
                    user.bits & mask.bits()
                )
            })
            .collect()
    }

    /// The widest mask whose bits no found rule uses. If several are equally wide, the highest.
    fn free(&self) -> Option<MarkMask> {
        let used = self.users.iter().fold(0, |used, user| used | user.bits);
        let run = |from: u32| {
            let width = (!used >> from).trailing_ones().min(u32::BITS - from);
            let ones = ALL.checked_shr(u32::BITS - width).unwrap_or(0);
            (width, from, ones << from)
        };
        let widest = (0..u32::BITS).map(run).max()?;
        MarkMask::new(widest.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of each user.
    pub(super) fn bits(users: Vec<User>) -> Vec<u32> {
        users.into_iter().map(|user| user.bits).collect()
    }

    #[test]
    fn a_list_that_should_be_json_and_is_not_is_noted() {
        let [json, other] = [&TOOLS[0], &TOOLS[5]];
        assert!(json.require_json("[{".into()).is_err());
        for (tool, text) in [(json, "[]"), (json, "\n"), (other, "*mangle")] {
            assert_eq!(tool.require_json(text.into()).unwrap(), text);
        }
    }

    #[test]
    fn a_conflict_has_its_place_and_bits_that_are_free() {
        let user = |bits| User {
            rule: "a rule".into(),
            bits,
        };
        let found = |users: &[u32]| Found {
            users: users.iter().copied().map(user).collect(),
            unseen: Vec::new(),
        };
        let mask = MarkMask::default();
        assert!(found(&[0x000f_ffff]).conflicts(mask).is_empty());
        let conflicts = found(&[0x00ff_0000]).conflicts(mask);
        assert!(
            conflicts[0].starts_with("a rule uses the bits 0x00f00000"),
            "{conflicts:?}"
        );
        assert!(
            conflicts[0].contains("`marks 0x0000ffff;`"),
            "{conflicts:?}"
        );
        assert!(found(&[ALL]).conflicts(mask)[0].contains("no run of five bits"));
        assert_eq!(found(&[0xffff]).free(), MarkMask::new(0xffff_0000));
        assert_eq!(found(&[]).free(), MarkMask::new(ALL));
    }
}
