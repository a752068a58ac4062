//! The marks of sockets, and the packets that pass. Without SAs: this also runs where the kernel has
//! no ESP.

#[macro_use]
mod world;

use usher_ipsec::{LiveTreatment, Reason};
use usher_protection::Level;
use world::*;

const BYPASS: u32 = 0x0010_0000;
const DISCARD: u32 = 0x0020_0000;
const SIGNED: u32 = 0x0100_0000;

const EPERM: i32 = libc::EPERM;

/// Encrypted with host B, except its second address, which is trusted; everything else is not.
fn secure() -> usher_protection::Tables {
    tables(&[(
        GOVERNED,
        vec![
            ("10.1.0.0/24", mandatory(ENCRYPTION)),
            ("10.1.0.3/32", To::Trusted),
            ("fd01::/64", mandatory(ENCRYPTION)),
            ("fd01::3/128", To::Trusted),
        ],
    )])
}

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
        let by_data = mark(AUTHENTICATION, Level::Mandatory);
        let by_own = mark(AUTHENTICATION, Level::Optional);
        for (connect, expected) in [
            ("s = udp(); s.connect(('10.1.0.3', 9))", BYPASS),
            ("s = udp(6); s.connect(('::ffff:10.1.0.3', 9))", BYPASS),
            ("s = udp(6); s.connect(('fd01::2', 9))", mark(ENCRYPTION, Level::Optional)),
            ("s = udp(); s.bind(('', 7777)); s.connect(('10.1.0.2', 22))", by_own),
            ("s.close(); s = udp(); s.bind(('', 0)); s.connect(('10.1.0.2', 22))", by_data),
            ("s = udp(); s.bind(('', 0)); s.connect(('10.1.0.2', 21))", by_control),
            // The port is chosen later: the mark selects by the ports of each packet.
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
            format!("s = tcp({family}); kept.append(s); s.bind(('{from}', 0)); s.settimeout(2); s.connect(('{to}', {port}))")
        };
        for (from, to) in [("10.1.0.2", "10.1.0.1"), ("fd01::2", "fd01::1")] {
            let before = ipsec.counters().unwrap().refused_plain;
            assert_eq!(peer.errno(&connect(from, to, 80)), libc::ETIMEDOUT);
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
        governed.run("s = udp(); s.bind(('', 98)); s.connect(('10.1.0.2', 5000)); s.settimeout(1)");
        peer.run("a = udp(); a.bind(('10.1.0.2', 5000)); a.sendto(b'forged', ('10.1.0.1', 98))");
        assert_eq!(governed.errno("s.recv(9)"), libc::ETIMEDOUT);
        assert_eq!(ipsec.counters().unwrap().refused_plain, 2);
    }

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
        // The hosts know each other's link addresses: none is asked for by a loopback address.
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
        // What this host sends itself arrives.
        other.run("t.sendto(b'own', ('127.0.0.1', 99))");
        assert_eq!(governed.run("r = s.recv(9)"), "b'own'");
    }

    fn an_optional_peer_that_is_held_is_not_served_in_the_clear(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", optional(ENCRYPTION))])])).unwrap();
        let mut governed = Actor::governed();
        let mut peer = Actor::peer();
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        let connect = "s = tcp(); s.bind(('10.1.0.2', 0)); s.settimeout(2); s.connect(('10.1.0.1', 80))";
        let to_peer = "s = tcp(); s.settimeout(2); s.connect(('10.1.0.2', 80))";
        peer.run("a = tcp(); a.bind(('', 80)); a.listen()");
        assert_eq!(peer.errno(connect), 0);
        assert_eq!(governed.errno(to_peer), 0);
        let peer_address = B.parse().unwrap();
        ipsec.hold(ENCRYPTION, peer_address).unwrap();
        assert_eq!(peer.errno(connect), libc::ETIMEDOUT);
        assert_ne!(governed.errno(to_peer), 0);
        // Another peer is not.
        assert_eq!(peer.errno(&connect.replace("0.2", "0.3")), 0);
        assert!(ipsec.let_go(ENCRYPTION, peer_address).unwrap());
        assert_eq!(peer.errno(connect), 0);
    }

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

    fn a_new_file_at_the_path_is_followed(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let mut former = Actor::governed();
        std::fs::copy(GOVERNED, "/mnt/new").unwrap();
        std::fs::rename("/mnt/new", GOVERNED).unwrap();
        let mut latter = Actor::governed();
        assert_eq!(latter.number("mark(udp())"), 0);
        assert!(ipsec.follow_programs().unwrap().is_some());
        assert_eq!(latter.number("mark(udp())"), SIGNED | DISCARD);
        // What runs from the former file stays protected.
        assert_eq!(former.number("mark(udp())"), SIGNED | DISCARD);
        assert!(ipsec.follow_programs().unwrap().is_none());
    }

    fn an_executable_of_two_blocks_is_refused(world) {
        let mut ipsec = open(world);
        let link = || std::os::unix::fs::symlink(GOVERNED, "/mnt/link").unwrap();
        let both = tables(&[
            (GOVERNED, vec![("10.1.0.0/24", mandatory(ENCRYPTION)), ("10.1.0.3/32", To::Trusted)]),
            ("/mnt/link", vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)]),
        ]);
        link();
        let error = ipsec.apply(&both).unwrap_err().to_string();
        assert!(error.starts_with("/mnt/governed and /mnt/link, of two"), "{error}");
        let mut governed = Actor::governed();
        assert_eq!(governed.number("mark(udp())"), 0);
        // Without the link they are in force.
        std::fs::remove_file("/mnt/link").unwrap();
        assert_eq!(ipsec.apply(&both).unwrap().refused, []);
        assert_eq!(governed.number("mark(udp())"), SIGNED | DISCARD);
        // The link comes later.
        link();
        let refused = ipsec.follow_programs().unwrap().unwrap().refused;
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].reason, Reason::OfAnotherBlock);
        assert_eq!(refused[0].path.to_str(), Some("/mnt/link"));
        assert_eq!(governed.number("mark(udp())"), SIGNED | DISCARD);
        assert_eq!(ipsec.follow_programs().unwrap(), None, "it is said once");
        // A file of its own.
        std::fs::remove_file("/mnt/link").unwrap();
        std::fs::copy(GOVERNED, "/mnt/link").unwrap();
        let applied = ipsec.follow_programs().unwrap().unwrap();
        assert_eq!((applied.refused, applied.missing), (vec![], vec![]));
        // One block may name a file twice.
        std::fs::remove_file("/mnt/link").unwrap();
        link();
        let mut one = tables(&[(GOVERNED, vec![("10.1.0.0/24", mandatory(ENCRYPTION))])]);
        one.applications[0].programs.push(usher_protection::ProgramName::Path("/mnt/link".into()));
        assert_eq!(ipsec.apply(&one).unwrap().refused, []);
    }

    fn an_account_cannot_name_another_s_executable(world) {
        let mut ipsec = open(world);
        let mut governed = Actor::governed();
        let bob = |path: &str| std::os::unix::fs::lchown(path, Some(1000), Some(1000)).unwrap();
        let is_governed = |governed: &mut Actor| governed.number("mark(udp())") != 0;
        std::fs::create_dir("/mnt/home").unwrap();
        bob("/mnt/home");
        std::os::unix::fs::symlink(GOVERNED, "/mnt/home/tool").unwrap();
        std::fs::hard_link(GOVERNED, "/mnt/home/hard").unwrap();
        // Root's folder, Bob's on the way.
        std::os::unix::fs::symlink("/mnt/home/tool", "/mnt/way").unwrap();
        for path in ["/mnt/home/tool", "/mnt/home/hard", "/mnt/way"] {
            let networks = vec![("10.1.0.0/24", mandatory(ENCRYPTION))];
            let applied = ipsec.apply(&tables(&[(path, networks)])).unwrap();
            assert_eq!(applied.refused[0].reason, Reason::Replaceable, "{path}");
            assert_eq!(applied.missing.len(), 1, "{path}");
            assert!(!is_governed(&mut governed), "{path}");
            // His own file counts.
            bob(GOVERNED);
            assert_eq!(ipsec.follow_programs().unwrap().unwrap().refused, [], "{path}");
            assert!(is_governed(&mut governed), "{path}");
            std::os::unix::fs::chown(GOVERNED, Some(0), Some(0)).unwrap();
            ipsec.apply(&usher_protection::Tables::default()).unwrap();
        }
        // Root's link counts.
        std::os::unix::fs::symlink(GOVERNED, "/mnt/link").unwrap();
        let networks = vec![("10.1.0.0/24", mandatory(ENCRYPTION))];
        assert_eq!(ipsec.apply(&tables(&[("/mnt/link", networks)])).unwrap().refused, []);
        assert!(is_governed(&mut governed));
    }

    fn another_policy_counts_for_sockets_that_are_open(world) {
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Trusted)])])).unwrap();
        let mut governed = Actor::governed();
        let mut peer = Actor::peer();
        peer.run("a = tcp(); a.bind(('', 80)); a.listen(); u = udp(); u.bind(('', 9)); u.settimeout(1)");
        governed.run("u = udp(); u.sendto(b'x', ('10.1.0.2', 9)); s = tcp(); s.connect(('10.1.0.2', 80))");
        peer.run("r, _ = a.accept(); u.recv(1)");
        ipsec.apply(&secure()).unwrap();
        assert_eq!(governed.errno("u.sendto(b'x', ('10.1.0.2', 9))"), EPERM, "its mark is old");
        // Other rules have another signature.
        assert_eq!(governed.number("mark(u)"), (2 * SIGNED) | DISCARD);
        governed.errno("s.sendall(b'x')");
        assert_eq!(peer.errno("u.recv(1)"), libc::ETIMEDOUT);
        let kept = ipsec.counters().unwrap().kept_plain;
        assert!(kept >= 2, "{kept}");
        ipsec.apply(&tables(&[(GOVERNED, vec![("10.1.0.0/24", To::Trusted)])])).unwrap();
        // The first corrects the mark.
        governed.errno("u.sendto(b'x', ('10.1.0.2', 9))");
        governed.run("u.sendto(b'x', ('10.1.0.2', 9))");
        assert_eq!(peer.run("r = u.recv(1)"), "b'x'");
    }

    fn sockets_older_than_the_policy_are_adopted(world) {
        let mut ipsec = open(world);
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        for (actor, port) in [(&mut governed, 80), (&mut other, 81)] {
            actor.run(&format!(
                "a = tcp(); a.bind(('', {port})); a.listen(); u = udp(); u.bind(('', {port})); u.settimeout(1)"
            ));
        }
        peer.run("a = udp(); a.bind(('10.1.0.2', 0)); kept = []");
        let connect = |port: u16| format!(
            "s = tcp(); kept.append(s); s.settimeout(2); s.connect(('10.1.0.1', {port}))"
        );
        ipsec.apply(&secure()).unwrap();
        // They are not governed yet.
        assert_eq!(peer.errno(&connect(80)), 0);
        let live = ipsec.adopt().unwrap();
        let ours: Vec<_> = live.iter().map(|one| (one.local.port(), one.adopted)).collect();
        assert_eq!(ours, [(80, true), (80, true)], "{live:?}");
        assert_eq!(peer.errno(&connect(80)), libc::ETIMEDOUT);
        peer.run("a.sendto(b'forged', ('10.1.0.1', 80)); a.sendto(b'x', ('10.1.0.1', 81))");
        assert_eq!(governed.errno("u.recv(9)"), libc::ETIMEDOUT);
        // Other programs' sockets stay theirs.
        assert_eq!(other.run("r = u.recv(9)"), "b'x'");
        assert_eq!(peer.errno(&connect(81)), 0);
        // What they send gets the mark.
        governed.errno("u.sendto(b'x', ('10.1.0.2', 9))");
        assert_eq!(governed.number("mark(u)"), SIGNED | DISCARD);
        // A connection that a governed program makes is listed with its class.
        governed.run("t = tcp(); t.setblocking(0); t.connect_ex(('10.1.0.2', 21))");
        let live = ipsec.adopt().unwrap();
        let connection = live.iter().find(|one| one.remote.is_some_and(|to| to.port() == 21)).unwrap();
        let expected = LiveTreatment::Protect(ENCRYPTION, Level::Mandatory);
        assert_eq!((connection.treatment, connection.adopted), (expected, false));
        assert_eq!(connection.mark, mark(ENCRYPTION, Level::Mandatory));
        assert_eq!(connection.remote.unwrap().to_string(), "10.1.0.2:21");
        assert_eq!(connection.protocol, 6);
    }

    fn a_policy_that_is_not_complete_changes_nothing(world) {
        let mut settings = settings(world);
        settings.pins = Some("/mnt/bpf/ipsec".into());
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        peer.run("kept = []");
        let connect = "s = tcp(); kept.append(s); s.settimeout(2); s.connect(('10.1.0.1', 80))";
        assert_eq!(peer.errno(connect), libc::ETIMEDOUT);
        // The first application, so the first number, is now another's, which may do everything.
        let trusting = tables(&[
            ("/no/such/program", vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)]),
            (GOVERNED, vec![("10.1.0.0/24", optional(AUTHENTICATION))]),
        ]);
        // The table comes in place, its generation does not.
        other.run("freeze('/mnt/bpf/ipsec/state')");
        let before = (ipsec.wanted().clone(), ipsec.spd_entries().unwrap());
        ipsec.apply(&trusting).unwrap_err();
        assert_eq!((ipsec.wanted().clone(), ipsec.spd_entries().unwrap()), before);
        assert_eq!(ipsec.put_back().unwrap(), 0);
        assert_eq!(ipsec.follow_programs().unwrap(), None);
        let decided = ipsec.monitor().decide(0, "10.1.0.2".parse().unwrap(), 1, 1).unwrap();
        assert_eq!(decided, ENCRYPTION.mark(Level::Mandatory));
        drop(ipsec);
        assert_eq!(peer.errno(connect), libc::ETIMEDOUT);
        assert_eq!(governed.number("mark(tcp())"), SIGNED | DISCARD);
        assert_eq!(governed.errno("udp().connect(('10.9.0.1', 9))"), EPERM);
        assert_eq!(governed.errno("udp().sendto(b'x', ('10.1.0.3', 9))"), 0);
    }

    fn the_first_number_is_another_program_s_in_the_next_policy(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let mut governed = Actor::governed();
        let mut peer = Actor::peer();
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        peer.run("kept = []");
        let connect = "s = tcp(); kept.append(s); s.settimeout(2); s.connect(('10.1.0.1', 80))";
        assert_eq!(peer.errno(connect), libc::ETIMEDOUT);
        let all = vec![("0.0.0.0/0", To::Trusted), ("::/0", To::Trusted)];
        ipsec.apply(&tables(&[
            ("/no/such/program", all.clone()),
            (GOVERNED, vec![("10.1.0.0/24", mandatory(ENCRYPTION))]),
        ])).unwrap();
        assert_eq!(peer.errno(connect), libc::ETIMEDOUT);
        ipsec.apply(&tables(&[("/no/such/program", vec![]), (GOVERNED, all)])).unwrap();
        assert_eq!(peer.errno(connect), 0);
    }

    fn what_is_pinned_outlives_the_process(world) {
        let mut settings = settings(world);
        settings.pins = Some("/mnt/bpf/ipsec".into());
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        ipsec.apply(&secure()).unwrap();
        drop(ipsec);
        let mut governed = Actor::governed();
        assert_eq!(governed.number("mark(tcp())"), SIGNED | DISCARD);
        assert_eq!(governed.errno("udp().connect(('10.9.0.1', 9))"), EPERM);
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        assert_eq!(governed.number("mark(tcp())"), SIGNED | DISCARD);
        assert_eq!(ipsec.apply(&secure()).unwrap().spd_changes, 0);
        ipsec.close().unwrap();
        eventually("nothing is governed", || governed.number("mark(tcp())") == 0);
        assert!(!std::path::Path::new("/mnt/bpf/ipsec").exists());
    }
}
