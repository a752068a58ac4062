//! Connections that another program has made or accepted.

use super::*;

/// Passes plain connections to the governed program for the calls that ask for an address. The same
/// calls of another program, and of the governed one on a connection of a trusted peer, change nothing.
fn asks_for_an_address(
    mut ipsec: usher_ipsec::Ipsec,
    asks: impl Fn(&usher_ipsec::Ipsec, &mut Actor, &mut Actor, &str),
) {
    ipsec.apply(&secure()).unwrap();
    let (mut governed, mut other, mut maker) = (Actor::governed(), Actor::other(), Actor::other());
    let mut peer = Actor::peer();
    maker.run(LISTEN);
    peer.run("kept = []");
    let getsockname = "libc.getsockname(f, bytes(64), struct.pack('I', 64))";
    let getpeername = "libc.getpeername(f, bytes(64), struct.pack('I', 64))";
    let setsockopt = "libc.setsockopt(f, 1, 9, struct.pack('I', 1), 4)";
    for (call, plain, trusted) in [
        (getsockname, "10.1.0.2", "10.1.0.3"),
        (getpeername, "fd01::2", "fd01::3"),
        (getpeername, "10.1.0.2", "10.1.0.3"),
        (getsockname, "fd01::2", "fd01::3"),
        (setsockopt, "10.1.0.2", "10.1.0.3"),
    ] {
        pass_connection(plain, &mut peer, &mut maker, &mut governed);
        asks(&ipsec, &mut governed, &mut peer, call);
        governed.run("os.close(f)");
        for (from, to) in [(trusted, &mut governed), (plain, &mut other)] {
            pass_connection(from, &mut peer, &mut maker, to);
            assert_eq!(to.run(&format!("r = {call}")), "0", "{call}");
            to.run("os.write(f, b'x'); os.close(f)");
            assert_eq!(peer.run("r = s.recv(9)"), "b'x'", "{call}");
        }
    }
}

