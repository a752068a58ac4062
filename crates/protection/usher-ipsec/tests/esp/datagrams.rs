//! Datagrams, and raw sockets of protocols without ports.

use super::*;

tests! {
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
    // Threat model: P23
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

    // Threat model: P45
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
        // To the socket's own peer no call fails. A datagram to another port is treated by the policy in
        // force, and one that was begun under the former policy is refused.
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

    // Threat model: P1
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
