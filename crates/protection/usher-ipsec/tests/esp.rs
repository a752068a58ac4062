//! Two governed hosts with static SAs: what leaves, and what arrives. Where the kernel has ESP.

#[macro_use]
mod world;

use usher_ipsec::Ipsec;
use usher_protection::{Destination, Level, ProtectedService, Tables};
use world::*;

/// The SPIs of the SAs: from A and from B, of each class.
const ENCRYPTED: [u32; 2] = [0x1001, 0x1002];
const AUTHENTICATED: [u32; 2] = [0x2001, 0x2002];
const TCP: u32 = 6;
const UDP: u32 = 17;

/// Port 21 is encrypted, everything else between the hosts authenticated. B's second address is
/// trusted.
fn fast() -> usher_protection::Tables {
    let items = To::Protected(vec![
        (21, 0, ENCRYPTION, Level::Mandatory),
        (0, 21, ENCRYPTION, Level::Mandatory),
        (0, 0, AUTHENTICATION, Level::Mandatory),
    ]);
    tables(&[(
        GOVERNED,
        vec![
            ("10.1.0.0/24", items.clone()),
            ("10.1.0.3/32", To::Trusted),
            ("fd01::/64", items),
            ("fd01::3/128", To::Trusted),
        ],
    )])
}

/// Adds the SAs of both classes to both hosts.
fn add_sas() {
    let mut sas = String::new();
    for (class, spis, algorithm) in [
        (ENCRYPTION, ENCRYPTED, "rfc4106(gcm(aes))"),
        (AUTHENTICATION, AUTHENTICATED, "rfc4543(gcm(aes))"),
    ] {
        for (a, b) in [("10.1.0.1", "10.1.0.2"), ("fd01::1", "fd01::2")] {
            for (from, to, spi) in [(a, b, spis[0]), (b, a, spis[1])] {
                sas += &sa(class, algorithm, [from, to], spi);
            }
        }
    }
    for host in [&[][..], &["-n", "b"]] {
        batch(host, &sas);
    }
}

/// Whether this kernel has ESP, and accepts the programs that drop plaintext of services. Prints the
/// reason if not.
fn can_protect_services() -> bool {
    if let Err(reason) = Ipsec::probe_services() {
        println!("skipped: {reason}");
        return false;
    }
    has_esp()
}

/// Protection and governed programs on both hosts, with captures of what arrives at each.
struct Hosts {
    a: Actor,
    b: Actor,
    at_a: Actor,
    at_b: Actor,
    ipsec: [Ipsec; 2],
}

fn hosts(world: &World) -> Option<Hosts> {
    if !has_esp() {
        return None;
    }
    add_sas();
    let mut ipsec = [open(world), open_at_b(world)];
    for host in &mut ipsec {
        host.apply(&fast()).unwrap();
    }
    let mut hosts = Hosts {
        a: Actor::governed(),
        b: Actor::governed_peer(world),
        at_a: Actor::other(),
        at_b: Actor::peer(),
        ipsec,
    };
    hosts.at_a.run("seen = capture('cable')");
    hosts.at_b.run("seen = capture('cable')");
    Some(hosts)
}

impl Hosts {
    /// The protocols, or SPIs, of what has arrived at A and at B.
    fn arrived(&mut self) -> [Vec<u32>; 2] {
        [&mut self.at_a, &mut self.at_b].map(|at| {
            let listed = at.run("r = ' '.join(map(str, protocols(seen)))");
            let listed = listed.trim_matches('\'').split_whitespace();
            listed.map(|one| one.parse().unwrap()).collect()
        })
    }

    /// Waits until packets have arrived at both, and checks that they are of these SAs.
    fn expect(&mut self, spis: [u32; 2], what: &str) {
        let mut arrived = [vec![], vec![]];
        eventually(what, || {
            for (all, found) in arrived.iter_mut().zip(self.arrived()) {
                all.extend(found);
            }
            arrived.iter().all(|at| !at.is_empty())
        });
        for at in &mut arrived {
            at.sort();
            at.dedup();
        }
        assert_eq!(arrived, [vec![spis[1]], vec![spis[0]]], "{what}");
    }

