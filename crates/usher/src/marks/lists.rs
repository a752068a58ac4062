//! Readers of lists of rules: which bits of packets' marks each rule sets or compares.

use serde_json::Value;
use usher_policy::protection::class_of;

use super::{ALL, User};

/// A number in hexadecimal (`0x1f`) or decimal.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The bits of `VALUE/MASK`, or of `VALUE`, which stands for all.
fn bits_of(text: &str) -> u32 {
    match text.split_once('/') {
        Some((value, mask)) => match (number(value), number(mask)) {
            (Some(value), Some(mask)) => value | mask,
            _ => ALL,
        },
        None => ALL,
    }
}

pub(super) fn routing_rules(text: &str) -> Vec<User> {
    let rules: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let users = rules.iter().filter_map(|rule| {
        let of = |name: &str| {
            rule.get(name)
                .map(|value| value.to_string().replace('"', ""))
        };
        let mark = of("fwmark")?;
        let mask = of("fwmask");
        let (priority, table) = (of("priority"), of("table"));
        let shown = match &mask {
            Some(mask) => format!("{mark}/{mask}"),
            None => mark,
        };
        Some(User {
            bits: mask
                .as_deref()
                .map_or(ALL, |mask| number(mask).unwrap_or(ALL)),
            rule: format!(
                "the routing rule {} (ip rule: fwmark {shown} lookup {})",
                priority.unwrap_or_default(),
                table.unwrap_or_default()
            ),
        })
    });
    users.collect()
}

/// Entries of the SPD and SAs, except those of Usher's classes. Entries without a template are left
/// out too, because Usher has such entries.
pub(super) fn xfrm(text: &str) -> Vec<User> {
    let mut users = Vec::new();
    let mut entry: Vec<&str> = Vec::new();
    for line in text.lines().chain(["src"]) {
        if line.starts_with("src") && !entry.is_empty() {
            let words: Vec<&str> = entry
                .iter()
                .flat_map(|line| line.split_whitespace())
                .collect();
            let after = |word: &str| {
                let at = words.iter().position(|own| *own == word)?;
                words.get(at + 1).copied()
            };
            let reqid = after("reqid").and_then(|id| number(id.split('(').next()?));
            let is_ours = reqid.is_none_or(|id| class_of(id).is_some());
            for word in ["mark", "output-mark"] {
                if let Some(mark) = after(word).filter(|_| !is_ours) {
                    users.push(User {
                        rule: format!("IPsec of others ({}: {word} {mark})", entry[0].trim()),
                        bits: bits_of(mark),
                    });
                }
            }
            entry.clear();
        }
        entry.push(line);
    }
    users
}

pub(super) fn iptables(text: &str) -> Vec<User> {
    let mut table = "";
    let mut users = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        if !line.starts_with("-A") {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut module = "";
        let mut bits = 0;
        for pair in words.windows(2) {
            let [word, value] = pair else { continue };
            bits |= match *word {
                "-m" | "-j" => {
                    module = value;
                    match *value {
                        // Without --nfmask the rule writes the whole mark.
                        "CONNMARK" if line.contains("--restore-mark") => {
                            let mask = words.iter().position(|word| *word == "--nfmask");
                            let mask = mask.and_then(|at| words.get(at + 1));
                            mask.and_then(|mask| number(mask)).unwrap_or(ALL)
                        }
                        _ => 0,
                    }
                }
                "--mark" if module == "mark" => bits_of(value),
                "--set-xmark" | "--set-mark" if module == "MARK" => bits_of(value),
                "--or-mark" | "--xor-mark" if module == "MARK" => number(value).unwrap_or(ALL),
                "--and-mark" if module == "MARK" => number(value).map_or(ALL, |kept| !kept),
                "--tproxy-mark" => bits_of(value),
                _ => 0,
            };
        }
        if bits != 0 {
            users.push(User {
                rule: format!("the rule of iptables `{line}` in table {table}"),
                bits,
            });
        }
    }
    users
}

