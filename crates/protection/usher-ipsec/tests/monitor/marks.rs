//! The marks of sockets, by their programs, peers and ports.

use usher_protection::Level;

use super::*;

tests! {
    fn a_new_socket_has_the_mark_of_its_program(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        for made in ["tcp(4)", "tcp(6)", "udp(4)", "udp(6)"] {
            assert_eq!(governed.number(&format!("mark({made})")), SIGNED | DISCARD, "{made}");
            assert_eq!(other.number(&format!("mark({made})")), 0, "{made}");
        }
        assert_eq!(ipsec.counters().unwrap().sockets, 4);
        // One treatment for everything needs no signature.
        ipsec.apply(&tables(&[(GOVERNED, vec![
            ("0.0.0.0/0", optional(AUTHENTICATION)),
            ("::/0", optional(AUTHENTICATION)),
        ])])).unwrap();
        let expected = mark(AUTHENTICATION, Level::Optional);
        for made in ["tcp(4)", "udp(6)"] {
            assert_eq!(governed.number(&format!("mark({made})")), expected, "{made}");
        }
        ipsec.apply(&usher_protection::Tables::default()).unwrap();
        assert_eq!(governed.number("mark(tcp())"), 0);
    }

    fn a_connected_socket_has_the_mark_of_its_peer(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![
            ("10.1.0.0/24", To::Protected(vec![
                (0, 21, ENCRYPTION, Level::Mandatory),
                (7777, 0, AUTHENTICATION, Level::Optional),
                (0, 22, AUTHENTICATION, Level::Mandatory),
            ])),
            ("10.1.0.3/32", To::Trusted),
            ("fd01::/64", optional(ENCRYPTION)),
        ])])).unwrap();
        let mut governed = Actor::governed();
        let by_control = mark(ENCRYPTION, Level::Mandatory);
        let by_own = mark(AUTHENTICATION, Level::Optional);
        for (connect, expected) in [
            ("s = udp(); s.connect(('10.1.0.3', 9))", BYPASS),
            ("s = udp(6); s.connect(('::ffff:10.1.0.3', 9))", BYPASS),
            ("s = udp(6); s.connect(('fd01::2', 9))", mark(ENCRYPTION, Level::Optional)),
            // Where ports matter the mark selects by those of each datagram.
            ("s = udp(); s.bind(('', 7777)); s.connect(('10.1.0.2', 22))", SIGNED | DISCARD),
            ("s = udp(); s.bind(('', 0)); s.connect(('10.1.0.2', 21))", SIGNED | DISCARD),
            ("s = udp(); s.connect(('10.1.0.2', 22))", SIGNED | DISCARD),
            // The same socket, to another peer.
            ("s.connect(('10.1.0.3', 22))", BYPASS),
            ("s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.2', 21))", by_control),
            ("s = tcp(); s.setblocking(0); s.connect_ex(('10.1.0.3', 21))", BYPASS),
            ("s = tcp(); s.bind(('', 7777)); s.setblocking(0); s.connect_ex(('10.1.0.2', 22))", by_own),
        ] {
            assert_eq!(governed.run(connect), "None", "{connect}");
            assert_eq!(governed.number("mark(s)"), expected, "{connect}");
        }
        // Loopback is never protected.
        governed.run("s = udp(); s.connect(('127.0.0.1', 9))");
        assert_eq!(governed.number("mark(s)"), BYPASS);
    }

    // Threat model: P18
    fn a_governed_program_cannot_change_its_marks(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let set = |mark: u32| format!("s.setsockopt(socket.SOL_SOCKET, SO_MARK, {mark})");
        for actor in [&mut governed, &mut other] {
            actor.run("s = udp()");
        }
        assert_eq!(governed.errno(&set(BYPASS)), EPERM);
        assert_eq!(other.errno(&set(BYPASS)), 0);
        assert_eq!(governed.number("mark(s)"), SIGNED | DISCARD);
        // Bits that are not ours are the program's.
        assert_eq!(governed.errno(&set(7)), 0);
        assert_eq!(governed.number("mark(s)"), SIGNED | DISCARD | 7);
        assert_eq!(governed.errno(&set(0)), 0);
        assert_eq!(governed.number("mark(s)"), SIGNED | DISCARD);
        // struct xfrm_userpolicy_info: allow, for all addresses, outwards.
        let bypass = "p = bytearray(168); p[40] = 2; p[160] = 1; s.setsockopt(0, 17, bytes(p))";
        assert_eq!(governed.errno(bypass), EPERM);
        assert_eq!(other.errno(bypass), 0);
        // The kernel takes the beginning of a long value, which the monitor does not see.
        let long = "s.setsockopt(socket.SOL_SOCKET, SO_MARK, struct.pack('I', 0x100000) + bytes(8188))";
        assert_eq!(governed.errno(long), EPERM);
        assert_eq!(governed.number("mark(s)"), SIGNED | DISCARD);
        assert_eq!(other.errno(long), 0);
        assert_eq!(other.number("mark(s)"), BYPASS);
        assert_eq!(ipsec.counters().unwrap().options_refused, 3);
        // Other options are not touched.
        governed.run("s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)");
    }

    // Threat model: P21
    fn mptcp_is_refused_and_tcp_is_not(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mptcp = "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)";
        let without = other.errno(mptcp);
        if without != 0 {
            eprintln!("skipped: this kernel has no MPTCP: errno {without}");
            return;
        }
        assert_eq!(governed.errno(mptcp), libc::EPROTONOSUPPORT);
        governed.run("s = tcp()");
        assert_eq!(ipsec.counters().unwrap().sockets_refused, 1);
    }

    fn sctp_is_refused(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let sctp = "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)";
        let without = other.errno(sctp);
        if without != 0 {
            eprintln!("skipped: this kernel has no SCTP: errno {without}");
            return;
        }
        assert_eq!(governed.errno(sctp), libc::EPROTONOSUPPORT);
        assert_eq!(ipsec.counters().unwrap().sockets_refused, 1);
    }
}
