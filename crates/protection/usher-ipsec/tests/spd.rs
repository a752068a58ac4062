//! The entries of the SPD, and the sysctls.

#[macro_use]
mod world;

use usher_ipsec::{Action, Entries, Event, Watcher};
use usher_protection::{Level, Tables};
use world::*;

const FOREIGN: [&str; 2] = [
    "ip xfrm policy add dir out src 192.0.2.0/24 dst 198.51.100.0/24 priority 30100 tmpl proto esp mode transport reqid 5",
    "ip xfrm policy add dir out dst 198.51.100.1/32 mark 0x300000 mask 0xf00000 priority 9 action block",
];

fn shell(command: &str) -> String {
    run("sh", &["-c", command])
}

/// Entries in words, without their priorities but in their order.
fn told(entries: &Entries) -> Vec<String> {
    let mut all: Vec<_> = entries.iter().collect();
    all.sort_by_key(|(selected, entry)| (entry.priority, **selected));
    all.iter()
        .map(|(selected, entry)| {
            let port = |port: Option<u16>| port.map_or("any".to_owned(), |port| port.to_string());
            let action = match entry.action.unwrap() {
                Action::Allow => "allow".to_owned(),
                Action::Block => "block".to_owned(),
                Action::Protect {
                    reqid,
                    optional: true,
                } => format!("use {reqid:#x}"),
                Action::Protect {
                    reqid,
                    optional: false,
                } => format!("require {reqid:#x}"),
            };
            format!(
                "{:#x}/{:#x} {} {} {}: {action}",
                selected.mark,
                selected.mark_bits,
                selected.destination,
                port(selected.local_port),
                port(selected.remote_port)
            )
        })
        .collect()
}

fn policy() -> Tables {
    tables(&[
        (
            GOVERNED,
            vec![
                (
                    "10.1.0.0/16",
                    To::Protected(vec![
                        (0, 21, ENCRYPTION, Level::Mandatory),
                        (20, 0, AUTHENTICATION, Level::Mandatory),
                    ]),
                ),
                ("10.1.2.0/24", To::Trusted),
                ("0.0.0.0/0", optional(AUTHENTICATION)),
                ("::/0", optional(AUTHENTICATION)),
            ],
        ),
        (
            "no-such-program",
            vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)],
        ),
    ])
}

