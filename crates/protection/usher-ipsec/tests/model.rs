//! The kernel decides as the reference does (`Tables::treat`), on random tables.

#[macro_use]
mod world;

use std::cell::Cell;
use std::net::IpAddr;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use usher_ipsec::{Action, Entries, MarkMask, reqid};
use usher_protection::{Class, Item, Kind, Level, Profile, Tables, Treatment, Verdict};
use world::*;

/// Addresses at and near the boundaries of the networks.
const ADDRESSES: [&str; 12] = [
    "0.0.0.1",
    "10.0.0.0",
    "10.0.0.255",
    "10.0.1.0",
    "10.1.255.255",
    "10.255.255.255",
    "11.0.0.0",
    "255.255.255.254",
    "fd00::",
    "fd00::1:0:0:0",
    "fd00:0:0:1::",
    "::fffe:a00:1",
];

fn network() -> impl Strategy<Value = IpNet> {
    (prop::sample::select(ADDRESSES.to_vec()), 0..=128_u8).prop_map(|(address, length)| {
        let address: IpAddr = address.parse().unwrap();
        let most = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, length % (most + 1)).unwrap().trunc()
    })
}

/// 0: any.
fn port() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0, 0, 1, 21, 256, 0x1500, u16::MAX])
}

fn tables() -> impl Strategy<Value = Tables> {
    let list = prop::collection::vec((port(), port(), 0..8_usize), 1..6);
    let lists = prop::collection::vec(list, 1..5);
    let application = prop::collection::vec((network(), 0..8_usize), 0..8);
    (lists, prop::collection::vec(application, 1..4)).prop_map(|(lists, applications)| {
        let classes = Class::ALL.into_iter();
        let classes = classes.flat_map(|one| [(one, Level::Mandatory), (one, Level::Optional)]);
        let item = |(local, remote, class): (u16, u16, usize)| Item {
            local_port: local.try_into().ok(),
            remote_port: remote.try_into().ok(),
            class,
        };
        let lists = lists
            .into_iter()
            .map(|list| list.into_iter().map(item).collect());
        let mut tables = Tables {
            classes: classes.collect(),
            item_lists: lists.collect(),
            peers: ADDRESSES
                .iter()
                .step_by(2)
                .map(|peer| peer.parse().unwrap())
                .collect(),
            ..Tables::default()
        };
        for (number, networks) in applications.into_iter().enumerate() {
            let mut all: Vec<(IpNet, Treatment)> = Vec::new();
            let remaining = ["0.0.0.0/0", "::/0"].map(|all| (all.parse().unwrap(), number % 2));
            for (network, treatment) in networks.into_iter().chain(remaining) {
                let treatment = match treatment {
                    0 => Treatment::Bypass,
                    1 => Treatment::Discard,
                    list => Treatment::Items(list % tables.item_lists.len()),
                };
                if !all.iter().any(|(known, _)| *known == network) {
                    all.push((network, treatment));
                }
            }
            all.sort();
            let program = if number == 0 { GOVERNED } else { "/no/program" };
            add(
                &mut tables,
                &format!("{program}{}", ["", "-1", "-2"][number]),
                all,
            );
        }
        tables
    })
}

fn number(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Bypass => 1,
        Verdict::Discard => 2,
        Verdict::Protect(class, level) => class.mark(level),
    }
}

/// The action of the SPD on a packet of this mark.
fn by_spd(entries: &Entries, mark: u32, peer: IpAddr, local: u16, remote: u16) -> Action {
    let fits = |own: Option<u16>, port| own.is_none_or(|own| own == port);
    entries
        .iter()
        .filter(|(selected, _)| {
            mark & selected.mark_bits == selected.mark
                && selected.destination.contains(&peer)
                && fits(selected.local_port, local)
                && fits(selected.remote_port, remote)
        })
        .min_by_key(|(_, entry)| entry.priority)
        .map_or(Action::Allow, |(_, entry)| entry.action.unwrap())
}

/// Only with peers there can be SAs.
fn action(verdict: Verdict, is_peer: bool) -> Action {
    match verdict {
        Verdict::Bypass => Action::Allow,
        Verdict::Discard => Action::Block,
        Verdict::Protect(_, Level::Mandatory) if !is_peer => Action::Block,
        Verdict::Protect(_, Level::Optional) if !is_peer => Action::Allow,
        Verdict::Protect(class, level) => Action::Protect {
            reqid: reqid(class),
            optional: level == Level::Optional,
        },
    }
}

