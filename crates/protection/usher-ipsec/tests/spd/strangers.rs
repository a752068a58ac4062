//! Traffic with addresses that no SA can be for, and the queues in which packets wait for SAs.

use usher_ipsec::{Action, Ipsec, Watcher, asks_strangers};
use usher_protection::{Level, Tables};

use super::shell;
use crate::world::*;

/// The places in a queue of packets that wait for an SA: the kernel takes one packet more than
/// XFRM_MAX_QUEUE_LEN.
const PLACES: u32 = 101;

/// Sends to as many different addresses, which no host has, and returns the errors by their numbers.
fn to_strangers(governed: &mut Actor, family: u8, count: u32) -> String {
    governed.run(&format!(
        "u = udp({family}); u.setblocking(0)
found = {{}}
for number in range({count}):
 to = '198.%d.%d.1' % (18 + number // 256, number % 256) if {family} == 4 else 'fd99::%x' % (number + 1)
 try: u.sendto(b'x', (to, 9)); errno = 0
 except OSError as error: errno = error.errno
 found[errno] = found.get(errno, 0) + 1
r = ' '.join('%d:%d' % one for one in sorted(found.items()))"
    ))
}

/// Sends to one address until an error comes, and returns how many datagrams were taken; at most 200.
fn taken(governed: &mut Actor, to: &str) -> u32 {
    let family = if to.contains(':') { 6 } else { 4 };
    governed.number(&format!(
        "(lambda u: (u.setblocking(0), next((n for n in range(200) if not taken(u, '{to}')), 200))[1])(udp({family}))"
    ))
}

fn governed() -> Actor {
    let mut governed = Actor::governed();
    governed.run(
        "def taken(u, to):
 try: u.sendto(b'x', (to, 9)); return True
 except BlockingIOError: return False",
    );
    governed
}

/// The number of the kernel's SAs that wait to be negotiated.
fn waiting() -> usize {
    shell("ip xfrm state").matches("proto esp").count()
}

/// All other hosts are behind host B, which forwards nothing.
fn route_everything() {
    for (family, gateway) in [("-4", B), ("-6", B6)] {
        run("ip", &[family, "route", "add", "default", "via", gateway]);
    }
}

/// Policies whose networks are wider than their peers: by class marks alone, and by signatures.
fn policies(of: impl Fn(usher_protection::Class) -> To) -> [usher_protection::Tables; 3] {
    let everywhere = |to: To| vec![("0.0.0.0/0", to.clone()), ("::/0", to)];
    let To::Protected(rest) = of(AUTHENTICATION) else {
        unreachable!("it protects")
    };
    let with_ports = [(0, 21, ENCRYPTION, rest[0].3), rest[0]].to_vec();
    let wide = vec![
        ("198.0.0.0/8", of(ENCRYPTION)),
        ("10.1.0.0/16", of(ENCRYPTION)),
        ("fd00::/8", of(ENCRYPTION)),
    ];
    [
        tables(&[(GOVERNED, everywhere(of(ENCRYPTION)))]),
        tables(&[(GOVERNED, everywhere(To::Protected(with_ports)))]),
        tables(&[(GOVERNED, wide)]),
    ]
}

fn forget(ipsec: &mut Ipsec) {
    // The SPD first, because a packet that waits at one of its entries asks again.
    shell("ip xfrm policy flush; ip xfrm state flush");
    ipsec.put_back().unwrap();
}

tests! {
    // Threat model: P64
    fn nothing_asks_for_sas_with_strangers(world) {
        const COUNT: u32 = 1_000;
        route_everything();
        // The kernel asks only if somebody listens, and has room for the question.
        let watcher = Watcher::open().unwrap();
        let mut ipsec = open(world);
        for (number, (mandatory, optional)) in policies(mandatory).into_iter().zip(policies(optional)).enumerate() {
            for (policy, outcome) in [(&mandatory, EPERM), (&optional, 0)] {
                ipsec.apply(policy).unwrap();
                watcher.take().unwrap();
                let mut governed = governed();
                for family in [4, 6] {
                    let found = to_strangers(&mut governed, family, COUNT);
                    assert_eq!(found, format!("'{outcome}:{COUNT}'"), "{number} IPv{family}");
                    // A connection as well.
                    let to = if family == 4 { "198.18.0.1" } else { "fd99::1" };
                    let connect = format!("t = tcp({family}); t.setblocking(0); t.connect(('{to}', 9))");
                    let expected = if outcome == 0 { libc::EINPROGRESS } else { outcome };
                    assert_eq!(governed.errno(&connect), expected, "{number} {to}");
                }
                assert_eq!(waiting(), 0, "{number}");
                // The twin: a peer is asked for, once.
                for peer in [B, B6] {
                    taken(&mut governed, peer);
                }
                assert_eq!(waiting(), 2, "{number}");
                forget(&mut ipsec);
            }
        }
    }

    // Threat model: P64, P65
    fn no_peer_waits_in_the_queue_of_another(world) {
        route_everything();
        let mut ipsec = open(world);
        for (number, policy) in policies(mandatory).into_iter().enumerate() {
            ipsec.apply(&policy).unwrap();
            let mut governed = governed();
            to_strangers(&mut governed, 4, 2 * PLACES);
            for peer in [B_TOO, B, "fd01::3", B6] {
                assert_eq!(taken(&mut governed, peer), PLACES, "{number} {peer}");
            }
            forget(&mut ipsec);
        }
    }

    /// Sockets with a signature select entries of their own, in which the policy's `optional` stands.
    fn every_entry_of_a_held_peer_is_required(world) {
        let mut ipsec = open(world);
        let by_signature = tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Protected(vec![
            (0, 21, ENCRYPTION, Level::Optional),
            (0, 0, AUTHENTICATION, Level::Optional),
        ]))])]);
        ipsec.apply(&by_signature).unwrap();
        let levels = |ipsec: &mut Ipsec, peer: &str| {
            let peer = ipnet::IpNet::from(peer.parse::<std::net::IpAddr>().unwrap());
            let entries = ipsec.spd_entries().unwrap();
            assert_eq!(&entries, ipsec.wanted());
            let of_peer = entries.iter().filter(|(selected, _)| selected.destination == peer);
            let of_class = of_peer.filter_map(|(_, entry)| match entry.action {
                Some(Action::Protect { reqid, optional }) if reqid == usher_ipsec::reqid(AUTHENTICATION) => Some(optional),
                _ => None,
            });
            of_class.collect::<Vec<bool>>()
        };
        // By the class at both of its levels, and by the signature.
        let usual = levels(&mut ipsec, B);
        assert!(usual.len() > 2 && usual.contains(&true), "{usual:?}");
        let peer = B.parse().unwrap();
        ipsec.hold(AUTHENTICATION, peer).unwrap();
        assert_eq!(levels(&mut ipsec, B), vec![false; usual.len()]);
        assert_eq!(levels(&mut ipsec, B_TOO), usual, "another peer");
        // The same from a policy that comes into force meanwhile.
        ipsec.apply(&by_signature).unwrap();
        assert_eq!(levels(&mut ipsec, B), vec![false; usual.len()]);
        ipsec.let_go(AUTHENTICATION, peer).unwrap();
        assert_eq!(levels(&mut ipsec, B), usual);
    }

    fn a_peer_whose_block_comes_later_is_asked_for(world) {
        let watcher = Watcher::open().unwrap();
        let mut ipsec = open(world);
        for policy in policies(mandatory) {
            let without = Tables { peers: [B6.parse().unwrap()].into(), ..policy.clone() };
            let mut governed = governed();
            // A new socket: the first datagram of an open one may be lost when the policy changes.
            let send = format!("u = udp(); u.setblocking(0); u.sendto(b'x', ('{B}', 9))");
            for (tables, outcome, asked) in [(&without, EPERM, 0), (&policy, 0, 1), (&without, EPERM, 0)] {
                ipsec.apply(tables).unwrap();
                // Only now: a packet that waits at a former entry asks again.
                shell("ip xfrm state flush");
                watcher.take().unwrap();
                assert_eq!(governed.errno(&send), outcome);
                assert_eq!(waiting(), asked);
            }
        }
    }

    /// Peers without an entry of their own are protected all the same.
    // Threat model: P64
    fn with_too_many_peers_wide_entries_ask(world) {
        if is_emulated() {
            println!("skipped: 131,072 entries take too long in an emulated machine");
            return;
        }
        let watcher = Watcher::open().unwrap();
        let mut ipsec = open(world);
        let [by_class, by_signature, _] = policies(mandatory);
        let with = |tables: &Tables, count: u32| {
            let peer = |number: u32| std::net::Ipv4Addr::from(0x1e00_0000 + number).into();
            Tables { peers: (0..count).map(peer).collect(), ..tables.clone() }
        };
        // The first takes one entry for each peer, the second three: two classes, and one of its two lines
        // by its signature.
        for (tables, most) in [(by_class, 131_072), (by_signature, 131_072 / 3)] {
            ipsec.apply(&with(&tables, most)).unwrap();
            assert!(!asks_strangers(ipsec.wanted()));
            ipsec.apply(&with(&tables, most + 1)).unwrap();
            assert!(asks_strangers(ipsec.wanted()));
            assert_eq!(&ipsec.spd_entries().unwrap(), ipsec.wanted());
            while !watcher.take_of_others(None).unwrap().is_all {}
            let mut governed = governed();
            let send = "u = udp(); u.setblocking(0); u.sendto(b'x', ('10.1.0.2', 21))";
            assert_eq!(governed.errno(send), 0);
            assert_eq!(waiting(), 1);
            forget(&mut ipsec);
        }
    }

    /// A list for all entries in one network would make each change slower than the one before.
    // Threat model: P64
    fn the_kernel_hashes_the_entries_of_peers(world) {
        const USUAL: &str = "SPD IPv4 thresholds: local 32 remote 32";
        const OURS: &str = "SPD IPv4 thresholds: local 0 remote 32";
        const OF_OTHERS: &str = "SPD IPv4 thresholds: local 24 remote 24";
        let searched = || shell("ip -s -s xfrm policy count");
        let mut ipsec = open(world);
        assert!(searched().contains(USUAL));
        ipsec.apply(&secure()).unwrap();
        assert!(searched().contains(OURS));
        // charon sets it when it starts.
        shell("ip xfrm policy set hthresh4 32 32");
        ipsec.put_back().unwrap();
        assert!(searched().contains(OURS));
        ipsec.close().unwrap();
        assert!(searched().contains(USUAL));
        // An administrator has chosen otherwise.
        shell("ip xfrm policy set hthresh4 24 24");
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        assert!(searched().contains(OF_OTHERS));
        ipsec.close().unwrap();
        assert!(searched().contains(OF_OTHERS));
    }
}