tests! {
    fn the_entries_are_those_of_the_tables(world) {
        let mut ipsec = open(world);
        let applied = ipsec.apply(&policy()).unwrap();
        assert_eq!(applied.missing.len(), 1, "{applied:?}");
        let entries = ipsec.spd_entries().unwrap();
        let told = told(&entries);
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        assert_eq!(told, [
            // The longest prefix first, then in the order of the items.
            "0x1000000/0xff000000 10.1.2.0/24 any any: allow",
            "0x1000000/0xff000000 10.1.0.0/16 any 21: require 0x7500",
            "0x1000000/0xff000000 10.1.0.0/16 20 any: require 0x7501",
            "0x1000000/0xff000000 10.1.0.0/16 any any: block",
            // What remains is the class of the socket's mark.
            "0x200000/0xf00000 0.0.0.0/0 any any: block",
            "0x300000/0xf00000 0.0.0.0/0 any any: require 0x7500",
            "0x500000/0xf00000 0.0.0.0/0 any any: require 0x7501",
            "0x600000/0xf00000 0.0.0.0/0 any any: use 0x7501",
            "0x200000/0xf00000 ::/0 any any: block",
            "0x300000/0xf00000 ::/0 any any: require 0x7500",
            "0x500000/0xf00000 ::/0 any any: require 0x7501",
            "0x600000/0xf00000 ::/0 any any: use 0x7501",
        ]);
        // The kernel says the same.
        let listed = shell("ip xfrm policy");
        assert_eq!(listed.matches("dir out").count(), told.len(), "{listed}");
        assert_eq!(ipsec.apply(&policy()).unwrap().spd_changes, 0);
    }

    fn entries_of_others_are_not_touched(world) {
        for command in FOREIGN {
            shell(command);
        }
        let before = shell("ip xfrm policy");
        let mut ipsec = open(world);
        ipsec.apply(&policy()).unwrap();
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.0.0.0/8", To::Trusted)])])).unwrap();
        let during = shell("ip xfrm policy");
        assert!(during.len() > before.len());
        for line in before.lines() {
            assert!(during.contains(line), "{line}: {during}");
        }
        ipsec.close().unwrap();
        assert_eq!(shell("ip xfrm policy"), before);
    }

    fn changes_by_others_are_seen_and_put_back(world) {
        let mut ipsec = open(world);
        ipsec.apply(&policy()).unwrap();
        let entries = ipsec.spd_entries().unwrap();
        let watcher = Watcher::open().unwrap();
        assert_eq!(watcher.take().unwrap(), []);
        for (change, number) in [
            ("ip xfrm policy flush", entries.len()),
            ("ip xfrm policy delete dir out dst 0.0.0.0/0 mark 0x300000 mask 0xf00000", 1),
            // No longer encrypted.
            ("ip xfrm policy update dir out dst 0.0.0.0/0 mark 0x300000 mask 0xf00000 priority 162097 \
              action allow", 1),
            // Another SA.
            ("ip xfrm policy update dir out dst ::/0 mark 0x300000 mask 0xf00000 priority 162097 \
              tmpl proto esp mode transport reqid 1", 1),
            // Another order.
            ("ip xfrm policy update dir out dst ::/0 mark 0x200000 mask 0xf00000 priority 1 action block", 1),
            // One that was never ours.
            ("ip xfrm policy add dir out dst 10.1.2.3/32 mark 0x1000000 mask 0xff000000 priority 31000", 1),
        ] {
            shell(change);
            eventually("it is seen", || watcher.take().unwrap().contains(&Event::SpdChanged));
            assert_eq!(ipsec.put_back().unwrap(), number, "{change}");
            assert_eq!(ipsec.spd_entries().unwrap(), entries, "{change}");
            assert_eq!(ipsec.put_back().unwrap(), 0);
            watcher.take().unwrap();
        }
    }

    fn a_packet_that_needs_an_sa_is_announced(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("0.0.0.0/0", mandatory(AUTHENTICATION))])])).unwrap();
        let watcher = Watcher::open().unwrap();
        let mut governed = Actor::governed();
        governed.run("s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.2', 80))");
        let peer = B.parse().unwrap();
        let expected = Event::Acquire { peer, reqid: usher_ipsec::reqid(AUTHENTICATION) };
        let mut seen = Vec::new();
        eventually("the acquire is seen", || {
            seen.extend(watcher.take().unwrap());
            seen.contains(&expected)
        });
    }

    fn sysctls_get_their_former_values_again(world) {
        let value = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap();
        std::fs::write("/proc/sys/net/ipv4/fwmark_reflect", "1").unwrap();
        assert_eq!(value("core/xfrm_larval_drop"), "1\n");
        let ipsec = open(world);
        assert_eq!(value("ipv4/tcp_fwmark_accept"), "1\n");
        assert_eq!(value("core/xfrm_larval_drop"), "0\n");
        // Another process takes over.
        drop(ipsec);
        let ipsec = open(world);
        assert!(ipsec.changed_sysctls().unwrap().is_empty());
        std::fs::write("/proc/sys/net/ipv4/tcp_rfc1337", "0").unwrap();
        assert_eq!(ipsec.changed_sysctls().unwrap(), ["net/ipv4/tcp_rfc1337"]);
        ipsec.close().unwrap();
        assert_eq!(value("ipv4/tcp_fwmark_accept"), "0\n");
        assert_eq!(value("core/xfrm_larval_drop"), "1\n");
        assert_eq!(value("ipv4/fwmark_reflect"), "1\n");
    }
}
