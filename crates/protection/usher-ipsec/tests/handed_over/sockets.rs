//! Listeners, datagram sockets, and sockets of families without protection.

use usher_protection::Level;

use super::*;

tests! {
    // Threat model: P27
    fn a_listener_is_governed_once_its_user_asks_for_an_address(world) {
        let mut ipsec = open(world);
        sees_calls(&ipsec);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut maker) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        maker.run(LISTEN);
        peer.run("kept = []");
        assert_eq!(peer.errno(&connect("10.1.0.2")), 0);
        pass(&mut maker, "l", &mut governed);
        assert_eq!(peer.errno(&connect("10.1.0.2")), 0, "nobody has used it yet");
        governed.run("r = libc.getsockname(f, bytes(64), struct.pack('I', 64))");
        assert_eq!(peer.in_vain(&connect("10.1.0.2")), libc::ETIMEDOUT);
        assert_eq!(peer.errno(&connect("10.1.0.3")), 0);
    }

    // Threat model: P29
    fn what_a_governed_program_made_stays_governed(world) {
        let mut ipsec = open(world);
        sees_calls(&ipsec);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        governed.run(LISTEN);
        peer.run("kept = []; u = udp(); u.bind(('10.1.0.2', 9)); v = udp(); v.bind(('10.1.0.3', 9))");
        pass(&mut governed, "l", &mut other);
        governed.run("l.close()");
        other.run("l = socket.socket(fileno=f)");
        assert_eq!(peer.in_vain(&connect("10.1.0.2")), libc::ETIMEDOUT);
        assert_eq!(peer.errno(&connect("10.1.0.3")), 0);
        other.run("c, _ = l.accept(); c.send(b'x')");
        assert_eq!(peer.run("r = s.recv(9)"), "b'x'");
        // A datagram socket of a governed program, and one of its own.
        governed.run("s = udp()");
        pass(&mut governed, "s", &mut other);
        other.run("s = socket.socket(fileno=f)");
        assert_eq!(other.errno("s.sendto(b'x', ('10.9.0.1', 9))"), EPERM);
        other.errno("s.sendto(b'forged', ('10.1.0.2', 9))");
        other.run("s.sendto(b'trusted', ('10.1.0.3', 9)); udp().sendto(b'own', ('10.1.0.2', 9))");
        assert_eq!(peer.run("r = v.recv(9)"), "b'trusted'");
        assert_eq!(peer.run("r = u.recv(9)"), "b'own'");
    }

    // Threat model: P29
    fn a_socket_is_its_user_s_once_its_maker_has_no_block(world) {
        let mut ipsec = open(world);
        sees_calls(&ipsec);
        ipsec.apply(&with_maker()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let (mut maker, mut peer) = (Actor::at(MAKER), Actor::peer());
        peer.run("kept = []; u = udp(); u.bind(('10.1.0.2', 9)); v = udp(); v.bind(('10.1.0.3', 9))");
        peer.run("l = tcp(); l.bind(('10.1.0.2', 80)); l.listen()");
        for to in [&mut governed, &mut other] {
            for socket in ["udp()", "tcp()"] {
                maker.run(&format!("s = {socket}"));
                pass(&mut maker, "s", to);
                to.run(&format!("{} = socket.socket(fileno=f)", &socket[..1]));
            }
            // The socket is the maker's as long as the maker has a block.
            to.run("u.sendto(b'x', ('10.1.0.2', 9))");
            assert_eq!(peer.run("r = u.recv(9)"), "b'x'");
            assert_eq!(to.errno("u.sendto(b'x', ('10.9.0.1', 9))"), EPERM);
        }
        let before = ipsec.counters().unwrap().adopted;
        ipsec.apply(&secure()).unwrap();
        // The first datagram corrects the mark.
        let send = |actor: &mut Actor, to: &str, what: &str| actor.errno(&format!("u.sendto(b'{what}', ('{to}', 9))"));
        for actor in [&mut governed, &mut other] {
            send(actor, "10.1.0.3", "first");
            assert_eq!(send(actor, "10.1.0.3", "trusted"), 0);
            while peer.run("r = v.recv(9)") != "b'trusted'" {}
        }
        send(&mut governed, "10.1.0.2", "forged");
        assert_eq!(send(&mut other, "10.1.0.2", "own"), 0);
        assert_eq!(peer.run("r = u.recv(9)"), "b'own'");
        assert_eq!(other.number("mark(u)"), 0);
        governed.run("t.setblocking(0); t.connect_ex(('10.1.0.2', 80))");
        assert_eq!(governed.number("mark(t)"), mark(ENCRYPTION, Level::Mandatory));
        other.run("t.settimeout(60); t.connect(('10.1.0.2', 80))");
        assert_eq!(other.number("mark(t)"), 0);
        assert_eq!(ipsec.counters().unwrap().adopted, before + 2);
    }

    // Threat model: P29
    fn listing_finds_sockets_whose_maker_has_no_block(world) {
        let mut ipsec = open(world);
        ipsec.apply(&with_maker()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let (mut maker, mut peer) = (Actor::at(MAKER), Actor::peer());
        peer.run("kept = []");
        let connect = |from: &str, port: u16| format!(
            "s = tcp(); kept.append(s); s.bind(('{from}', 0)); s.connect(('10.1.0.1', {port}))"
        );
        for (to, port) in [(&mut governed, 80), (&mut other, 81)] {
            maker.run(&format!("l = tcp(6); l.setsockopt(1, 2, 1); l.bind(('', {port})); l.listen()"));
            pass(&mut maker, "l", to);
            maker.run("l.close()");
        }
        assert_eq!(ipsec.adopt().unwrap(), 0, "the maker's");
        assert_eq!(peer.errno(&connect("10.1.0.2", 80)), 0);
        ipsec.apply(&secure()).unwrap();
        let mut visit = ipsec.begin_adopting(false).unwrap();
        assert_eq!(ipsec.go_on(&mut visit, std::time::Duration::MAX).unwrap(), (1, true));
        assert_eq!(ipsec.adopt().unwrap(), 0);
        assert_eq!(peer.in_vain(&connect("10.1.0.2", 80)), libc::ETIMEDOUT);
        assert_eq!(peer.errno(&connect("10.1.0.3", 80)), 0);
        assert_eq!(peer.errno(&connect("10.1.0.2", 81)), 0);
        let live = ipsec.sockets(0, 9).unwrap().sockets;
        assert_eq!(live.len(), 1, "{live:?}");
        assert_eq!(live[0].program.as_ref().unwrap().to_string(), GOVERNED);
    }

    // Threat model: P27
    fn a_datagram_socket_becomes_its_user_s(world) {
        let mut ipsec = open(world);
        sees_calls(&ipsec);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut maker) = (Actor::governed(), Actor::other(), Actor::other());
        let mut peer = Actor::peer();
        peer.run("u = udp(); u.bind(('10.1.0.2', 9)); v = udp(); v.bind(('10.1.0.3', 9))");
        for send in ["s.sendto(b'x', (TO, 9))", "s.connect((TO, 9)); s.send(b'x')"] {
            maker.run("s = udp()");
            pass(&mut maker, "s", &mut governed);
            governed.run("s = socket.socket(fileno=f)");
            governed.errno(&send.replace("TO", "'10.1.0.2'").replace("b'x'", "b'forged'"));
            maker.run("s = udp()");
            pass(&mut maker, "s", &mut governed);
            governed.run("s = socket.socket(fileno=f)");
            // The first datagram corrects the mark.
            governed.errno(&send.replace("TO", "'10.1.0.3'"));
            governed.run(&send.replace("TO", "'10.1.0.3'"));
            assert_eq!(peer.run("r = v.recv(9)"), "b'x'", "{send}");
            maker.run("s = udp()");
            pass(&mut maker, "s", &mut other);
            other.run(&format!("s = socket.socket(fileno=f); {}", send.replace("TO", "'10.1.0.2'")));
            assert_eq!(peer.run("r = u.recv(9)"), "b'x'", "{send}");
        }
    }

    // Threat model: P28
    fn a_listener_becomes_the_program_s_that_accepts(world) {
        let Some((_ipsec, mut maker, mut peer)) = listening(world, &secure(), Actor::other) else {
            return;
        };
        let mut governed = Actor::governed();
        // One waits already.
        assert_eq!(peer.errno(&connect("10.1.0.2")), 0);
        peer.run("s.send(b'question')");
        pass(&mut maker, "l", &mut governed);
        governed.run("c = libc.accept(f, None, None); r = c");
        assert_eq!(governed.errno("os.read(c, 99)"), EPERM, "it was made without protection");
        assert_eq!(peer.in_vain(&connect("10.1.0.2")), libc::ETIMEDOUT);
        assert_eq!(peer.errno(&connect("10.1.0.3")), 0);
    }

    // Threat model: P19, P21
    fn families_that_pass_beside_the_hooks_are_refused(world) {
        let mut ipsec = open(world);
        if !sees_calls(&ipsec) {
            return;
        }
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        // Packet, RDS, PPPoE and its kind, CAN, TIPC, Bluetooth, RxRPC, KCM, SMC, XDP.
        for family in [17, 21, 24, 29, 30, 31, 33, 41, 43, 44] {
            for kind in [1, 2, 3, 5] {
                let make = format!("s = socket.socket({family}, {kind}, 0)");
                assert_eq!(governed.errno(&make), EPERM, "{make}");
                assert_ne!(other.errno(&make), EPERM, "{make}");
            }
        }
        // One that another program made.
        other.run("s = socket.socket(17, 3, 0)");
        pass(&mut other, "s", &mut governed);
        assert_eq!(governed.errno("os.read(f, 9)"), EPERM);
        // Sockets that stay on this host are not touched (UNIX, netlink, ciphers), nor those of virtual machines.
        for (family, kind) in [(1, 2), (16, 2), (38, 5), (40, 1)] {
            let make = format!("s = socket.socket({family}, {kind}, 0)");
            assert_eq!(governed.errno(&make), other.errno(&make), "{make}");
        }
        assert_eq!(governed.errno("s = socket.socket(1, 2, 0)"), 0);
    }

    // Threat model: P21
    fn mptcp_and_sctp_of_another_program_are_refused(world) {
        let mut ipsec = open(world);
        if !sees_calls(&ipsec) {
            return;
        }
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut maker) = (Actor::governed(), Actor::other(), Actor::other());
        for protocol in [262, 132] {
            let without = maker.errno(&format!("s = socket.socket(2, 1, {protocol})"));
            if without != 0 {
                eprintln!("skipped: protocol {protocol}: errno {without}");
                continue;
            }
            for act in ["os.read(f, 9)", "os.write(f, b'x')"] {
                pass(&mut maker, "s", &mut governed);
                assert_eq!(governed.errno(act), EPERM, "{protocol}: {act}");
                pass(&mut maker, "s", &mut other);
                other.run("os.set_blocking(f, False)");
                assert_ne!(other.errno(act), EPERM, "{protocol}: {act}");
            }
        }
    }
}