/// Runs `check` with tables in force and questions: peer, local port, remote port.
fn on_random_tables(
    cases: u32,
    questions: usize,
    mut check: impl FnMut(&Tables, &[(IpAddr, u16, u16)]),
) {
    let address = prop::sample::select(ADDRESSES.to_vec());
    let address = address.prop_map(|address| address.parse::<IpAddr>().unwrap());
    let question = (address, port(), port());
    let strategy = (tables(), prop::collection::vec(question, questions));
    let config = Config {
        cases: if is_emulated() { cases / 10 } else { cases },
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let check = std::cell::RefCell::new(&mut check);
    TestRunner::new(config)
        .run(&strategy, |(tables, questions)| {
            (check.borrow_mut())(&tables, &questions);
            Ok(())
        })
        .unwrap();
}

tests! {
    fn the_kernel_decides_as_the_tables_say(world) {
        let mut ipsec = open(world);
        let seen = Cell::new([0_u64; 11]);
        on_random_tables(300, 60, |tables, questions| {
            ipsec.apply(tables).unwrap();
            for application in 0..tables.applications.len() {
                for &(peer, local, remote) in questions {
                    let expected = number(tables.treat(application, peer, local, remote));
                    let decided = ipsec.monitor().decide(application as u32, peer, local, remote);
                    assert_eq!(decided.unwrap(), expected, "{application} {peer} {local} {remote}");
                    let mut counts = seen.get();
                    counts[usize::from(expected)] += 1;
                    seen.set(counts);
                }
            }
        });
        eprintln!("by class number: {:?}", seen.get());
        // All have been decided about.
        assert!(seen.get()[1..].iter().all(|count| *count > 0), "{:?}", seen.get());
    }

    fn the_spd_treats_datagrams_as_the_tables_say(world) {
        let mut ipsec = open(world);
        let mut governed = Actor::governed();
        on_random_tables(100, 100, |tables, questions| {
            ipsec.apply(tables).unwrap();
            let entries = ipsec.spd_entries().unwrap();
            assert_eq!(&entries, ipsec.wanted());
            let marks = [4, 6].map(|family| governed.number(&format!("mark(udp({family}))")));
            for &(peer, local, remote) in questions {
                let is_peer = tables.peers.contains(&peer);
                let expected = action(tables.treat(0, peer, local, remote), is_peer);
                // An IPv6 socket sends IPv4 packets to mapped addresses.
                let marks = if peer.is_ipv4() { &marks[..] } else { &marks[1..] };
                for mark in marks {
                    let found = by_spd(&entries, *mark, peer, local, remote);
                    assert_eq!(found, expected, "{mark:#x} {peer} {local} {remote}");
                }
            }
        });
    }

    /// A program whose block is the same in all policies, and one without a block, keep their marks and
    /// see no error while the other blocks change.
    fn others_do_not_notice_a_change(world) {
        const STEADY: &str = "/mnt/steady";
        const ATTEMPTS: &str = "
u, c, t, l = udp(), udp(), tcp(), tcp(6)
c.connect(('10.1.0.3', 9))
t.connect(('10.1.0.3', 80))
l.bind(('', PORT))
l.listen()
marks = set()
def note(): marks.add((mark(u), mark(c), mark(t), mark(l), mark(udp())))
def fresh():
    with tcp() as made:
        made.setsockopt(1, 13, struct.pack('ii', 1, 0))
        made.connect(('10.1.0.3', 80))
counts = keep_trying({
    'marks': note,
    'fresh': fresh,
    'datagram': lambda: u.sendto(b'x', ('10.1.0.3', 9)),
    'connected': lambda: c.send(b'x'),
    'connection': lambda: t.send(b'x'),
})";
        std::fs::copy(OTHER, STEADY).unwrap();
        let mut peer = Actor::peer();
        peer.run("l = tcp(); l.bind(('', 80)); l.listen(4096); l.settimeout(0.1); kept = []; d = udp(); d.bind(('', 9))");
        peer.begin("while not is_over():\n    try: kept.append(l.accept()[0])\n    except TimeoutError: pass");
        let mut ipsec = open(world);
        let with_steady = |tables: &Tables| {
            let mut tables = tables.clone();
            tables.item_lists.push(vec![Item { local_port: None, remote_port: None, class: 0 }]);
            let items = Treatment::Items(tables.item_lists.len() - 1);
            let networks = [("0.0.0.0/0", Treatment::Discard), ("10.1.0.2/32", items), ("10.1.0.3/32", Treatment::Bypass), ("::/0", Treatment::Discard)];
            let networks = networks.map(|(network, to)| (network.parse().unwrap(), to));
            add(&mut tables, STEADY, networks.to_vec());
            tables
        };
        let classes = vec![(Class::ALL[0], Level::Mandatory)];
        ipsec.apply(&with_steady(&Tables { classes, ..Tables::default() })).unwrap();
        let mut watched = [Actor::at(STEADY), Actor::other()];
        let mut governed = Actor::governed();
        governed.run("u = udp()");
        for (actor, port) in watched.iter_mut().zip(["81", "82"]) {
            actor.begin(ATTEMPTS.trim().replace("PORT", port).as_str());
        }
        on_random_tables(if is_emulated() { 50 } else { 30 }, 0, |tables, _| {
            ipsec.apply(&with_steady(tables)).unwrap();
            ipsec.adopt().unwrap();
            // Carries a former mark.
            governed.errno("u.sendto(b'x', ('10.1.0.3', 9))");
        });
        Actor::other().run("stop()");
        assert_eq!(peer.end(), 0);
        for actor in &mut watched {
            assert_eq!(actor.end(), 0);
            let told = actor.run("r = counts");
            for (act, outcome) in actor.outcomes() {
                assert_eq!(outcome, [0], "{act}: {told}");
            }
            let marks = actor.run("r = sorted(marks)");
            assert_eq!(actor.number("len(marks)"), 1, "{marks}");
        }
        // The first is governed, the second is not.
        let is_marked = watched.map(|mut actor| actor.number("mark(u)") != 0);
        assert_eq!(is_marked, [true, false]);
    }

    fn connected_sockets_go_as_the_tables_say(world) {
        for family in ["-4", "-6"] {
            run("ip", &[family, "route", "add", "default", "dev", "cable"]);
        }
        let mut ipsec = open(world);
        let mut governed = Actor::governed();
        on_random_tables(60, 20, |tables, questions| {
            ipsec.apply(tables).unwrap();
            let entries = ipsec.spd_entries().unwrap();
            for &(peer, _, remote) in questions {
                let (local, remote) = (4321, remote.max(1));
                let verdict = tables.treat(0, peer, local, remote);
                let family = if peer.is_ipv4() { 4 } else { 6 };
                let connect = format!(
                    "s = udp({family}); s.bind(('', {local})); s.connect(('{peer}', {remote}))"
                );
                let expected = action(verdict, tables.peers.contains(&peer));
                match governed.errno(&connect) {
                    0 => {
                        let mark = governed.number("mark(s)");
                        let found = by_spd(&entries, mark, peer, local, remote);
                        assert_eq!(found, expected, "{peer} {remote}");
                        assert_ne!(found, Action::Block, "{peer} {remote}");
                    }
                    libc::EPERM => assert_eq!(expected, Action::Block, "{peer} {remote}"),
                    // No route to this address.
                    _ => assert_ne!(verdict, Verdict::Discard, "{peer} {remote}"),
                }
                governed.run("s.close()");
            }
        });
    }

    /// Figures: run with --ignored --nocapture.
    #[ignore = "prints figures"]
    fn figures_of_large_policies(world) {
        let class = Class::new(Kind::Encryption, Profile::Standard);
        for (count, peers) in [(10, 0), (100, 0), (1_000, 0), (2_000, 0), (10_000, 0), (10, 10_000), (2_000, 1_000)] {
            let mut settings = settings(world);
            settings.mask = MarkMask::new(0xffff_f000).unwrap();
            let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
            let mut tables = Tables {
                classes: vec![(class, Level::Optional)],
                item_lists: vec![vec![Item { local_port: None, remote_port: None, class: 0 }]],
                // The first of them in networks of the first applications.
                peers: (0..peers).map(|peer| std::net::Ipv4Addr::from(0x1400_0000 + peer).into()).collect(),
                ..Tables::default()
            };
            for number in 0..count {
                let of = |index: u32| -> IpNet {
                    let address = std::net::Ipv4Addr::from(0x1400_0000 + (index << 8));
                    IpNet::new(address.into(), 24).unwrap()
                };
                let mut networks: Vec<(IpNet, Treatment)> = vec![
                    ("0.0.0.0/0".parse().unwrap(), Treatment::Bypass),
                    ("::/0".parse().unwrap(), Treatment::Bypass),
                ];
                let half = 5 * number / 2;
                networks.extend((half..5 * (number + 1) / 2).map(|index| (of(index), Treatment::Items(0))));
                let program = if number == 0 { GOVERNED.into() } else { format!("/no/{number}") };
                add(&mut tables, &program, networks);
            }
            let networks: usize = tables.applications.iter().map(|one| one.networks.len() - 2).sum();
            let begun = std::time::Instant::now();
            ipsec.apply(&tables).unwrap();
            let apply = begun.elapsed();
            let measure = "
t = time.perf_counter_ns
def round():
    a = t()
    for _ in range(2000):
        s.connect(('10.1.0.2', 9))
    return (t() - a) / 2000
r = sorted(round() for _ in range(9))[4]";
            let figure = |mut actor: Actor| {
                actor.run("s = udp(); s.bind(('', 0))");
                let of_connect: f64 = actor.run(measure.trim()).parse().unwrap();
                let made = measure.replace("s.connect(('10.1.0.2', 9))", "socket.socket(2, 2).close()");
                let of_socket: f64 = actor.run(made.trim()).parse().unwrap();
                format!("connect {of_connect:.0} ns, socket {of_socket:.0} ns")
            };
            let governed = figure(Actor::governed());
            let other = figure(Actor::other());
            println!("{count} applications, {networks} networks, {peers} peers, {} entries: apply {apply:?}; governed {governed}; other {other}",
                ipsec.wanted().len());
            ipsec.close().unwrap();
        }
    }
}
