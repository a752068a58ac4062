//! Two governed hosts with static SAs: what leaves, and what arrives. Where the kernel has ESP.

#[macro_use]
#[path = "../world/mod.rs"]
mod world;

mod datagrams;
mod services;

use usher_ipsec::{Ipsec, OutboundSa, Sad};
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

    // Threat model: P27
    // Threat model: P77
    fn a_place_that_an_earlier_process_gave_is_known(world) {
        let Some(mut hosts) = hosts(world) else { return };
        let (from, to) = ("10.1.0.1", "10.1.0.2");
        let outbound = |spi| OutboundSa {
            to: to.parse().unwrap(),
            spi,
            is_ah: false,
        };
        let former = ENCRYPTED[0];
        let fresh = 0x3001;
        Sad::open().unwrap().place(outbound(former)).unwrap();
        let mut sad = Sad::open().unwrap();
        sad.keep_places(|_, _| true).unwrap();
        for host in [&[][..], &["-n", "b"]] {
            batch(host, &sa(ENCRYPTION, "rfc4106(gcm(aes))", [from, to], fresh));
        }
        sad.place_last(outbound(fresh)).unwrap();
        hosts.b.run("l = tcp(4); l.setsockopt(1, 2, 1); l.bind(('', 21)); l.listen()");
        assert_eq!(hosts.a.errno(&format!("s = tcp(4); s.connect(('{to}', 21))")), 0);
        hosts.expect(ENCRYPTED, "sent by the former SA");
        hosts.acknowledged();
        hosts.arrived();
        // The twin: the kernel goes on with the new one when the former one is gone.
        batch(&[], &format!("xfrm state delete src {from} dst {to} proto esp spi {former}\n"));
        hosts.a.run("s.send(b'text')");
        hosts.expect([fresh, ENCRYPTED[1]], "sent by the new SA");
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

    // Threat model: P9
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

    // Threat model: P4
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

    // Threat model: P70
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

    // Threat model: P3
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
                // This keeps the class in the SPD.
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
            // Closes with a reset, so that nothing is sent again later.
            hosts.a.run("s.setsockopt(1, 13, struct.pack('ii', 1, 0)); s.close()");
        }
    }

}