    /// Waits until host B has acknowledged everything that A has sent on the connection `s`, so that
    /// nothing more arrives at A unasked.
    fn acknowledged(&mut self) {
        // tcpi_unacked of TCP_INFO.
        let unacknowledged = "struct.unpack_from('I', s.getsockopt(6, 11, 104), 24)[0]";
        eventually("it is acknowledged", || self.a.number(unacknowledged) == 0);
    }
}

tests! {
    fn a_connection_is_protected_from_its_syn_to_its_end(world) {
        let Some(mut hosts) = hosts(world) else { return };
        for (cookies, to, port, spis, class) in [
            ("1", "10.1.0.2", 21, ENCRYPTED, ENCRYPTION),
            ("1", "fd01::2", 21, ENCRYPTED, ENCRYPTION),
            ("1", "10.1.0.2", 5000, AUTHENTICATED, AUTHENTICATION),
            ("1", "fd01::2", 5000, AUTHENTICATED, AUTHENTICATION),
            // Only cookies.
            ("2", "10.1.0.2", 21, ENCRYPTED, ENCRYPTION),
            ("2", "fd01::2", 5000, AUTHENTICATED, AUTHENTICATION),
        ] {
            let what = format!("{to} {port}, cookies {cookies}");
            let sysctl = format!("net.ipv4.tcp_syncookies={cookies}");
            run("ip", &["netns", "exec", "b", "sysctl", "-q", "-w", &sysctl]);
            let family = if to.contains(':') { 6 } else { 4 };
            hosts.b.run(&format!(
                "l = tcp(6); l.setsockopt(1, 2, 1); l.bind(('', {port})); l.listen()"
            ));
            assert_eq!(hosts.a.errno(&format!("s = tcp({family}); s.connect(('{to}', {port}))")), 0, "{what}");
            hosts.b.run("c, _ = l.accept(); c.settimeout(60)");
            let expected = mark(class, Level::Mandatory);
            assert_eq!(hosts.a.number("mark(s)"), expected, "{what}");
            assert_eq!(hosts.b.number("mark(c)"), expected, "{what}");
            // Keepalives of both, after a second of silence.
            for actor in [(&mut hosts.a, "s"), (&mut hosts.b, "c")] {
                let (actor, socket) = actor;
                actor.run(&format!(
                    "{socket}.setsockopt(1, 9, 1); {socket}.setsockopt(6, 4, 1); {socket}.setsockopt(6, 5, 1)"
                ));
            }
            hosts.a.run("s.sendall(b'question' * 1000)");
            hosts.b.run("g = b''\nwhile len(g) < 8000: g += c.recv(9000)\nc.sendall(b'answer')");
            assert_eq!(hosts.a.run("r = s.recv(9)"), "b'answer'", "{what}");
            hosts.expect(spis, &what);
            let own = if family == 6 { "fd01::1" } else { "10.1.0.1" };
            let ends = (own.parse().unwrap(), to.parse().unwrap());
            let sas = hosts.ipsec[0].sas().unwrap();
            let out = sas.between(ends.0, ends.1, class).unwrap();
            assert_eq!(out.spi, spis[0], "{what}");
            assert!(out.bytes > 8000 && out.since > 0, "{what}: {out:?}");
            assert_eq!(sas.between(ends.1, ends.0, class).unwrap().spi, spis[1], "{what}");
            eventually("keepalives of both come and are protected", || {
                let arrived = hosts.arrived();
                let plain = arrived.iter().flatten().any(|one| !spis.contains(one));
                assert!(!plain, "{what}: {arrived:?}");
                arrived.iter().all(|at| !at.is_empty())
            });
            // The client closes first: it is in TIME_WAIT.
            hosts.a.run("s.close()");
            assert_eq!(hosts.b.run("r = c.recv(1)"), "b''");
            hosts.b.run("c.close(); l.close()");
            // A reset, at once: the port is closed.
            assert_eq!(
                hosts.a.errno(&format!("tcp({family}).connect(('{to}', {port}))")),
                libc::ECONNREFUSED, "{what}"
            );
            hosts.expect(spis, &what);
        }
    }

    fn an_older_connection_is_protected_from_the_policy_on(world) {
        if !has_esp() {
            return;
        }
        add_sas();
        let mut ipsec = [open(world), open_at_b(world)];
        let (mut a, mut b) = (Actor::governed(), Actor::governed_peer(world));
        let mut at_b = Actor::peer();
        b.run("l = tcp(6); l.bind(('', 21)); l.listen()");
        for (family, to) in [(4, "10.1.0.2"), (6, "fd01::2")] {
            a.run(&format!("s{family} = tcp({family}); s{family}.connect(('{to}', 21))"));
            b.run(&format!("c{family}, _ = l.accept(); c{family}.settimeout(60)"));
            a.run(&format!("s{family}.sendall(b'plain')"));
            assert_eq!(b.run(&format!("r = c{family}.recv(9)")), "b'plain'");
        }
        let [of_a, of_b] = &mut ipsec;
        of_a.apply(&fast()).unwrap();
        of_b.apply(&fast()).unwrap();
        of_a.adopt().unwrap();
        in_b(move || of_b.adopt().unwrap());
        at_b.run("seen = capture('cable')");
        for family in [4, 6] {
            a.run(&format!("s{family}.sendall(b'question')"));
            assert_eq!(b.run(&format!("r = c{family}.recv(9)")), "b'question'");
            b.run(&format!("c{family}.sendall(b'answer')"));
            assert_eq!(a.run(&format!("r = s{family}.recv(9)")), "b'answer'");
        }
        let seen = at_b.run("r = list(protocols(seen))");
        assert_eq!(seen, format!("[{}]", ENCRYPTED[0]));
    }

    fn the_first_datagram_and_its_answer_are_protected(world) {
        let Some(mut hosts) = hosts(world) else { return };
        for (from, to, port, spis) in [
            ("10.1.0.1", "10.1.0.2", 21, ENCRYPTED),
            ("10.1.0.1", "10.1.0.2", 53, AUTHENTICATED),
            ("fd01::1", "fd01::2", 21, ENCRYPTED),
            ("fd01::1", "fd01::2", 53, AUTHENTICATED),
        ] {
            let family = if to.contains(':') { 6 } else { 4 };
            hosts.b.run(&format!("u = udp({family}); u.bind(('{to}', {port}))"));
            hosts.a.run(&format!("s = udp({family}); s.bind(('{from}', 0)); s.sendto(b'question', ('{to}', {port}))"));
            hosts.b.run("q, peer = u.recvfrom(99); u.sendto(b'answer', peer)");
            assert_eq!(hosts.a.run("r = s.recv(99)"), "b'answer'", "{to} {port}");
            hosts.expect(spis, to);
            // Connected.
            hosts.a.run(&format!("s = udp({family}); s.connect(('{to}', {port})); s.send(b'question')"));
            hosts.b.run("q, peer = u.recvfrom(99); u.sendto(b'answer', peer)");
            assert_eq!(hosts.a.run("r = s.recv(99)"), "b'answer'", "{to} {port}");
            hosts.expect(spis, to);
            hosts.b.run("u.close()");
        }
    }

    /// The datagram was begun with the mark of the socket's connection.
    fn what_a_datagram_socket_is_connected_to_decides_nothing(world) {
        let Some(mut hosts) = hosts(world) else { return };
        for (family, to) in [(4, "10.1.0.2"), (6, "fd01::2")] {
            hosts.b.run(&format!("u = udp({family}); u.bind(('{to}', 21)); v = udp({family}); v.bind(('{to}', 9))"));
            hosts.a.run("import ctypes; libc = ctypes.CDLL(None)");
            for (what, before) in [
                ("connected to a port of the other class", "pass"),
                ("no longer connected", "libc.connect(s.fileno(), bytes(28), 28)"),
            ] {
                hosts.a.run(&format!("s = udp({family}); s.connect(('{to}', 9)); s.send(b'x')"));
                assert_eq!(hosts.b.run("r = v.recv(9)"), "b'x'", "{to}: {what}");
                assert_eq!(hosts.arrived()[1], [AUTHENTICATED[0]], "{to}: {what}");
                hosts.a.run(&format!("{before}; s.sendto(b'secret', ('{to}', 21))"));
                assert_eq!(hosts.b.run("r = u.recv(9)"), "b'secret'", "{to}: {what}");
                assert_eq!(hosts.arrived()[1], [ENCRYPTED[0]], "{to}: {what}");
            }
            // Connected where ports do not matter: it has the mark of that class.
            let authenticated = |network| (network, mandatory(AUTHENTICATION));
            let by_ports = To::Protected(vec![
                (0, 21, ENCRYPTION, Level::Mandatory),
                (0, 0, AUTHENTICATION, Level::Mandatory),
            ]);
            hosts.ipsec[0].apply(&tables(&[(GOVERNED, vec![
                ("10.1.0.0/24", by_ports.clone()), authenticated("10.1.0.3/32"),
                ("fd01::/64", by_ports), authenticated("fd01::3/128"),
            ])])).unwrap();
            let other = to.replace('2', "3");
            let before = hosts.ipsec[0].counters().unwrap().kept_class;
            hosts.a.run(&format!("s = udp({family}); s.connect(('{other}', 9))"));
            assert_eq!(hosts.a.number("mark(s)"), mark(AUTHENTICATION, Level::Mandatory));
            assert_eq!(hosts.a.errno(&format!("s.sendto(b'secret', ('{to}', 21))")), libc::EPERM);
            assert_eq!(hosts.ipsec[0].counters().unwrap().kept_class, before + 1);
            hosts.a.run(&format!("s.sendto(b'secret', ('{to}', 21))"));
            assert_eq!(hosts.b.run("r = u.recv(9)"), "b'secret'");
            assert_eq!(hosts.arrived()[1], [ENCRYPTED[0]], "{to}");
            hosts.b.run("u.close(); v.close()");
            hosts.ipsec[0].apply(&fast()).unwrap();
            hosts.arrived();
        }
    }

    fn a_connected_datagram_socket_goes_on_while_its_class_stays(world) {
        let Some(hosts) = hosts(world) else { return };
        let Hosts { mut a, mut b, mut at_b, ipsec: [unpinned, _of_b], .. } = hosts;
        let policy = |port, class| tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Protected(vec![
            (0, 21, class, Level::Mandatory),
            (0, port, ENCRYPTION, Level::Mandatory),
            (0, 0, AUTHENTICATION, Level::Mandatory),
        ]))])]);
        let mut left = |spi: u32, what: &str| eventually(what, || {
            at_b.run("r = list(protocols(seen))") == format!("[{spi}]")
        });
        drop(unpinned);
        let mut pinned = settings(world);
        pinned.pins = Some("/mnt/bpf/ipsec".into());
        let mut ipsec = Ipsec::open(&pinned).unwrap();
        ipsec.apply(&policy(22, ENCRYPTION)).unwrap();
        b.run("u = udp(); u.bind(('10.1.0.2', 21))");
        a.run("s = udp(); s.connect(('10.1.0.2', 21)); s.send(b'x')");
        assert_eq!(b.run("r = u.recv(9)"), "b'x'");
        left(ENCRYPTED[0], "the first");
        // A raw socket of a protocol without ports, which passes no hook when it sends.
        let ping = "p.sendto(b'\\x08' + bytes(7), ('10.1.0.2', 0))";
        a.run(&format!("p = socket.socket(2, 3, 1); {ping}"));
        left(AUTHENTICATED[0], "a ping");
        // Other rules, and so another signature, with the same class for both.
        ipsec.apply(&policy(23, ENCRYPTION)).unwrap();
        a.run("s.send(b'y')");
        assert_eq!(b.run("r = u.recv(9)"), "b'y'");
        left(ENCRYPTED[0], "by the class that stays");
        a.run(ping);
        left(AUTHENTICATED[0], "a ping by the class that stays");
        // Another process adopts what this one leaves.
        drop(ipsec);
        ipsec = Ipsec::open(&pinned).unwrap();
        ipsec.apply(&policy(23, ENCRYPTION)).unwrap();
        a.run("s.send(b'y')");
        assert_eq!(b.run("r = u.recv(9)"), "b'y'");
        left(ENCRYPTED[0], "after a restart");
        // To its own peer no call fails; to another port it goes by the policy in force, and what was
        // begun by the former one is refused.
        a.run("v = udp(); v.connect(('10.1.0.2', 21))");
        ipsec.apply(&policy(25, ENCRYPTION)).unwrap();
        assert_eq!(a.errno("v.sendto(b'y', ('10.1.0.2', 21))"), 0);
        assert_eq!(b.run("r = u.recv(9)"), "b'y'");
        assert_eq!(a.errno("s.sendto(b'z', ('10.1.0.2', 24))"), libc::EPERM);
        left(ENCRYPTED[0], "to its peer");
        // Another class: until it connects again.
        ipsec.apply(&policy(26, AUTHENTICATION)).unwrap();
        assert_eq!(a.errno("s.send(b'z')"), libc::EPERM);
        a.run("s.connect(('10.1.0.2', 21)); s.send(b'z')");
        left(AUTHENTICATED[0], "by the new class");
    }

    fn flushed_sas_and_entries_let_nothing_out_in_the_clear(world) {
        let Some(mut hosts) = hosts(world) else { return };
        hosts.b.run("l = tcp(6); l.bind(('', 21)); l.listen()");
        hosts.a.run("s = tcp(); s.connect(('10.1.0.2', 21)); s.setblocking(0); u = udp(); u.settimeout(0)");
        hosts.b.run("c, _ = l.accept(); c.settimeout(60)");
        hosts.a.begin("sent = 0; until = time.time() + 2
while time.time() < until:
 for act in (lambda: s.send(b'x'), lambda: u.sendto(b'x', ('10.1.0.2', 53))):
  try: act()
  except OSError: pass
 time.sleep(0.001)");
        for flushed in ["policy", "state", "policy"] {
            run("ip", &["xfrm", flushed, "flush"]);
            std::thread::sleep(std::time::Duration::from_millis(100));
            hosts.ipsec[0].put_back().unwrap();
        }
        run("ip", &["xfrm", "policy", "flush"]);
        assert_eq!(hosts.a.end(), 0);
        let clear = |arrived: &[u32]| arrived.iter().any(|one| [TCP, UDP].contains(one));
        let [_, at_b] = hosts.arrived();
        assert!(!clear(&at_b), "{at_b:?}");
        // Entries and SAs come again, and the connection goes on.
        run("ip", &["-n", "b", "xfrm", "state", "flush"]);
        hosts.ipsec[0].put_back().unwrap();
        add_sas();
        hosts.ipsec[0].announce_sa(ENCRYPTION, B.parse().unwrap()).unwrap();
        hosts.a.run("s.setblocking(1); s.settimeout(60); s.sendall(b'end')");
        hosts.b.run("g = b''\nwhile not g.endswith(b'end'): g += c.recv(9000)");
        let arrived = hosts.arrived();
        assert!(!arrived.iter().any(|at| clear(at)), "{arrived:?}");
        assert!(arrived[1].contains(&ENCRYPTED[0]), "{arrived:?}");
    }

    fn a_flushed_spd_lets_no_service_out_in_the_clear(world) {
        if !can_protect_services() {
            return;
        }
        add_sas();
        let destination = |peer: &str| Destination { peer: peer.parse().unwrap(), port: 143, class: ENCRYPTION };
        let (mut reached, mut served) = (tables(&[]), tables(&[]));
        reached.add_services(vec![], vec![destination(B), destination(B6)]);
        served.add_services(vec![ProtectedService { port: 143, classes: [ENCRYPTION].into() }], vec![]);
        let [mut of_a, mut of_b] = [open(world), open_at_b(world)];
        of_a.apply(&reached).unwrap();
        in_b(|| of_b.apply(&served).unwrap());
        let (mut client, mut server) = (Actor::other(), Actor::peer());
        let (mut at_a, mut at_b) = (Actor::other(), Actor::peer());
        for at in [&mut at_a, &mut at_b] {
            at.run("seen = capture('cable')");
        }
        server.run("l = tcp(6); l.bind(('', 143)); l.listen()");
        for (family, to) in [(4, B), (6, B6)] {
            client.run(&format!("s = tcp({family}); s.connect(('{to}', 143)); s.setblocking(0)"));
            server.run("s, _ = l.accept(); s.setblocking(0)");
            let kept = [of_a.service_counters(), of_b.service_counters()].map(|one| one.unwrap().service_kept);
            for actor in [&mut client, &mut server] {
                actor.begin("while not os.path.exists('/mnt/end'):
 try: s.send(b'x'); s.recv(999)
 except OSError: pass
 time.sleep(0.001)");
            }
            for _ in 0..3 {
                run("ip", &["xfrm", "policy", "flush"]);
                run("ip", &["-n", "b", "xfrm", "policy", "flush"]);
                eventually("both would send in the clear", || {
                    of_a.service_counters().unwrap().service_kept > kept[0]
                        && of_b.service_counters().unwrap().service_kept > kept[1]
                });
                of_a.put_back().unwrap();
                of_b.put_back().unwrap();
            }
            std::fs::write("/mnt/end", "").unwrap();
            assert_eq!((client.end(), server.end()), (0, 0));
            std::fs::remove_file("/mnt/end").unwrap();
            // The connection goes on, and nothing was in the clear.
            client.run("s.setblocking(1); s.settimeout(60); s.sendall(b'end')");
            server.run("s.setblocking(1); s.settimeout(60); g = b''\nwhile not g.endswith(b'end'): g += s.recv(9999)");
            for (at, spi) in [(&mut at_a, ENCRYPTED[1]), (&mut at_b, ENCRYPTED[0])] {
                assert_eq!(at.run("r = list(protocols(seen))"), format!("[{spi}]"), "{to}");
            }
        }
        // The twin: another port.
        server.run("l = tcp(6); l.bind(('', 144)); l.listen()");
        client.run(&format!("s = tcp(); s.connect(('{B}', 144))"));
        assert_eq!(at_b.run(&format!("r = {TCP} in protocols(seen)")), "True");
    }

    /// Somebody else's entry protects by an SA of another class.
    fn a_service_is_not_reached_by_another_class(world) {
        if !can_protect_services() {
            return;
        }
        add_sas();
        let mut tables = Tables::default();
        let destination = Destination { peer: B.parse().unwrap(), port: 143, class: ENCRYPTION };
        tables.add_services(vec![], vec![destination]);
        let mut ipsec = open(world);
        ipsec.apply(&tables).unwrap();
        let (mut client, mut at_b) = (Actor::other(), Actor::peer());
        at_b.run("seen = capture('cable')");
        let arrived = "r = list(protocols(seen))";
        for class in [AUTHENTICATION, ENCRYPTION] {
            run("ip", &["xfrm", "policy", "update", "dst", B, "dir", "out", "priority", "1", "tmpl", "src", "10.1.0.1", "dst", B,
                "proto", "esp", "mode", "transport", "reqid", &usher_ipsec::reqid(class).to_string()]);
            client.in_vain(&format!("s = tcp(); s.connect(('{B}', 143))"));
            if class == AUTHENTICATION {
                assert_eq!(at_b.run(arrived), "[]");
            } else {
                eventually("it arrives", || at_b.run(arrived) == format!("[{}]", ENCRYPTED[0]));
            }
        }
        assert!(ipsec.service_counters().unwrap().service_kept > 0);
    }

    fn plaintext_is_dropped_and_others_are_not_touched(world) {
        let Some(mut hosts) = hosts(world) else { return };
        let (mut other, mut peer) = (Actor::other(), Actor::peer());
        hosts.a.run("l = tcp(6); l.bind(('', 21)); l.listen(); u = udp(6); u.bind(('', 53))");
        // Not governed, from the governed host.
        assert_eq!(peer.in_vain("s = tcp(); s.connect(('10.1.0.1', 21))"), libc::ETIMEDOUT);
        peer.run("s = udp(); s.bind(('10.1.0.2', 0)); s.sendto(b'forged', ('10.1.0.1', 53))");
        assert_eq!(hosts.a.errno("u.settimeout(2); u.recv(9)"), libc::ETIMEDOUT);
        assert!(hosts.ipsec[0].counters().unwrap().refused_plain >= 2);
        // The trusted address is served in the clear.
        peer.run("s = tcp(); s.bind(('10.1.0.3', 0)); s.connect(('10.1.0.1', 21))");
        hosts.a.run("c, _ = l.accept(); c.sendall(b'plain')");
        assert_eq!(peer.run("r = s.recv(9)"), "b'plain'");
        peer.run("s = udp(); s.bind(('10.1.0.3', 0)); s.sendto(b'plain', ('10.1.0.1', 53))");
        assert_eq!(hosts.a.run("u.settimeout(60); r = u.recv(9)"), "b'plain'");
        let arrived = hosts.arrived();
        assert_eq!(arrived, [vec![TCP, UDP], vec![TCP]]);
        // Two programs that are not governed, on the same hosts.
        other.run("l = tcp(); l.bind(('', 5001)); l.listen()");
        peer.run("s = tcp(); s.connect(('10.1.0.1', 5001)); s.sendall(b'plain')");
        other.run("c, _ = l.accept()");
        assert_eq!(other.run("r = c.recv(9)"), "b'plain'");
        assert_eq!(hosts.arrived(), [vec![TCP], vec![TCP]]);
        // Into an established connection: the same four-tuple, in the clear.
        hosts.b.run("l = tcp(); l.bind(('', 5000)); l.listen()");
        hosts.a.run("s = tcp(); s.connect(('10.1.0.2', 5000))");
        hosts.b.run("c, _ = l.accept()");
        let port = hosts.a.number("s.getsockname()[1]");
        let before = hosts.ipsec[0].counters().unwrap().refused_plain;
        peer.run(&format!("reset('10.1.0.2', 5000, '10.1.0.1', {port})"));
        eventually("it is dropped", || {
            hosts.ipsec[0].counters().unwrap().refused_plain > before
        });
        hosts.b.run("c.sendall(b'alive')");
        assert_eq!(hosts.a.run("r = s.recv(9)"), "b'alive'");
    }

    fn an_optional_listener_answers_a_protected_syn(world) {
        let Some(mut hosts) = hosts(world) else { return };
        let optional = tables(&[(GOVERNED, vec![("10.1.0.0/24", optional(AUTHENTICATION))])]);
        for host in &mut hosts.ipsec {
            host.apply(&optional).unwrap();
        }
        hosts.a.run("l = tcp(); l.bind(('', 5000)); l.listen()");
        hosts.b.run("s = tcp(); s.connect(('10.1.0.1', 5000)); s.sendall(b'x')");
        hosts.a.run("c, _ = l.accept()");
        assert_eq!(hosts.a.run("r = c.recv(9)"), "b'x'");
        hosts.expect(AUTHENTICATED, "both ways, from the SYN on");
    }

    fn another_class_is_dropped(world) {
        let Some(mut hosts) = hosts(world) else { return };
        // B's policy: everything is only authenticated. A demands encryption at port 21.
        hosts.ipsec[1].apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.0/24", mandatory(AUTHENTICATION)),
        ])])).unwrap();
        hosts.a.run("u = udp(); u.bind(('', 21)); u.settimeout(2); v = udp(); v.bind(('', 22))");
        hosts.b.run("s = udp(); s.sendto(b'x', ('10.1.0.1', 21)); s.sendto(b'x', ('10.1.0.1', 22))");
        assert_eq!(hosts.a.errno("u.recv(9)"), libc::ETIMEDOUT);
        assert_eq!(hosts.a.run("r = v.recv(9)"), "b'x'");
        assert_eq!(hosts.ipsec[0].counters().unwrap().refused_class, 1);
    }

    fn a_connection_does_not_leave_by_its_former_class(world) {
        let Some(mut hosts) = hosts(world) else { return };
        hosts.b.run("l = tcp(6); l.bind(('', 5000)); l.listen()");
        for (family, to) in [(4, "10.1.0.2"), (6, "fd01::2")] {
            for host in &mut hosts.ipsec {
                host.apply(&fast()).unwrap();
            }
            hosts.arrived();
            hosts.a.run(&format!("s = tcp({family}); s.connect(('{to}', 5000)); s.send(b'x')"));
            hosts.b.run("c, _ = l.accept(); r = c.recv(1)");
            hosts.acknowledged();
            hosts.expect(AUTHENTICATED, to);
            // The same policy again.
            hosts.ipsec[0].apply(&fast()).unwrap();
            hosts.a.run("s.send(b'x')");
            hosts.b.run("r = c.recv(1)");
            hosts.acknowledged();
            hosts.expect(AUTHENTICATED, to);
            // Encryption everywhere, which host B does not expect yet.
            let everything = |network| (network, mandatory(ENCRYPTION));
            let encrypted = tables(&[(GOVERNED, vec![
                everything("10.1.0.0/24"), everything("fd01::/64"),
                // So the SPD still has that class.
                ("10.1.0.3/32", mandatory(AUTHENTICATION)),
            ])]);
            hosts.ipsec[0].apply(&encrypted).unwrap();
            hosts.a.run("s.send(b'secret')");
            let mut arrived = [vec![], vec![]];
            eventually("it leaves", || {
                arrived = hosts.arrived();
                !arrived[1].is_empty()
            });
            assert_eq!(arrived, [vec![], vec![ENCRYPTED[0]]], "{to}");
            // Once both agree, it arrives. The connections of host B are not found from here and
            // keep their marks: what would leave by the former class is kept back.
            let before = hosts.ipsec[1].counters().unwrap().kept_class;
            hosts.ipsec[1].apply(&encrypted).unwrap();
            assert_eq!(hosts.b.run("r = c.recv(6)"), "b'secret'");
            eventually("acknowledgements are kept back", || {
                hosts.ipsec[1].counters().unwrap().kept_class > before
            });
            assert_eq!(hosts.arrived()[0], [0; 0], "{to}");
            // By a reset, so that nothing is sent again later.
            hosts.a.run("s.setsockopt(1, 13, struct.pack('ii', 1, 0)); s.close()");
        }
    }

    fn a_datagram_does_not_leave_by_another_class(world) {
        let Some(mut hosts) = hosts(world) else { return };
        let everything = |class| move |network| (network, mandatory(class));
        let policy = |class| tables(&[(GOVERNED, ["10.1.0.0/24", "fd01::/64"].map(everything(class)).to_vec())]);
        for host in &mut hosts.ipsec {
            host.apply(&policy(ENCRYPTION)).unwrap();
        }
        for (family, to) in [(4, "10.1.0.2"), (6, "fd01::2")] {
            hosts.b.run(&format!("u = udp({family}); u.bind(('{to}', 9))"));
            hosts.a.run(&format!("s = udp({family}); s.sendto(b'x', ('{to}', 9))"));
            assert_eq!(hosts.b.run("r = u.recv(9)"), "b'x'");
            assert_eq!(hosts.arrived()[1], [ENCRYPTED[0]], "{to}");
        }
        // Somebody else's entry, before ours, protects them by the other class.
        for to in ["10.1.0.2", "fd01::2"] {
            let from = if to.contains(':') { "fd01::1" } else { "10.1.0.1" };
            run("ip", &["xfrm", "policy", "add", "dst", to, "dir", "out", "priority", "1", "tmpl", "src", from, "dst", to,
                "proto", "esp", "mode", "transport", "reqid", &usher_ipsec::reqid(AUTHENTICATION).to_string()]);
        }
        for (family, to) in [(4, "10.1.0.2"), (6, "fd01::2")] {
            let before = hosts.ipsec[0].counters().unwrap().kept_class;
            hosts.a.errno(&format!("s = udp({family}); s.sendto(b'x', ('{to}', 9))"));
            eventually("it is kept back", || hosts.ipsec[0].counters().unwrap().kept_class > before);
            assert_eq!(hosts.arrived()[1], [], "{to}");
            // Another program's datagram leaves by that entry.
            hosts.at_a.run(&format!("s = udp({family}); s.sendto(b'x', ('{to}', 9))"));
            eventually("it arrives", || hosts.arrived()[1] == [AUTHENTICATED[0]]);
        }
    }
}