tests! {
    /// Nothing lists sockets between the policy and the calls.
    // Threat model: P45
    fn no_call_on_an_older_connection_is_refused(world) {
        let mut ipsec = open(world);
        sees_calls(&ipsec);
        let (mut a, mut b) = (Actor::governed(), Actor::peer());
        b.run("l = tcp(6); l.bind(('', 9)); l.listen()");
        for (family, to) in [(4, B), (6, B6)] {
            a.run(&format!("s{family} = tcp({family}); s{family}.connect(('{to}', 9)); s{family}.setblocking(0)"));
            b.run("c, _ = l.accept(); c.sendall(b'plain')");
            eventually("it has come", || a.errno(&format!("s{family}.recv(9, 2)")) == 0);
        }
        ipsec.apply(&secure()).unwrap();
        for family in [4, 6] {
            assert_eq!(a.errno(&format!("s{family}.recv(9)")), 0, "{family}");
            assert_eq!(a.errno(&format!("s{family}.send(b'x')")), 0, "{family}");
        }
        assert_eq!(ipsec.counters().unwrap().adopted, 2);
        assert_eq!((ipsec.adopt().unwrap(), ipsec.adopt().unwrap()), (2, 0));
    }

    // Threat model: P28
    fn a_connection_is_governed_once_its_user_asks_for_an_address(world) {
        let settings = usher_ipsec::Settings { lsm: false, ..settings(world) };
        let ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        asks_for_an_address(ipsec, |ipsec, governed, peer, call| {
            let before = ipsec.counters().unwrap();
            assert_eq!(governed.run(&format!("r = {call}")), "0", "{call}");
            let found = ipsec.counters().unwrap();
            assert_eq!(found.adopted, before.adopted + 1, "{call}");
            governed.run("os.write(f, b'x')");
            eventually("it is kept back", || ipsec.counters().unwrap().kept_plain > found.kept_plain);
            peer.run("s.send(b'x')");
            eventually("it is dropped", || ipsec.counters().unwrap().refused_plain > found.refused_plain);
        });
    }

    // Threat model: P28
    fn asking_for_a_plain_connection_s_address_is_refused(world) {
        let ipsec = open(world);
        if !sees_calls(&ipsec) {
            return;
        }
        asks_for_an_address(ipsec, |ipsec, governed, _, call| {
            let before = ipsec.counters().unwrap();
            assert_eq!(governed.run(&format!("r = {call}")), "-1", "{call}");
            assert_eq!(ipsec.counters().unwrap().calls_refused, before.calls_refused + 1);
        });
    }

    // Threat model: P29
    fn a_plain_connection_of_a_former_maker_is_refused(world) {
        let Some((mut ipsec, mut maker, mut peer)) = listening(world, &with_maker(), || Actor::at(MAKER)) else {
            return;
        };
        let mut actors = [Actor::governed(), Actor::other()];
        for (from, to, expected) in uses_of("10.1.0.2", "10.1.0.3") {
            let to = &mut actors[to];
            ipsec.apply(&with_maker()).unwrap();
            pass_connection(from, &mut peer, &mut maker, to);
            peer.run("s.send(b'question')");
            assert_eq!(to.errno("r = os.read(f, 1)"), 0, "{from}: the maker's");
            ipsec.apply(&secure()).unwrap();
            assert_eq!(to.errno("r = os.read(f, 99)"), expected, "{from}");
            assert_eq!(to.errno("r = os.write(f, b'answer')"), expected, "{from}");
            to.run("os.close(f)");
        }
    }

    // Threat model: P28
    fn a_plain_connection_is_refused_before_a_byte_is_read(world) {
        let Some((ipsec, mut maker, mut peer)) = listening(world, &secure(), Actor::other) else {
            return;
        };
        let mut actors = [Actor::governed(), Actor::other()];
        for (plain, trusted) in [("10.1.0.2", "10.1.0.3"), ("fd01::2", "fd01::3")] {
            for (from, to, expected) in uses_of(plain, trusted) {
                let to = &mut actors[to];
                pass_connection(from, &mut peer, &mut maker, to);
                uses(&mut peer, to, from, expected);
            }
        }
        assert_eq!(ipsec.counters().unwrap().calls_refused, 4);
    }

    // Threat model: P35
    fn sockets_outside_the_control_group_are_not_adopted(world) {
        let mut ipsec = open(world);
        sees_calls(&ipsec);
        let (mut governed, mut outside) = (Actor::governed(), Actor::outside(world));
        let mut peer = Actor::peer();
        peer.run("l = tcp(); l.bind(('10.1.0.2', 80)); l.listen()");
        let connect = "s = tcp(); s.connect(('10.1.0.2', 80))";
        outside.run(connect);
        peer.run("c, _ = l.accept()");
        governed.run(connect);
        ipsec.apply(&secure()).unwrap();
        assert_eq!(ipsec.adopt().unwrap(), 1);
        assert_ne!(governed.number("mark(s)"), 0);
        assert_eq!(outside.number("mark(s)"), 0);
        outside.run("s.send(b'question')");
        assert_eq!(peer.run("r = c.recv(9)"), "b'question'");
    }

    // Threat model: P35
    fn calls_outside_the_control_group_are_left_alone(world) {
        let mut ipsec = open(world);
        if !sees_calls(&ipsec) {
            return;
        }
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut outside) = (Actor::governed(), Actor::outside(world));
        let (mut maker, mut peer) = (Actor::other(), Actor::peer());
        maker.run(LISTEN);
        peer.run("kept = []");
        for (to, expected) in [(&mut governed, EPERM), (&mut outside, 0)] {
            assert_eq!(to.errno("s = socket.socket(17, 3, 0)"), expected);
            for from in ["10.1.0.2", "fd01::2"] {
                pass_connection(from, &mut peer, &mut maker, to);
                uses(&mut peer, to, from, expected);
            }
        }
        // A program outside the control group makes and uses a connection that is refused inside.
        peer.run("l = tcp(); l.bind(('10.1.0.2', 80)); l.listen()");
        outside.run("s = tcp(); s.connect(('10.1.0.2', 80)); s.send(b'question')");
        assert_eq!(peer.run("c, _ = l.accept(); r = c.recv(9)"), "b'question'");
        assert_eq!(ipsec.counters().unwrap().calls_refused, 5);
    }

    fn at_the_root_calls_of_all_control_groups_are_seen(world) {
        // The root is the machine's.
        if !is_emulated() {
            eprintln!("skipped: needs a machine of its own");
            return;
        }
        let mut ipsec = open_at_root(world);
        if !sees_calls(&ipsec) {
            return;
        }
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut outside) = (Actor::governed(), Actor::outside(world));
        let (mut maker, mut peer) = (Actor::other(), Actor::peer());
        maker.run(LISTEN);
        peer.run("kept = []");
        for to in [&mut governed, &mut outside] {
            assert_eq!(to.errno("s = socket.socket(17, 3, 0)"), EPERM);
            pass_connection("10.1.0.2", &mut peer, &mut maker, to);
            uses(&mut peer, to, "10.1.0.2", EPERM);
        }
        assert_eq!(ipsec.counters().unwrap().calls_refused, 6);
    }
}
