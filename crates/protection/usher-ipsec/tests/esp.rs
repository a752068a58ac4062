//! Two governed hosts with static SAs: what leaves, and what arrives. Where the kernel has ESP.

#[macro_use]
mod world;

use std::process::Command;

use usher_ipsec::Ipsec;
use usher_protection::Level;
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

/// Adds the SAs of both classes to both hosts. None: this kernel has no ESP.
fn add_sas() -> Option<()> {
    // Not needed where they are built in.
    let _ = Command::new("modprobe")
        .args(["-a", "esp4", "esp6"])
        .output();
    for (class, spis, algorithm) in [
        (ENCRYPTION, ENCRYPTED, "rfc4106(gcm(aes))"),
        (AUTHENTICATION, AUTHENTICATED, "rfc4543(gcm(aes))"),
    ] {
        for (a, b) in [("10.1.0.1", "10.1.0.2"), ("fd01::1", "fd01::2")] {
            for (from, to, spi, from_a) in [(a, b, spis[0], true), (b, a, spis[1], false)] {
                for at_a in [true, false] {
                    let mut command = Command::new("ip");
                    if !at_a {
                        command.args(["-n", "b"]);
                    }
                    command.args([
                        "xfrm", "state", "add", "src", from, "dst", to, "proto", "esp",
                    ]);
                    command.args(["spi", &spi.to_string(), "mode", "transport"]);
                    command.args(["reqid", &usher_ipsec::reqid(class).to_string()]);
                    command.args([
                        "aead",
                        algorithm,
                        "0x000102030405060708090a0b0c0d0e0f10111213",
                        "128",
                    ]);
                    if at_a != from_a {
                        let mark = format!("{:#x}", mark(class, Level::Mandatory));
                        command.args(["output-mark", &mark, "mask", "0xf00000"]);
                    }
                    let added = command.output().unwrap();
                    if !added.status.success() {
                        let reason = String::from_utf8_lossy(&added.stderr);
                        eprintln!("skipped: this kernel has no ESP: {}", reason.trim());
                        return None;
                    }
                }
            }
        }
    }
    Some(())
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
    add_sas()?;
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

    /// Nothing but packets of these SAs has arrived, and some of each.
    fn expect(&mut self, spis: [u32; 2], what: &str) {
        assert_eq!(self.arrived(), [vec![spis[1]], vec![spis[0]]], "{what}");
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
            hosts.b.run("c, _ = l.accept(); c.settimeout(10)");
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

    fn plaintext_is_dropped_and_others_are_not_touched(world) {
        let Some(mut hosts) = hosts(world) else { return };
        let (mut other, mut peer) = (Actor::other(), Actor::peer());
        hosts.a.run("l = tcp(6); l.bind(('', 21)); l.listen(); u = udp(6); u.bind(('', 53)); u.settimeout(1)");
        // Not governed, from the governed host.
        assert_eq!(peer.errno("s = tcp(); s.settimeout(2); s.connect(('10.1.0.1', 21))"), libc::ETIMEDOUT);
        peer.run("s = udp(); s.bind(('10.1.0.2', 0)); s.sendto(b'forged', ('10.1.0.1', 53))");
        assert_eq!(hosts.a.errno("u.recv(9)"), libc::ETIMEDOUT);
        assert!(hosts.ipsec[0].counters().unwrap().refused_plain >= 2);
        // The trusted address is served in the clear.
        peer.run("s = tcp(); s.bind(('10.1.0.3', 0)); s.connect(('10.1.0.1', 21))");
        hosts.a.run("c, _ = l.accept(); c.sendall(b'plain')");
        assert_eq!(peer.run("r = s.recv(9)"), "b'plain'");
        peer.run("s = udp(); s.bind(('10.1.0.3', 0)); s.sendto(b'plain', ('10.1.0.1', 53))");
        assert_eq!(hosts.a.run("r = u.recv(9)"), "b'plain'");
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

    fn another_class_is_dropped(world) {
        let Some(mut hosts) = hosts(world) else { return };
        // B's policy: everything is only authenticated. A demands encryption at port 21.
        hosts.ipsec[1].apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.0/24", mandatory(AUTHENTICATION)),
        ])])).unwrap();
        hosts.a.run("u = udp(); u.bind(('', 21)); u.settimeout(1); v = udp(); v.bind(('', 22))");
        hosts.b.run("s = udp(); s.sendto(b'x', ('10.1.0.1', 21)); s.sendto(b'x', ('10.1.0.1', 22))");
        assert_eq!(hosts.a.errno("u.recv(9)"), libc::ETIMEDOUT);
        assert_eq!(hosts.a.run("r = v.recv(9)"), "b'x'");
        assert_eq!(hosts.ipsec[0].counters().unwrap().refused_class, 1);
    }
}
