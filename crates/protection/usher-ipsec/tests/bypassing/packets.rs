//! Packets with false contents, and other ways to send packets.

use usher_protection::{Level, Tables};

use super::*;

/// All traffic with the network must be encrypted, but for port 53, which may be plain.
fn with_an_optional_port(network: &str) -> Tables {
    let items = vec![
        (0, 53, AUTHENTICATION, Level::Optional),
        (0, 0, ENCRYPTION, Level::Mandatory),
    ];
    let networks = vec![
        (network, To::Protected(items)),
        ("10.1.0.3/32", To::Trusted),
    ];
    tables(&[(GOVERNED, networks)])
}

tests! {
    // Threat model: P20
    fn a_raw_socket_sends_no_plaintext(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        let header = "ends = socket.inet_aton('10.1.0.1') + socket.inet_aton('10.1.0.2')";
        for (what, act) in [
            ("a raw socket of UDP", "s = socket.socket(2, 3, 17); s.sendto(bytes(8), ('10.1.0.2', 0))".to_owned()),
            ("a raw socket of TCP", "s = socket.socket(2, 3, 6); s.sendto(bytes(20), ('10.1.0.2', 0))".to_owned()),
            ("a raw socket of ICMP", "s = socket.socket(2, 3, 1); s.sendto(b'\\x08' + bytes(7), ('10.1.0.2', 0))".to_owned()),
            ("a raw socket of IPv6", "s = socket.socket(10, 3, 17); s.sendto(bytes(8), ('fd01::2', 0))".to_owned()),
            ("a raw socket with its own header", format!(
                "s = socket.socket(2, 3, 255); {header}; s.sendto(struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 0, 64, 17, 0) + ends + bytes(8), ('10.1.0.2', 0))"
            )),
            // Sent to a trusted peer, with another peer's address in the header.
            ("a raw socket that lies about its peer", format!(
                "s = socket.socket(2, 3, 255); {header}; s.sendto(struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 0, 64, 17, 0) + ends + bytes(8), ('10.1.0.3', 0))"
            )),
            // In place of ports, such a fragment has bytes that the program chooses.
            ("a fragment after the first", format!(
                "s = socket.socket(2, 3, 255); {header}; s.sendto(struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 1, 64, 17, 0) + ends + bytes(8), ('10.1.0.2', 0))"
            )),
        ] {
            only_others(what, &[&act], [&mut governed, &mut other, &mut peer]);
        }
    }

    /// Packets of raw sockets count as plaintext, whatever their protocol number.
    // Threat model: P20
    fn a_raw_socket_does_not_pass_for_an_sa(world) {
        let mut ipsec = open(world);
        let by_ports = To::Protected(vec![
            (0, 53, AUTHENTICATION, Level::Mandatory),
            (0, 0, ENCRYPTION, Level::Mandatory),
        ]);
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        let unmarked = "s.sendmsg([bytes(64)], [(1, SO_MARK, struct.pack('I', 0))], 0, ('10.1.0.2', 0))";
        let header = "h = struct.pack('!BBHHHBBH', 0x45, 0, 84, 1, 0, 64, 50, 0) + socket.inet_aton('10.1.0.1') + socket.inet_aton('10.1.0.2')";
        for to in [mandatory(ENCRYPTION), by_ports, To::Untrusted] {
            ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", to), ("10.1.0.3/32", To::Trusted)])])).unwrap();
            for (what, act) in [
                ("ESP", format!("s = socket.socket(2, 3, 50); {unmarked}")),
                ("AH", format!("s = socket.socket(2, 3, 51); {unmarked}")),
                ("its own header", format!(
                    "{header}; s = socket.socket(2, 3, 255); s.sendmsg([h + bytes(64)], [(1, SO_MARK, struct.pack('I', 0))], 0, ('10.1.0.2', 0))"
                )),
            ] {
                only_others(what, &[&act], [&mut governed, &mut other, &mut peer]);
            }
        }
        // A socket of another protocol that gets the program's own headers does not pass either.
        for (level, option) in [("0", 3), ("41", 36)] {
            let family = if level == "0" { 2 } else { 10 };
            let act = format!("s = socket.socket({family}, 3, 1); s.setsockopt({level}, {option}, 1)");
            assert_eq!(governed.errno(&act), EPERM, "{act}");
            assert_eq!(other.errno(&act), 0, "{act}");
        }
        // To a trusted peer it sends what it likes.
        governed.run("s = socket.socket(2, 3, 50); s.sendto(struct.pack('!I', 77) + bytes(60), ('10.1.0.3', 0))");
        assert_eq!(arrives("ESP to a trusted peer, of this SPI", &mut peer), "{77: 1}");
    }

    // Threat model: P24
    fn a_fragment_does_not_choose_its_ports(world) {
        let mut ipsec = open(world);
        ipsec.apply(&with_an_optional_port("10.1.0.0/24")).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // The bytes in the place of ports are data of the fragment.
        let fragment = "
s = socket.socket(2, 3, 255)
ends = socket.inet_aton('10.1.0.1') + socket.inet_aton('10.1.0.2')
header = struct.pack('!BBHHHBBH', 0x45, 0, 28, 1, 1, 64, 17, 0) + ends
s.sendto(header + struct.pack('!HHHH', 5, 53, 0, 0), ('10.1.0.2', 0))";
        only_others("a fragment", &[fragment], [&mut governed, &mut other, &mut peer]);
        // A whole datagram to that port may be plain.
        governed.run("udp().sendto(b'x', ('10.1.0.2', 53))");
        assert_eq!(arrives("the optional port", &mut peer), "{17: 1}");
    }

    // Threat model: P24
    fn ports_behind_extension_headers_decide(world) {
        let mut ipsec = open(world);
        ipsec.apply(&with_an_optional_port("fd01::/64")).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // Without Usher's entries of the SPD, which would drop most packets before the monitor sees them.
        run("ip", &["xfrm", "policy", "flush"]);
        // Of each header but the first, the one before it says the kind.
        for actor in [&mut governed, &mut other] {
            actor.run("
def behind(headers, port):
    kinds = [kind for kind, _ in headers] + [17]
    chain = b''.join(bytes([kind]) + rest for kind, (_, rest) in zip(kinds[1:], headers))
    body = chain + struct.pack('!HHHH', 5, port, 8, 0)
    start = struct.pack('!IHBB', 6 << 28, len(body), kinds[0], 64)
    ends = socket.inet_pton(10, 'fd01::1') + socket.inet_pton(10, 'fd01::2')
    socket.socket(10, 3, 255).sendto(start + ends + body, ('fd01::2', 0))
options = (60, bytes([0, 1, 4, 0, 0, 0, 0]))
visited = (43, bytes([0, 2, 0, 0, 0, 0, 0]))
fragment = lambda place: (44, bytes([0]) + struct.pack('!HI', place, 9))");
        }
        let refused = [
            ("another port", "behind([options], 9)"),
            ("another port behind eight", "behind([options] * 8, 9)"),
            ("another port in an atomic fragment", "behind([fragment(0)], 9)"),
            // The ports cannot be read, or are none.
            ("behind nine", "behind([options] * 9, 53)"),
            ("the first fragment", "behind([fragment(1)], 53)"),
            ("a later fragment", "behind([fragment(8)], 53)"),
            ("a later fragment behind options", "behind([options, fragment(8)], 53)"),
        ];
        for (what, act) in refused {
            only_others(what, &[act], [&mut governed, &mut other, &mut peer]);
        }
        let counters = ipsec.counters().unwrap();
        assert_eq!((counters.kept_plain, counters.kept_unreadable), (3, 4));
        for headers in ["[]", "[options] * 8", "[fragment(0), options]", "[visited, options]"] {
            governed.run(&format!("behind({headers}, 53)"));
            let seen = arrives(headers, &mut peer);
            assert_ne!(seen, "{}", "{headers}");
        }
    }

    // Threat model: P20
    fn a_connected_raw_socket_is_judged_packet_by_packet(world) {
        let mut ipsec = open(world);
        ipsec.apply(&with_an_optional_port("10.1.0.0/24")).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // The socket has the mark of a port that may be plain. The program writes the ports itself.
        let connect = "s = socket.socket(2, 3, 6); s.connect(('10.1.0.2', 53))";
        let segment = |port: u16| format!("s.send(struct.pack('!HH', 5, {port}) + bytes(16))");
        for actor in [&mut governed, &mut other] {
            actor.run(connect);
            actor.run(&segment(53));
            assert_eq!(arrives("the optional port", &mut peer), "{6: 1}");
        }
        only_others("another port", &[&segment(9)], [&mut governed, &mut other, &mut peer]);
    }

    // Threat model: P24
    fn a_way_by_a_trusted_address_is_refused(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // A source route by the trusted address to the other.
        let way = |kind: u32| format!(
            "s = udp(); s.setsockopt(0, 4, bytes([{kind}, 7, 4]) + socket.inet_aton('10.1.0.3') + b'\\0'); s.sendto(b'x', ('10.1.0.2', 9))"
        );
        for (what, act) in [("a loose way", way(131)), ("a strict way", way(137))] {
            only_others(what, &[&act], [&mut governed, &mut other, &mut peer]);
        }
        assert!(ipsec.counters().unwrap().kept_unreadable >= 2);
        // After another option.
        let later = "s = udp(); s.setsockopt(0, 4, bytes([1, 68, 8, 5, 0, 0, 0, 0, 0, 131, 7, 4]) + socket.inet_aton('10.1.0.3') + b'\\0'); s.sendto(b'x', ('10.1.0.2', 9))";
        only_others("a way after a timestamp", &[later], [&mut governed, &mut other, &mut peer]);
        // Other options are no way: an alert for routers to the trusted address.
        governed.run("s = udp(); s.setsockopt(0, 4, bytes([1, 148, 4, 0, 0, 0, 0, 0])); s.sendto(b'x', ('10.1.0.3', 9))");
        assert_eq!(arrives("an alert", &mut peer), "{17: 1}");
        // IPv6: type 2, one address left.
        let way = "s = udp(6); s.setsockopt(41, 57, bytes([0, 2, 2, 1, 0, 0, 0, 0]) + socket.inet_pton(10, 'fd01::3')); s.sendto(b'x', ('fd01::2', 9))";
        if other.errno(way) != 0 {
            println!("skipped: this kernel sends no routing headers of type 2");
            return;
        }
        captured(&mut peer);
        only_others("a routing header", &[way], [&mut governed, &mut other, &mut peer]);
    }

    // Threat model: P24
    fn a_datagram_that_is_kept_back_goes_to_its_first_peer(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        for actor in [&mut governed, &mut other] {
            actor.run("import ctypes; libc = ctypes.CDLL(None)");
        }
        for (family, trusted, to) in [(4, "10.1.0.3", "10.1.0.2"), (6, "fd01::3", "fd01::2")] {
            // Begun with the mark of the trusted peer; the port is given back before the end.
            let act = format!("
s = udp({family})
s.connect(('{trusted}', 9))
try: s.sendto(b'a', 0x8000, ('{to}', 9))
except OSError: pass
libc.connect(s.fileno(), bytes(16), 16)
s.send(b'b')");
            only_others(to, &[&act], [&mut governed, &mut other, &mut peer]);
        }
    }

    // Threat model: P34
    fn sockets_that_share_a_port_keep_their_programs(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        for actor in [&mut governed, &mut other] {
            actor.run("s = udp(); s.setsockopt(1, 15, 1); s.bind(('', 99)); s.setblocking(0)");
        }
        peer.run("a = [udp() for _ in range(64)]\nfor s in a: s.bind(('10.1.0.2', 0)); s.sendto(b'x', ('10.1.0.1', 99))");
        // The kernel spreads them over both sockets by their ports.
        let count = "r = 0\ntry:\n    while s.recv(9): r += 1\nexcept OSError: pass";
        let (mut arrived, mut refused) = (0, 0);
        eventually("all of them have come", || {
            arrived += other.run(count).parse::<u64>().unwrap();
            refused = ipsec.counters().unwrap().refused_plain;
            arrived + refused >= 64
        });
        assert_eq!(governed.run(count), "0");
        assert!(arrived > 0 && refused > 0 && arrived + refused == 64, "{arrived}, {refused}");
    }

    // Threat model: P15
    fn a_peer_that_another_program_rewrites_decides(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut peer) = (Actor::governed(), Actor::other(), Actor::peer());
        peer.run("seen = capture('cable')");
        // A program of the control group, after ours: the trusted address becomes the other.
        other.run(include_str!("../world/rewriting.py"));
        other.run(&format!("rewrite('{}', '10.1.0.2')", world.cgroup.display()));
        let connect = "s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.3', 80))";
        governed.errno(connect);
        assert_eq!(governed.run("r = s.getsockopt(1, 36) >> 20"), "3", "encryption, mandatory");
        governed.errno("s = udp(); s.connect(('10.1.0.3', 80)); s.send(b'x')");
        governed.run("udp().sendto(b'mark', ('10.1.0.3', 9))");
        assert_eq!(arrives("a datagram to the trusted address", &mut peer), "{17: 1}");
        other.errno(connect);
        assert_eq!(arrives("another program's SYN", &mut peer), "{6: 1}");
    }

    // Threat model: P71
    fn a_host_reaches_itself_without_protection(world) {
        let mut ipsec = open(world);
        let all = |to: To| tables(&[(GOVERNED, vec![("0.0.0.0/0", to.clone()), ("::/0", to)])]);
        for (what, policy) in [("discard", secure()), ("mandatory", all(mandatory(ENCRYPTION)))] {
            ipsec.apply(&policy).unwrap();
            let (mut governed, mut other) = (Actor::governed(), Actor::other());
            for (family, address) in [(4, "127.0.0.1"), (4, "10.1.0.1"), (6, "::1")] {
                let to = format!("('{address}', 99)");
                other.run(&format!("u = udp({family}); u.bind({to}); l = tcp({family}); l.setsockopt(1, 2, 1); l.bind({to}); l.listen()"));
                governed.run(&format!("s = udp({family}); s.sendto(b'question', {to})"));
                other.run("q, back = u.recvfrom(9); u.sendto(b'answer', back)");
                assert_eq!(governed.run("r = s.recv(9)"), "b'answer'", "{what} {address}");
                governed.run(&format!("s = udp({family}); s.connect({to}); s.send(b'question')"));
                other.run("q, back = u.recvfrom(9); u.sendto(b'answer', back)");
                assert_eq!(governed.run("r = s.recv(9)"), "b'answer'", "{what} {address}");
                governed.run(&format!("s = tcp({family}); s.connect({to}); s.send(b'question')"));
                other.run("c, _ = l.accept(); c.recv(9); c.send(b'answer'); u.close(); l.close(); c.close()");
                assert_eq!(governed.run("r = s.recv(9)"), "b'answer'", "{what} {address}");
            }
        }
    }
}
