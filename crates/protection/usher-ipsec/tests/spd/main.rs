//! The entries of the SPD, the sysctls, and the programs that drop plaintext of services where entries
//! are missing.

#[macro_use]
#[path = "../world/mod.rs"]
mod world;

mod services;
mod strangers;

use std::path::PathBuf;

use rustix::thread::CapabilitySet;
use usher_ipsec::{Action, Entries, Event, Ipsec, Settings, Watcher, release};
use usher_protection::{Class, Destination, Kind, Level, Profile, ProtectedService, Tables};
use world::*;

const FOREIGN: [&str; 2] = [
    "ip xfrm policy add dir out src 192.0.2.0/24 dst 198.51.100.0/24 priority 30100 tmpl proto esp mode transport reqid 5",
    "ip xfrm policy add dir out dst 198.51.100.1/32 mark 0x300000 mask 0xf00000 priority 9 action block",
];

fn shell(command: &str) -> String {
    run("sh", &["-c", command])
}

/// The entries as text: without their priorities, but in the order of them.
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
                "{}{:#x}/{:#x} {} {} {}: {action}",
                if selected.inbound { "in " } else { "" },
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

const FLUSH: &str = "ip xfrm policy flush";

/// Acts without the privilege to change the SPD.
fn unable_to_change_the_spd<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

