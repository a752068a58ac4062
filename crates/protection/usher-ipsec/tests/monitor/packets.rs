//! Packets in the clear are kept back and refused, except those of trusted peers.

use super::*;

tests! {
    fn untrusted_peers_are_refused_at_the_call(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.3/32", To::Trusted),
            ("fd01::3/128", To::Trusted),
        ])])).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        peer.run("a = tcp(6); a.bind(('', 80)); a.listen(); b = tcp(4); b.bind(('', 81)); b.listen()");
        let mut refused = 0;
        for (to, port, family) in [("10.1.0.2", 81, 4), ("::ffff:10.1.0.2", 81, 6), ("fd01::2", 80, 6)] {
            let trusted = to.replace(".2", ".3").replace("::2", "::3");
            for act in [
                format!("tcp({family}).connect((TO, {port}))"),
                format!("udp({family}).connect((TO, {port}))"),
                format!("udp({family}).sendto(b'x', (TO, {port}))"),
            ] {
                let untrusted = act.replace("TO", &format!("'{to}'"));
                let trusted = act.replace("TO", &format!("'{trusted}'"));
                assert_eq!(governed.errno(&untrusted), EPERM, "{untrusted}");
                assert_eq!(governed.errno(&trusted), 0, "{trusted}");
                assert_eq!(other.errno(&untrusted), 0, "{untrusted}");
                refused += 1;
            }
        }
        assert_eq!(ipsec.counters().unwrap().discarded, refused);
    }

    // Threat model: P1, P18
    fn nothing_leaves_in_the_clear_without_an_sa(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        let captured = |peer: &mut Actor| peer.run("r = protocols(seen)");
        peer.run("seen = capture('cable')");
        for act in [
            "s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.2', 80))",
            "s = tcp(6); s.setblocking(0); s.connect_ex(('fd01::2', 80))",
            "s = udp(); s.sendto(b'x', ('10.1.0.2', 9))",
            "s = udp(6); s.sendto(b'x', ('fd01::2', 9))",
            "s = udp(6); s.sendto(b'x', ('::ffff:10.1.0.2', 9))",
            "s = udp(); s.connect(('10.1.0.2', 9)); s.send(b'x')",
            // Connected to a trusted peer, sending to the other.
            "s = udp(); s.connect(('10.1.0.3', 9)); s.sendto(b'x', ('10.1.0.2', 9))",
            "s.sendto(b'x', ('10.1.0.2', 9))",
            // As privileged programs can send.
            "s = udp(); s.sendmsg([b'x'], [(1, SO_MARK, struct.pack('I', 0x100000))], 0, ('10.1.0.2', 9))",
            "s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 17); s.sendto(bytes(8), ('10.1.0.2', 0))",
        ] {
            governed.errno(act);
            assert_eq!(captured(&mut peer), "{}", "{act}");
            if act.starts_with("s = ") {
                // The same act of another program is seen.
                assert_eq!(other.errno(act), 0, "{act}");
                let mut seen = String::from("{}");
                eventually(act, || {
                    seen = captured(&mut peer);
                    seen != "{}"
                });
                // To the trusted peer nothing was sent, by either.
                assert!(seen.contains("17:") || seen.contains("6:"), "{act}: {seen}");
            }
        }
        // A trusted peer sees plaintext.
        governed.run("s = udp(); s.sendto(b'x', ('10.1.0.3', 9))");
        eventually("it is seen", || captured(&mut peer) == "{17: 1}");
    }

    // Threat model: P9
    fn a_flushed_spd_lets_nothing_out_in_the_clear(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        let entries = ipsec.spd_entries().unwrap();
        // Sockets that have their route already, and new ones.
        governed.run("old = udp(); old.settimeout(0); quick = udp(); quick.settimeout(0); quick.connect(('10.1.0.2', 9))");
        peer.run("seen = capture('cable')");
        let send = "until = time.time() + 0.5
while time.time() < until:
 for act in (
  lambda: old.sendto(b'x', ('10.1.0.2', 9)), lambda: quick.send(b'x'),
  lambda: udp(6).sendto(b'x', ('fd01::2', 9)),
 ):
  try: act()
  except OSError: pass
 s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.2', 80))
old.sendto(b'x', ('10.1.0.3', 9))";
        for _ in 0..5 {
            governed.begin(send);
            for _ in 0..10 {
                run("ip", &["xfrm", "policy", "flush"]);
                run("ip", &["xfrm", "state", "flush"]);
                ipsec.put_back().unwrap();
            }
            run("ip", &["xfrm", "policy", "flush"]);
            assert_eq!(governed.end(), 0);
            // Only the datagram to the trusted peer.
            let mut seen = String::from("{}");
            eventually("the last one is seen", || {
                seen = peer.run("r = protocols(seen)");
                seen != "{}"
            });
            assert_eq!(seen, "{17: 1}");
            assert_eq!(ipsec.put_back().unwrap(), entries.len());
        }
        assert_eq!(ipsec.spd_entries().unwrap(), entries);
        // Without protection they are seen.
        assert_eq!(other.errno("udp().sendto(b'x', ('10.1.0.2', 9))"), 0);
        eventually("it is seen", || peer.run("r = protocols(seen)") == "{17: 1}");
    }

    // Threat model: P4
    fn plaintext_does_not_reach_a_protected_listener(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.2/32", mandatory(AUTHENTICATION)),
            ("10.1.0.3/32", To::Trusted),
            ("fd01::2/128", mandatory(AUTHENTICATION)),
            ("fd01::3/128", To::Trusted),
        ])])).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        governed.run("a = tcp(6); a.bind(('', 80)); a.listen(); kept = []");
        other.run("a = tcp(6); a.bind(('', 81)); a.listen()");
        // A listener answers with the mark of the SYN.
        assert_eq!(governed.number("mark(a)"), 0);
        // Sockets stay open, so that none says farewell.
        peer.run("seen = capture('cable'); kept = []");
        let connect = |from: &str, to: &str, port: u16| {
            let family = if to.contains(':') { 6 } else { 4 };
            format!("s = tcp({family}); kept.append(s); s.bind(('{from}', 0)); s.connect(('{to}', {port}))")
        };
        for (from, to) in [("10.1.0.2", "10.1.0.1"), ("fd01::2", "fd01::1")] {
            let before = ipsec.counters().unwrap().refused_plain;
            assert_eq!(peer.in_vain(&connect(from, to, 80)), libc::ETIMEDOUT);
            assert_eq!(peer.run("r = protocols(seen)"), "{}", "no answer");
            assert!(ipsec.counters().unwrap().refused_plain > before);
            assert_eq!(peer.errno(&connect(from, to, 81)), 0);
            let trusted = from.replace(".2", ".3").replace("::2", "::3");
            assert_eq!(peer.errno(&connect(&trusted, to, 80)), 0);
            let accepted = governed.run("s, _ = a.accept(); s.sendall(b'x'); kept.append(s); r = mark(s)");
            assert_eq!(accepted, "0");
            assert_eq!(peer.run("r = s.recv(1)"), "b'x'");
            peer.run("protocols(seen)");
        }
    }

    // Threat model: P4
    fn datagrams_in_the_clear_do_not_arrive(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let mut governed = Actor::governed();
        let mut peer = Actor::peer();
        governed.run("s = udp(6); s.bind(('', 99))");
        peer.run("a = udp(); a.bind(('10.1.0.2', 0)); b = udp(); b.bind(('10.1.0.3', 0))");
        peer.run("a.sendto(b'forged', ('10.1.0.1', 99)); b.sendto(b'trusted', ('10.1.0.1', 99))");
        assert_eq!(governed.run("r = s.recv(9)"), "b'trusted'");
        assert_eq!(ipsec.counters().unwrap().refused_plain, 1);
        // Connected as well.
        governed.run("s = udp(); s.bind(('', 98)); s.connect(('10.1.0.2', 5000)); s.settimeout(2)");
        peer.run("a = udp(); a.bind(('10.1.0.2', 5000)); a.sendto(b'forged', ('10.1.0.1', 98))");
        assert_eq!(governed.errno("s.recv(9)"), libc::ETIMEDOUT);
        assert_eq!(ipsec.counters().unwrap().refused_plain, 2);
    }

    // Threat model: P7
    fn loopback_addresses_of_a_neighbour_do_not_arrive(world) {
        for setting in ["route_localnet=1", "accept_local=1", "rp_filter=0"] {
            for interface in ["all", "cable"] {
                run("sysctl", &["-q", &format!("net.ipv4.conf.{interface}.{setting}")]);
            }
        }
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        governed.run("s = udp(); s.bind(('', 99))");
        other.run("s = udp(); s.bind(('', 98)); t = udp()");
        peer.run("raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)");
        // The hosts learn each other's link addresses, so that the peer need not ask for one from its loopback
        // address.
        peer.run("udp().sendto(b'first', ('10.1.0.1', 98))");
        assert_eq!(other.run("r = s.recv(9)"), "b'first'");
        for port in [99, 98] {
            peer.run(&format!("
ends = socket.inet_aton('127.5.5.5') + socket.inet_aton('10.1.0.1')
header = struct.pack('!BBHHHBBH', 0x45, 0, 29, 1, 0, 64, 17, 0) + ends
raw.sendto(header + struct.pack('!HHHH', 5, {port}, 9, 0) + b'x', ('10.1.0.1', 0))"));
        }
        assert_eq!(other.run("r = s.recvfrom(9)"), "(b'x', ('127.5.5.5', 5))");
        assert_eq!(ipsec.counters().unwrap().refused_plain, 1);
        // This host's datagrams to itself arrive.
        other.run("t.sendto(b'own', ('127.0.0.1', 99))");
        assert_eq!(governed.run("r = s.recv(9)"), "b'own'");
    }
}
