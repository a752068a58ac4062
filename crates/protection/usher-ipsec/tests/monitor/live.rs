//! Live sockets: listed, and adopted if they are older than the policy.

use std::time::Duration;

use usher_ipsec::{LiveTreatment, UnheldReason};
use usher_protection::{Class, Level};

use super::*;

tests! {
    // Threat model: P27
    fn sockets_older_than_the_policy_are_adopted(world) {
        let mut ipsec = open(world);
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        for (actor, port) in [(&mut governed, 80), (&mut other, 81)] {
            actor.run(&format!(
                "a = tcp(); a.bind(('', {port})); a.listen(); u = udp(); u.bind(('', {port}))"
            ));
        }
        peer.run("a = udp(); a.bind(('10.1.0.2', 0)); kept = []");
        let connect = |port: u16| format!(
            "s = tcp(); kept.append(s); s.connect(('10.1.0.1', {port}))"
        );
        assert_eq!(peer.errno(&connect(80)), 0);
        ipsec.apply(&secure()).unwrap();
        assert_eq!(peer.in_vain(&connect(80)), libc::ETIMEDOUT);
        assert_eq!(ipsec.adopt().unwrap(), 2);
        assert_eq!(ipsec.adopt().unwrap(), 0, "they are governed now");
        let live = ipsec.sockets(0, 9).unwrap().sockets;
        let ours: Vec<_> = live.iter().map(|one| one.local.port()).collect();
        assert_eq!(ours, [80, 80], "{live:?}");
        peer.run("a.sendto(b'forged', ('10.1.0.1', 80)); a.sendto(b'x', ('10.1.0.1', 81))");
        assert_eq!(governed.errno("u.settimeout(2); u.recv(9)"), libc::ETIMEDOUT);
        // Other programs' sockets stay theirs.
        assert_eq!(other.run("r = u.recv(9)"), "b'x'");
        assert_eq!(peer.errno(&connect(81)), 0);
        // A send gives the datagram socket its mark.
        governed.errno("u.sendto(b'x', ('10.1.0.2', 9))");
        assert_eq!(governed.number("mark(u)"), SIGNED | DISCARD);
        // A connection that a governed program makes is listed with its class.
        governed.run("t = tcp(); t.setblocking(0); t.connect_ex(('10.1.0.2', 21))");
        let live = ipsec.sockets(0, 9).unwrap().sockets;
        let connection = live.iter().find(|one| one.remote.is_some_and(|to| to.port() == 21)).unwrap();
        let expected = LiveTreatment::Protect(ENCRYPTION, Level::Mandatory);
        assert_eq!(connection.treatment, expected);
        assert_eq!(connection.mark, mark(ENCRYPTION, Level::Mandatory));
        assert_eq!(connection.remote.unwrap().to_string(), "10.1.0.2:21");
        assert_eq!(connection.protocol, 6);
    }

    // Threat model: P30
    fn sockets_that_cannot_be_held_are_named(world) {
        let mut ipsec = open(world);
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        for actor in [&mut governed, &mut other] {
            actor.run("p = [socket.socket(17, 3, 0) for _ in range(2)]");
            actor.run("u = udp(); u.connect(('10.1.0.2', 9))");
            // What can be held: a trusted peer, a datagram socket without one, a listener.
            actor.run("t = udp(); t.connect(('10.1.0.3', 9)); n = udp(); l = tcp(); l.listen()");
        }
        ipsec.apply(&secure()).unwrap();
        ipsec.adopt().unwrap();
        let reasons = |ipsec: &usher_ipsec::Ipsec| -> Vec<_> {
            let unheld = ipsec.unheld().iter();
            unheld.map(|one| (one.program.as_ref().unwrap().to_string(), one.reason, one.sockets)).collect()
        };
        let named = |reason, sockets| (GOVERNED.to_owned(), reason, sockets);
        let all = [named(UnheldReason::Kind, 2), named(UnheldReason::Mark, 1)];
        assert_eq!(reasons(&ipsec), all);
        assert_eq!(governed.errno("u.send(b'x')"), EPERM);
        // The socket has its mark once it is connected again, and so have sockets that are made now.
        governed.run("u.connect(('10.1.0.2', 9)); v = udp(); v.connect(('10.1.0.2', 9))");
        ipsec.adopt().unwrap();
        assert_eq!(reasons(&ipsec), all[..1]);
        governed.run("[one.close() for one in p]");
        ipsec.adopt().unwrap();
        assert_eq!(reasons(&ipsec), []);
        // Where the peer is trusted, the kernel cuts datagrams (UDP_SEGMENT), and nowhere else.
        governed.run("t.setsockopt(17, 103, 500)");
        ipsec.adopt().unwrap();
        assert_eq!(reasons(&ipsec), []);
        governed.run("v.setsockopt(17, 103, 500)");
        ipsec.adopt().unwrap();
        assert_eq!(reasons(&ipsec), [named(UnheldReason::Segments, 1)]);
    }

    // Threat model: P18, P45
    fn older_connected_datagram_sockets_get_their_mark_when_it_is_set(world) {
        let mut ipsec = open(world);
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let connect = |names: &str| format!(
            "for s, to in zip([{names}], ['10.1.0.2', 'fd01::2', '::ffff:10.1.0.2', '10.1.0.3']):
    s.connect((to, 9))"
        );
        let make = |names: &str| format!("{names} = udp(), udp(6), udp(6), udp()\n{}", connect(names));
        let marks_of = |actor: &mut Actor, names: &str| {
            actor.run(&format!("r = ' '.join(str(mark(s)) for s in ({names}))"))
        };
        for actor in [&mut governed, &mut other] {
            actor.run(&make("a, b, c, d"));
        }
        // Clears the mark without knowing it, as any process with duplicates of the sockets can.
        let clear = "for s in (a, b, c, d): s.setsockopt(socket.SOL_SOCKET, SO_MARK, mark(s) & ~0xfff00000)";
        let by_port = To::Protected(vec![
            (0, 9, ENCRYPTION, Level::Mandatory),
            (0, 0, AUTHENTICATION, Level::Mandatory),
        ]);
        let unheld = |ipsec: &mut usher_ipsec::Ipsec| {
            ipsec.adopt().unwrap();
            ipsec.unheld().iter().map(|one| one.sockets).sum::<usize>()
        };
        for to in [mandatory(ENCRYPTION), by_port, optional(AUTHENTICATION)] {
            let networks = ["10.1.0.2/32", "fd01::2/128"].map(|network| (network, to.clone()));
            let mut networks = networks.to_vec();
            networks.push(("10.1.0.3/32", To::Trusted));
            // Nothing of the policy before is left in them.
            for actor in [&mut governed, &mut other] {
                actor.run(clear);
            }
            ipsec.apply(&tables(&[("/bin/false", vec![("0.0.0.0/0", To::Trusted)])])).unwrap();
            ipsec.adopt().unwrap();
            governed.run(clear);
            assert_eq!(marks_of(&mut governed, "a, b, c, d"), "'0 0 0 0'");
            ipsec.apply(&tables(&[(GOVERNED, networks)])).unwrap();
            assert_eq!(unheld(&mut ipsec), 3);
            let is_mandatory = |item: &(u16, u16, Class, Level)| item.3 == Level::Mandatory;
            if matches!(&to, To::Protected(items) if items.iter().all(is_mandatory)) {
                assert_eq!(governed.errno("a.send(b'x')"), EPERM);
            }
            // No other mark than the one that is needed.
            let wrong = format!("a.setsockopt(socket.SOL_SOCKET, SO_MARK, {BYPASS})");
            assert_eq!(governed.errno(&wrong), EPERM);
            governed.run(clear);
            assert_eq!(unheld(&mut ipsec), 0);
            assert_ne!(governed.errno("a.send(b'x')"), EPERM);
            // The mark is that of sockets that are connected now.
            governed.run(&make("e, f, g, h"));
            let fresh = marks_of(&mut governed, "e, f, g");
            assert_eq!(marks_of(&mut governed, "a, b, c"), fresh);
            // Sockets whose traffic needs no mark, and those of other programs, get none.
            assert_eq!(marks_of(&mut governed, "d,"), "'0'");
            other.run(clear);
            assert_eq!(marks_of(&mut other, "a, b, c, d"), "'0 0 0 0'");
        }
        // A peer that is trusted from now on.
        let trusted = ["10.1.0.0/24", "fd01::/64"].map(|network| (network, To::Trusted));
        ipsec.apply(&tables(&[(GOVERNED, trusted.to_vec())])).unwrap();
        ipsec.adopt().unwrap();
        governed.run(clear);
        governed.run(&make("e, f, g, h"));
        let fresh = marks_of(&mut governed, "e, f, g");
        assert_eq!(marks_of(&mut governed, "a, b, c"), fresh);
    }

    // Threat model: P3, P27
    fn established_connections_get_the_mark_of_their_class(world) {
        let mut ipsec = open(world);
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        peer.run("l = tcp(6); l.bind(('', 80)); l.listen(); kept = []");
        for (actor, port) in [(&mut governed, 80), (&mut other, 81)] {
            actor.run(&format!(
                "l = tcp(6); l.bind(('', {port})); l.listen()
a = tcp(); a.connect(('10.1.0.2', 80))
b = tcp(6); b.connect(('fd01::2', 80))
c = tcp(); c.connect(('10.1.0.3', 80))
d = tcp(6); d.connect(('::ffff:10.1.0.2', 80))"
            ));
            peer.run(&format!("s = tcp(); s.connect(('10.1.0.1', {port})); kept.append(s)"));
            actor.run("e, _ = l.accept()");
        }
        let marks = "' '.join(str(mark(s)) for s in (a, b, c, d, e))";
        let marks_of = |actor: &mut Actor| actor.run(&format!("r = {marks}"));
        let all = |protected: u32, trusted: u32| {
            format!("'{protected} {protected} {trusted} {protected} {protected}'")
        };
        assert_eq!(marks_of(&mut governed), all(0, 0));
        ipsec.apply(&secure()).unwrap();
        // A socket without a mark is treated like one with bypass.
        let encrypted = mark(ENCRYPTION, Level::Mandatory);
        assert_eq!(marks_of(&mut governed), all(encrypted, 0));
        assert_eq!(ipsec.adopt().unwrap(), 6);
        assert_eq!(marks_of(&mut other), all(0, 0));
        assert_eq!(ipsec.counters().unwrap().remarked, 4);
        peer.run("seen = capture('cable')");
        governed.run("for s in (a, b, d, e): s.sendall(b'x')");
        governed.run("c.sendall(b'x')");
        eventually("the trusted peer gets its byte", || peer.run("r = protocols(seen)") == "{6: 1}");
        // Another policy marks them again.
        for (to, expected) in [
            (To::Trusted, BYPASS),
            (optional(AUTHENTICATION), mark(AUTHENTICATION, Level::Optional)),
            (mandatory(AUTHENTICATION), mark(AUTHENTICATION, Level::Mandatory)),
            // The packets of the connection leave as before.
            (optional(AUTHENTICATION), mark(AUTHENTICATION, Level::Mandatory)),
            (To::Untrusted, DISCARD),
        ] {
            let networks = ["10.1.0.2/32", "fd01::2/128"].map(|network| (network, to.clone()));
            let mut networks = networks.to_vec();
            networks.push(("10.1.0.3/32", To::Trusted));
            ipsec.apply(&tables(&[(GOVERNED, networks)])).unwrap();
            ipsec.adopt().unwrap();
            assert_eq!(marks_of(&mut governed), all(expected, 0));
            assert_eq!(marks_of(&mut other), all(0, 0));
        }
    }

    fn every_live_socket_is_on_one_page(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        governed.run("kept = [udp(4 + 2 * (n % 2)) for n in range(50)]");
        other.run("kept = [udp() for n in range(5)]");
        // Another process holds the same sockets.
        governed.run("child = os.fork()\nif not child: time.sleep(1000)");
        let whole = ipsec.sockets(0, 1000).unwrap();
        assert_eq!((whole.sockets.len(), whole.total, whole.next), (50, 50, None));
        for socket in &whole.sockets {
            assert_eq!(socket.holders, 2, "{socket:?}");
            assert_eq!(socket.program.as_ref().unwrap().to_string(), GOVERNED);
            assert_eq!((socket.protocol, socket.remote, socket.uid), (17, None, 0));
            assert_eq!(socket.treatment, LiveTreatment::EachPacket);
        }
        let (mut paged, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next {
            let page = ipsec.sockets(after, 7).unwrap();
            assert!(page.sockets.len() <= 7 && page.total == 50);
            paged.extend(page.sockets);
            next = page.next;
        }
        assert_eq!(paged, whole.sockets);
        governed.run("os.kill(child, 9); os.waitpid(child, 0); kept.clear()");
        assert_eq!(ipsec.sockets(0, 1000).unwrap().total, 0);
    }

    fn a_process_holds_a_socket_once_however_many_descriptors_it_has(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let mut governed = Actor::governed();
        governed.run(&hoard(5, 1));
        let live = ipsec.sockets(0, 9).unwrap().sockets;
        assert_eq!(live.len(), 1, "{live:?}");
        assert_eq!(live[0].holders, 2);
        governed.run("end()");
        assert_eq!(ipsec.sockets(0, 9).unwrap().sockets[0].holders, 1);
    }

    // The kernel visits at most a million descriptors at a time, and a process may have half of them.
    // Threat model: P47
    fn a_visit_of_many_descriptors_leaves_room_for_other_work(world) {
        const MANY: u32 = 1_050_000;
        let mut ipsec = open(world);
        ipsec.apply(&tables(&[])).unwrap();
        let mut other = Actor::other();
        other.run("import resource");
        let most = other.number("resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100");
        other.run(&hoard(most.min(MANY), MANY / most));
        // The visit comes to this process after the hoarded descriptors.
        let mut governed = Actor::governed();
        governed.run("a = tcp(); a.bind(('', 80)); a.listen()");
        let mut visit = ipsec.begin_adopting(true).unwrap();
        let mut page = ipsec.begin_page(0, 9).unwrap();
        for visit in [&mut visit, &mut page] {
            assert_eq!(ipsec.go_on(visit, Duration::ZERO).unwrap(), (0, false));
        }
        // Meanwhile another policy comes in force.
        ipsec.apply(&secure()).unwrap();
        let mut adopted = 0;
        for visit in [&mut visit, &mut page] {
            loop {
                let (more, is_complete) = ipsec.go_on(visit, Duration::ZERO).unwrap();
                adopted += more;
                if is_complete {
                    break;
                }
            }
        }
        assert_eq!(adopted, 1);
        let live = ipsec.sockets(0, 9).unwrap().sockets;
        assert_eq!(live.len(), 1, "{live:?}");
        assert_eq!(live[0].local.port(), 80);
        assert_eq!(ipsec.adopt().unwrap(), 0, "it is governed");
    }

    #[ignore = "prints figures"]
    fn the_time_of_a_pass_over_many_descriptors(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let figures = |ipsec: &mut usher_ipsec::Ipsec, what: &str| {
            let mut passes: Vec<_> = (0..5).map(|_| {
                let begun = std::time::Instant::now();
                let mut visit = ipsec.begin_adopting(false).unwrap();
                ipsec.go_on(&mut visit, Duration::MAX).unwrap();
                begun.elapsed()
            }).collect();
            passes.sort();
            println!("{what}: a pass takes {:?} (median of 5)", passes[2]);
        };
        figures(&mut ipsec, "nothing else");
        for (who, descriptors, processes) in [
            ("others", 15_000, 9), ("others", 15_000, 199),
            ("governed", 15_000, 9), ("governed", 15_000, 199),
        ] {
            let mut holder = match who {
                "others" => Actor::other(),
                _ => Actor::governed(),
            };
            holder.run(&hoard(descriptors, processes));
            figures(&mut ipsec, &format!("{who}: {descriptors} descriptors of {} processes", processes + 1));
            holder.run("end()");
        }
    }
}

/// Code that holds so many descriptors of one socket in the process and as many children.
fn hoard(descriptors: u32, children: u32) -> String {
    format!(
        "import resource, signal
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
u = udp(); u.bind(('', 0)); held = [os.dup(u.fileno()) for _ in range({descriptors})]
children = []
for _ in range({children}):
    child = os.fork()
    if not child:
        signal.pause()
    children.append(child)
def end():
    for child in children: os.kill(child, 9); os.waitpid(child, 0)
    os.closerange(held[0], held[-1] + 1)"
    )
}