pub(super) fn wireguard(text: &str) -> Vec<User> {
    let users = text.lines().filter_map(|line| {
        let (interface, mark) = line.split_once('\t')?;
        // The interface sets all bits of its packets' marks.
        let bits = number(mark).filter(|mark| *mark != 0)?;
        Some(User {
            rule: format!("the interface {interface} of WireGuard (fwmark {mark})"),
            bits,
        })
    });
    users.collect()
}

pub(super) fn units(text: &str) -> Vec<User> {
    let users = text.split("\n\n").filter_map(|unit| {
        let of = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name));
        let (id, mark) = (of("Id=")?, of("Mark=")?);
        // -1: the unit sets no mark.
        let bits = number(mark).filter(|mark| *mark != 0)?;
        Some(User {
            rule: format!("the unit {id} (Mark={mark})"),
            bits,
        })
    });
    users.collect()
}

pub(super) fn strongswan(path: &str, text: &str) -> Vec<User> {
    let users = text.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        let value = value.split('#').next()?.trim();
        (name.trim() == "fwmark" && !value.is_empty()).then(|| User {
            rule: format!("charon (fwmark = {value} in {path})"),
            bits: bits_of(value.trim_start_matches('!')),
        })
    });
    users.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::bits;
    use super::*;

    #[test]
    fn routing_rules_with_marks_are_found() {
        let listed = r#"[{"priority":0,"src":"all","table":"local"},
            {"priority":100,"src":"all","fwmark":"0x100000","fwmask":"0xf00000","table":"7"},
            {"priority":101,"not":null,"src":"all","fwmark":"0xca6c","table":"51820"}]"#;
        let users = routing_rules(listed);
        assert!(
            users[0].rule.contains("fwmark 0x100000/0xf00000 lookup 7"),
            "{users:?}"
        );
        assert_eq!(bits(users), [0x00f0_0000, ALL]);
    }

    #[test]
    fn rules_of_iptables_with_marks_are_found() {
        // Rules as Tailscale, Docker and kube-proxy make them.
        let saved = "*mangle\n:OUTPUT ACCEPT [0:0]\n\
            -A PREROUTING -m mark --mark 0x40000/0xff0000 -j ACCEPT\n\
            -A OUTPUT -p tcp -j MARK --set-xmark 0x4000/0x4000\n\
            -A OUTPUT -m connmark --mark 0x1 -j ACCEPT\n\
            -A OUTPUT -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff\n\
            -A OUTPUT -j CONNMARK --restore-mark --nfmask 0xff0000 --ctmask 0xff0000\n\
            -A OUTPUT -j MARK --and-mark 0xfffff\n\
            -A OUTPUT -p tcp --dport 22 -j ACCEPT\nCOMMIT\n";
        let found = [0x00ff_0000, 0x4000, 0x00ff_0000, 0xfff0_0000];
        assert_eq!(bits(iptables(saved)), found);
    }

    #[test]
    fn ipsec_of_others_is_found_and_usher_s_is_not() {
        let listed = "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out priority 162098 ptype main \n\
            \tmark 0x300000/0xf00000 \n\ttmpl src 0.0.0.0 dst 0.0.0.0\n\
            \t\tproto esp reqid 29952 mode transport\n\
            src 10.0.0.0/8 dst 10.0.0.0/8 \n\tdir out priority 375423 \n\tmark 0x2a/0xffffffff \n\
            \ttmpl src 192.0.2.1 dst 192.0.2.2\n\t\tproto esp reqid 1 mode tunnel\n\
            src 192.0.2.1 dst 192.0.2.2\n\tproto esp spi 0xc0000001 reqid 2 mode tunnel\n\
            \toutput-mark 0x1000/0xf000\n";
        assert_eq!(bits(xfrm(listed)), [ALL, 0xf000]);
    }

    #[test]
    fn marks_of_units_wireguard_and_charon_are_found() {
        let units = units("Id=a.socket\nMark=-1\n\nId=b.socket\nMark=16777216\n");
        assert_eq!(bits(units), [0x0100_0000]);
        assert_eq!(bits(wireguard("wg0\toff\nwg1\t0xca6c\n")), [0xca6c]);
        let settings = "kernel-netlink {\n  # fwmark =\n  fwmark = !0x42/0xff\n}\n";
        assert_eq!(bits(strongswan("x", settings)), [0xff]);
    }
}