tests! {
    // Threat model: P50
    fn an_end_that_breaks_off_lets_nothing_pass(world) {
        let pins = PathBuf::from("/mnt/bpf/ipsec");
        let settings = Settings { pins: Some(pins.clone()), ..settings(world) };
        let record = settings.sysctls.clone().unwrap();
        let (mut governed, mut peer) = (Actor::governed(), Actor::peer());
        governed.run("u = udp()");
        peer.run("w = udp(); w.bind(('', 9))");
        for closes in [true, false] {
            let mut ipsec = Ipsec::open(&settings).unwrap();
            ipsec.apply(&secure()).unwrap();
            if closes {
                unable_to_change_the_spd(|| ipsec.close()).unwrap_err();
            } else {
                drop(ipsec);
                unable_to_change_the_spd(|| release(&pins, &record, settings.mask)).unwrap_err();
            }
            // A release that stopped may have removed all policies already.
            shell(FLUSH);
            let send = format!("u.sendto(b'x', ('{B}', 9))");
            // A kernel program that drops a packet need not tell its sender.
            let _dropped = governed.errno(&send);
            assert_eq!(peer.errno("w.settimeout(2); w.recv(1)"), libc::ETIMEDOUT, "closes: {closes}");
            // The twin: the release comes to its end.
            release(&pins, &record, settings.mask).unwrap();
            assert_eq!(governed.errno(&send), 0, "closes: {closes}");
            assert_eq!(peer.errno("w.settimeout(60); w.recv(1)"), 0, "closes: {closes}");
        }
    }

    // Threat model: P70
    fn a_class_of_ah_has_templates_of_ah(world) {
        const AH: Class = Class::new(Kind::Authentication, Profile::Ah);
        let mut ipsec = open(world);
        let of = |class| tables(&[(GOVERNED, vec![("0.0.0.0/0", mandatory(class))])]);
        for (class, protocol, other) in [(AH, "proto ah", "proto esp"), (AUTHENTICATION, "proto esp", "proto ah")] {
            ipsec.apply(&of(class)).unwrap();
            // No socket has a mark of the former rules.
            for _ in 0..2 {
                ipsec.adopt().unwrap();
            }
            let listed = shell("ip xfrm policy");
            assert!(listed.contains(protocol) && !listed.contains(other), "{listed}");
            // The policies are what they should be: none had to be put back.
            assert_eq!(ipsec.put_back().unwrap(), 0);
        }
    }

    fn the_entries_are_those_of_the_tables(world) {
        let mut ipsec = open(world);
        let policy = Tables { peers: [B.parse().unwrap()].into(), ..policy() };
        let applied = ipsec.apply(&policy).unwrap();
        assert_eq!(applied.missing.len(), 1, "{applied:?}");
        let entries = ipsec.spd_entries().unwrap();
        let told = told(&entries);
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        assert_eq!(told, [
            // Traffic that stays on the host, with every mark of a class.
            "0x100000/0xf00000 ::1/128 any any: allow",
            "0x200000/0xf00000 ::1/128 any any: allow",
            "0x300000/0xf00000 ::1/128 any any: allow",
            "0x500000/0xf00000 ::1/128 any any: allow",
            "0x600000/0xf00000 ::1/128 any any: allow",
            // The longest prefix first, then in the order of the items. Only peers are asked for SAs.
            "0x1000000/0xff000000 10.1.0.2/32 any 21: require 0x7500",
            "0x1000000/0xff000000 10.1.0.2/32 20 any: require 0x7501",
            "0x1000000/0xff000000 10.1.0.2/32 any any: block",
            "0x1000000/0xff000000 10.1.2.0/24 any any: allow",
            "0x1000000/0xff000000 10.1.0.0/16 any 21: block",
            "0x1000000/0xff000000 10.1.0.0/16 20 any: block",
            "0x1000000/0xff000000 10.1.0.0/16 any any: block",
            // The class of the socket's mark decides about the rest.
            "0x300000/0xf00000 10.1.0.2/32 any any: require 0x7500",
            "0x500000/0xf00000 10.1.0.2/32 any any: require 0x7501",
            "0x600000/0xf00000 10.1.0.2/32 any any: use 0x7501",
            "0x200000/0xf00000 0.0.0.0/0 any any: block",
            "0x300000/0xf00000 0.0.0.0/0 any any: block",
            "0x500000/0xf00000 0.0.0.0/0 any any: block",
            "0x600000/0xf00000 0.0.0.0/0 any any: allow",
            "0x200000/0xf00000 ::/0 any any: block",
            "0x300000/0xf00000 ::/0 any any: block",
            "0x500000/0xf00000 ::/0 any any: block",
            "0x600000/0xf00000 ::/0 any any: allow",
        ]);
        // The kernel says the same.
        let listed = shell("ip xfrm policy");
        assert_eq!(listed.matches("dir out").count(), told.len(), "{listed}");
        assert_eq!(ipsec.apply(&policy).unwrap().spd_changes, 0);
    }

    /// An earlier process's entries stay until there are tables: the first addresses change nothing.
    fn own_addresses_have_entries_while_they_are_there(world) {
        let mut ipsec = open(world);
        let of = |ipsec: &mut Ipsec, own: &str| {
            let own = format!(" {own}/128 ");
            told(&ipsec.spd_entries().unwrap()).iter().filter(|entry| entry.contains(&own)).count()
        };
        let [first, second] = ["2001:db8::1", "2001:db8::2"];
        let set = |ipsec: &mut Ipsec, own: &str| ipsec.set_own_addresses([own.parse().unwrap()].into()).unwrap();
        set(&mut ipsec, first);
        assert_eq!(of(&mut ipsec, first), 0);
        ipsec.apply(&policy()).unwrap();
        assert_eq!((of(&mut ipsec, first), of(&mut ipsec, "::1")), (5, 5));
        set(&mut ipsec, second);
        assert_eq!((of(&mut ipsec, first), of(&mut ipsec, second), of(&mut ipsec, "::1")), (0, 5, 5));
        assert_eq!(ipsec.put_back().unwrap(), 0);
    }

    /// A listener's answers have the mark of the SA, whatever level the policy has.
    fn an_optional_class_has_the_entry_of_its_sa(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("0.0.0.0/0", optional(AUTHENTICATION))])])).unwrap();
        let told = told(&ipsec.spd_entries().unwrap());
        for entry in ["0x500000/0xf00000 10.1.0.2/32 any any: require 0x7501", "0x600000/0xf00000 10.1.0.2/32 any any: use 0x7501"] {
            assert!(told.iter().any(|one| one == entry), "{told:?}");
        }
    }

    // Threat model: P53
    fn destinations_are_entries_for_sockets_without_a_mark(world) {
        let destination = |peer: &str| Destination {
            peer: peer.parse().unwrap(),
            port: 143,
            class: ENCRYPTION,
        };
        let peers = ["10.1.2.3", "fd00::3"].map(|peer| peer.parse().unwrap());
        let mut tables = Tables { peers: peers.into(), ..Tables::default() };
        let service = ProtectedService {
            port: 144,
            classes: [AUTHENTICATION].into(),
        };
        tables.add_services(vec![service], vec![destination("10.1.2.3"), destination("fd00::3")]);
        let mut ipsec = open(world);
        ipsec.apply(&tables).unwrap();
        let entries = ipsec.spd_entries().unwrap();
        assert_eq!(&entries, ipsec.wanted());
        let all = told(&entries);
        for entry in [
            "0x0/0xf00000 10.1.2.3/32 any 143: require 0x7500",
            "in 0x0/0xf00000 10.1.2.3/32 any 143: block",
            "0x0/0xf00000 fd00::3/128 any 143: require 0x7500",
            "in 0x0/0xf00000 fd00::3/128 any 143: block",
            "0x300000/0xf00000 10.1.2.3/32 any any: require 0x7500",
            "0x500000/0xf00000 fd00::3/128 any any: require 0x7501",
        ] {
            assert!(all.iter().any(|one| one == entry), "{entry}: {all:#?}");
        }
        let listed = shell("ip xfrm policy");
        for line in [
            "src 0.0.0.0/0 dst 10.1.2.3/32 proto tcp dport 143",
            "src 10.1.2.3/32 dst 0.0.0.0/0 proto tcp sport 143",
        ] {
            assert!(listed.contains(line), "{line}: {listed}");
        }
        shell("ip xfrm policy flush");
        assert!(ipsec.put_back().unwrap() > 0);
        assert_eq!(&ipsec.spd_entries().unwrap(), ipsec.wanted());
        ipsec.apply(&Tables::default()).unwrap();
        let left = told(&ipsec.spd_entries().unwrap());
        assert!(!left.iter().any(|entry| entry.contains("143")), "{left:?}");
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

    // Threat model: P9
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

    // Threat model: P12
    fn only_changes_of_our_entries_by_others_count(world) {
        let mut ipsec = open(world);
        let watcher = Watcher::open().unwrap();
        let ours = ipsec.ours();
        let seen = || watcher.take_of_others(Some(&ours)).unwrap().events;
        ipsec.apply(&policy()).unwrap();
        ipsec.hold(AUTHENTICATION, B.parse().unwrap()).unwrap();
        shell(FOREIGN[0]);
        shell("ip xfrm policy delete dir out src 192.0.2.0/24 dst 198.51.100.0/24");
        assert_eq!(seen(), []);
        shell("ip xfrm policy delete dir out dst 0.0.0.0/0 mark 0x300000 mask 0xf00000");
        assert_eq!(seen(), [Event::SpdChanged]);
        assert_eq!(ipsec.put_back().unwrap(), 1);
        assert_eq!(seen(), []);
        shell(FLUSH);
        assert!(seen().contains(&Event::SpdChanged));
        // The rest of many changes waits.
        let one = "xfrm policy update dir out dst 0.0.0.0/0 mark 0x300000 mask 0xf00000 priority 162097 action allow";
        shell(&format!("yes '{one}' | head -n 100 | ip -batch -"));
        let taken = watcher.take_of_others(Some(&ours)).unwrap();
        assert!(taken.is_all && taken.events.len() <= 101, "{}", taken.events.len());
    }

    fn a_packet_that_needs_an_sa_is_announced(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("0.0.0.0/0", mandatory(AUTHENTICATION))])])).unwrap();
        let watcher = Watcher::open().unwrap();
        let mut governed = Actor::governed();
        governed.run("s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.2', 80))");
        let (source, peer) = ("10.1.0.1".parse().unwrap(), B.parse().unwrap());
        let expected = Event::Acquire { source, peer, reqid: usher_ipsec::reqid(AUTHENTICATION) };
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
