//! Sockets that one program makes and another uses: a governed one and one that is not, both ways.
//! Without SAs.

#[macro_use]
mod world;

use usher_protection::{Level, Treatment};
use world::*;

/// Passes a socket; the receiver has it as the descriptor `f`, and has asked it for nothing.
fn pass(from: &mut Actor, socket: &str, to: &mut Actor) {
    to.run("import ctypes; libc = ctypes.CDLL(None, use_errno=True); p = socket.socket(1, 2); os.path.exists('/mnt/pass') and os.unlink('/mnt/pass'); p.bind('/mnt/pass')");
    from.run(&format!(
        "q = socket.socket(1, 2); q.connect('/mnt/pass'); socket.send_fds(q, [b'x'], [{socket}.fileno()])"
    ));
    to.run("f = socket.recv_fds(p, 9, 1)[1][0]");
}

/// Connects host B, from its address `from`, to a listener of another program, which passes the
/// connection on.
fn pass_connection(from: &str, peer: &mut Actor, maker: &mut Actor, to: &mut Actor) {
    let (family, own) = if from.contains(':') {
        (6, "fd01::1")
    } else {
        (4, "10.1.0.1")
    };
    peer.run(&format!(
        "s = tcp({family}); kept.append(s); s.bind(('{from}', 0)); s.connect(('{own}', 80))"
    ));
    maker.run("c, _ = l.accept()");
    pass(maker, "c", to);
    maker.run("c.close()");
}

/// Another governed program, which trusts host B.
const MAKER: &str = "/mnt/maker";

/// A script that does what a test says, after its process has had another program.
const SCRIPT: &str = "/mnt/script";

/// [`secure`], and a block of [`MAKER`].
fn with_maker() -> usher_protection::Tables {
    if !std::path::Path::new(MAKER).exists() {
        std::fs::copy(OTHER, MAKER).unwrap();
    }
    let mut tables = secure();
    let networks = ["10.1.0.0/24", "fd01::/64"];
    let mut all: Vec<_> = ["0.0.0.0/0", "::/0"]
        .iter()
        .map(|all| (all.parse().unwrap(), Treatment::Discard))
        .collect();
    all.extend(
        networks
            .iter()
            .map(|one| (one.parse().unwrap(), Treatment::Bypass)),
    );
    add(&mut tables, MAKER, all);
    tables
}

/// Reads from the passed connection of host B and writes to it; both end with the errno `expected`.
fn uses(peer: &mut Actor, to: &mut Actor, from: &str, expected: i32) {
    peer.run("s.send(b'question')");
    assert_eq!(to.errno("r = os.read(f, 99)"), expected, "{from}");
    assert_eq!(to.errno("r = os.write(f, b'answer')"), expected, "{from}");
    to.run("os.close(f)");
}

/// The code that connects host B, from one of its addresses, to a listener.
fn connect(from: &str) -> String {
    format!(
        "s = tcp(); kept.append(s); s.bind(('{from}', 0)); s.settimeout(2); s.connect(('10.1.0.1', 80))"
    )
}

/// Protection by these tables, a maker that listens, and host B. None where no LSM programs refuse calls.
fn listening(
    world: &World,
    tables: &usher_protection::Tables,
    maker: impl FnOnce() -> Actor,
) -> Option<(usher_ipsec::Ipsec, Actor, Actor)> {
    let mut ipsec = open(world);
    if !sees_calls(&ipsec) {
        return None;
    }
    ipsec.apply(tables).unwrap();
    let (mut maker, mut peer) = (maker(), Actor::peer());
    maker.run(LISTEN);
    peer.run("kept = []");
    Some((ipsec, maker, peer))
}

/// The address from which host B connects, whether the governed program (0) or another one (1) then uses
/// the connection, and the errno of its calls.
fn uses_of<'a>(plain: &'a str, trusted: &'a str) -> [(&'a str, usize, i32); 3] {
    [(plain, 0, EPERM), (trusted, 0, 0), (plain, 1, 0)]
}

/// Whether LSM programs refuse calls here. Prints the reason if not.
fn sees_calls(ipsec: &usher_ipsec::Ipsec) -> bool {
    let reason = ipsec.monitor().unseen_calls();
    if let Some(reason) = &reason {
        eprintln!("skipped: this kernel runs no LSM programs: {reason}");
    }
    reason.is_none()
}

const LISTEN: &str = "l = tcp(6); l.setsockopt(1, 2, 1); l.bind(('', 80)); l.listen(); kept = []";

tests! {
    /// Nothing lists sockets between the policy and the calls.
    fn no_call_on_an_older_connection_is_refused(world) {
        let mut ipsec = open(world);
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

    fn a_connection_is_governed_once_its_user_asks_for_an_address(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut maker) = (Actor::governed(), Actor::other(), Actor::other());
        let mut peer = Actor::peer();
        maker.run(LISTEN);
        peer.run("kept = []");
        for (call, plain, trusted) in [
            ("libc.getsockname(f, bytes(64), struct.pack('I', 64))", "10.1.0.2", "10.1.0.3"),
            ("libc.getpeername(f, bytes(64), struct.pack('I', 64))", "fd01::2", "fd01::3"),
            ("libc.getpeername(f, bytes(64), struct.pack('I', 64))", "10.1.0.2", "10.1.0.3"),
            ("libc.getsockname(f, bytes(64), struct.pack('I', 64))", "fd01::2", "fd01::3"),
            ("libc.setsockopt(f, 1, 9, struct.pack('I', 1), 4)", "10.1.0.2", "10.1.0.3"),
        ] {
            pass_connection(plain, &mut peer, &mut maker, &mut governed);
            let before = ipsec.counters().unwrap();
            let returned = governed.run(&format!("r = {call}"));
            if ipsec.monitor().unseen_calls().is_none() {
                assert_eq!(returned, "-1", "{call}");
                assert_eq!(ipsec.counters().unwrap().calls_refused, before.calls_refused + 1);
            } else {
                assert_eq!(returned, "0", "{call}");
                let found = ipsec.counters().unwrap();
                assert_eq!(found.adopted, before.adopted + 1, "{call}");
                governed.run("os.write(f, b'x')");
                eventually("it is kept back", || ipsec.counters().unwrap().kept_plain > found.kept_plain);
                peer.run("s.send(b'x')");
                eventually("it is dropped", || ipsec.counters().unwrap().refused_plain > found.refused_plain);
            }
            governed.run("os.close(f)");
            for (from, to) in [(trusted, &mut governed), (plain, &mut other)] {
                pass_connection(from, &mut peer, &mut maker, to);
                assert_eq!(to.run(&format!("r = {call}")), "0", "{call}");
                to.run("os.write(f, b'x'); os.close(f)");
                assert_eq!(peer.run("r = s.recv(9)"), "b'x'", "{call}");
            }
        }
    }

    fn a_listener_is_governed_once_its_user_asks_for_an_address(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut maker) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        maker.run(LISTEN);
        peer.run("kept = []");
        assert_eq!(peer.errno(&connect("10.1.0.2")), 0);
        pass(&mut maker, "l", &mut governed);
        assert_eq!(peer.errno(&connect("10.1.0.2")), 0, "nobody has used it yet");
        governed.run("r = libc.getsockname(f, bytes(64), struct.pack('I', 64))");
        assert_eq!(peer.errno(&connect("10.1.0.2")), libc::ETIMEDOUT);
        assert_eq!(peer.errno(&connect("10.1.0.3")), 0);
    }

    fn what_a_governed_program_made_stays_governed(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let mut peer = Actor::peer();
        governed.run(LISTEN);
        peer.run("kept = []; u = udp(); u.bind(('10.1.0.2', 9)); u.settimeout(2); v = udp(); v.bind(('10.1.0.3', 9)); v.settimeout(10)");
        pass(&mut governed, "l", &mut other);
        governed.run("l.close()");
        other.run("l = socket.socket(fileno=f)");
        assert_eq!(peer.errno(&connect("10.1.0.2")), libc::ETIMEDOUT);
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

    fn a_socket_is_its_user_s_once_its_maker_has_no_block(world) {
        let mut ipsec = open(world);
        ipsec.apply(&with_maker()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let (mut maker, mut peer) = (Actor::at(MAKER), Actor::peer());
        peer.run("kept = []; u = udp(); u.bind(('10.1.0.2', 9)); u.settimeout(10); v = udp(); v.bind(('10.1.0.3', 9)); v.settimeout(10)");
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
        other.run("t.settimeout(10); t.connect(('10.1.0.2', 80))");
        assert_eq!(other.number("mark(t)"), 0);
        assert_eq!(ipsec.counters().unwrap().adopted, before + 2);
    }

    fn listing_finds_sockets_whose_maker_has_no_block(world) {
        let mut ipsec = open(world);
        ipsec.apply(&with_maker()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        let (mut maker, mut peer) = (Actor::at(MAKER), Actor::peer());
        peer.run("kept = []");
        let connect = |from: &str, port: u16| format!(
            "s = tcp(); kept.append(s); s.bind(('{from}', 0)); s.settimeout(2); s.connect(('10.1.0.1', {port}))"
        );
        for (to, port) in [(&mut governed, 80), (&mut other, 81)] {
            maker.run(&format!("l = tcp(6); l.setsockopt(1, 2, 1); l.bind(('', {port})); l.listen()"));
            pass(&mut maker, "l", to);
            maker.run("l.close()");
        }
        assert_eq!(ipsec.adopt().unwrap(), 0, "the maker's");
        assert_eq!(peer.errno(&connect("10.1.0.2", 80)), 0);
        ipsec.apply(&secure()).unwrap();
        assert_eq!(ipsec.adopt_later().unwrap(), 1);
        assert_eq!(ipsec.adopt().unwrap(), 0);
        assert_eq!(peer.errno(&connect("10.1.0.2", 80)), libc::ETIMEDOUT);
        assert_eq!(peer.errno(&connect("10.1.0.3", 80)), 0);
        assert_eq!(peer.errno(&connect("10.1.0.2", 81)), 0);
        let live = ipsec.sockets(0, 9).unwrap().sockets;
        assert_eq!(live.len(), 1, "{live:?}");
        assert_eq!(live[0].program.as_ref().unwrap().to_string(), GOVERNED);
    }

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

    fn a_datagram_socket_becomes_its_user_s(world) {
        let mut ipsec = open(world);
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other, mut maker) = (Actor::governed(), Actor::other(), Actor::other());
        let mut peer = Actor::peer();
        peer.run("u = udp(); u.bind(('10.1.0.2', 9)); u.settimeout(10); v = udp(); v.bind(('10.1.0.3', 9)); v.settimeout(10)");
        for send in ["s.sendto(b'x', (TO, 9))", "s.connect((TO, 9)); s.send(b'x')"] {
            maker.run("s = udp()");
            pass(&mut maker, "s", &mut governed);
            governed.run("s = socket.socket(fileno=f)");
            governed.errno(&send.replace("TO", "'10.1.0.2'").replace("b'x'", "b'forged'"));
            maker.run("s = udp()");
            pass(&mut maker, "s", &mut governed);
            governed.run("s = socket.socket(fileno=f)");
            // The first corrects the mark.
            governed.errno(&send.replace("TO", "'10.1.0.3'"));
            governed.run(&send.replace("TO", "'10.1.0.3'"));
            assert_eq!(peer.run("r = v.recv(9)"), "b'x'", "{send}");
            maker.run("s = udp()");
            pass(&mut maker, "s", &mut other);
            other.run(&format!("s = socket.socket(fileno=f); {}", send.replace("TO", "'10.1.0.2'")));
            assert_eq!(peer.run("r = u.recv(9)"), "b'x'", "{send}");
        }
    }

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

    /// Each program is known to be ungoverned before.
    fn an_exec_ends_what_is_known_of_a_process(world) {
        std::fs::write(SCRIPT, format!("#!{OTHER}\nprint('ok', end=' ')\n{}", include_str!("world/actor.py"))).unwrap();
        run("chmod", &["755", SCRIPT]);
        let networks = || vec![("10.1.0.0/24", mandatory(ENCRYPTION))];
        let policy = tables(&[(GOVERNED, networks()), (SCRIPT, networks())]);
        let Some((_ipsec, mut maker, mut peer)) = listening(world, &policy, Actor::other) else {
            return;
        };
        // An interpreter with a script as its argument executes no script.
        for (program, arguments, expected) in [
            (OTHER, format!("['other', '{SCRIPT}']"), 0),
            (GOVERNED, format!("['governed', '{SCRIPT}']"), EPERM),
            (SCRIPT, format!("['{SCRIPT}']"), EPERM),
        ] {
            let mut user = Actor::other();
            pass_connection("10.1.0.2", &mut peer, &mut maker, &mut user);
            peer.run("s.send(b'question')");
            assert_eq!(user.errno("r = os.read(f, 1)"), 0, "{program}");
            user.run("os.dup2(f, 99)");
            user.run(&format!("os.execv('{program}', {arguments})"));
            assert_eq!(user.errno("r = os.read(99, 1)"), expected, "{program}");
        }
    }

    fn a_later_policy_governs_a_process_known_to_be_ungoverned(world) {
        std::fs::copy(OTHER, MAKER).unwrap();
        let Some((mut ipsec, mut maker, mut peer)) = listening(world, &secure(), Actor::other) else {
            return;
        };
        let mut users = [Actor::at(MAKER), Actor::other()];
        let networks = vec![("10.1.0.0/24", mandatory(ENCRYPTION)), ("10.1.0.3/32", To::Trusted)];
        let later = tables(&[(MAKER, networks)]);
        for (policy, expected) in [(&secure(), 0), (&later, EPERM), (&secure(), 0), (&later, EPERM)] {
            ipsec.apply(policy).unwrap();
            for (from, user, errno) in uses_of("10.1.0.2", "10.1.0.3") {
                let user = &mut users[user];
                pass_connection(from, &mut peer, &mut maker, user);
                uses(&mut peer, user, from, errno.min(expected));
            }
        }
    }

    /// Nothing looks files up meanwhile.
    fn a_process_is_governed_while_its_file_has_the_place(world) {
        std::fs::copy(OTHER, "/mnt/early").unwrap();
        let Some((_ipsec, mut maker, mut peer)) = listening(world, &secure(), Actor::other) else {
            return;
        };
        let mut user = Actor::at("/mnt/early");
        let mut path = "/mnt/early";
        for (name, expected) in [("/mnt/late", 0), (GOVERNED, EPERM), ("/mnt/early", 0)] {
            std::fs::rename(path, name).unwrap();
            path = name;
            for (from, expected) in [("10.1.0.2", expected), ("10.1.0.3", 0)] {
                pass_connection(from, &mut peer, &mut maker, &mut user);
                uses(&mut peer, &mut user, from, expected);
            }
        }
    }

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
        assert_eq!(peer.errno(&connect("10.1.0.2")), libc::ETIMEDOUT);
        assert_eq!(peer.errno(&connect("10.1.0.3")), 0);
    }

    fn families_that_pass_beside_the_hooks_are_refused(world) {
        let mut ipsec = open(world);
        if !sees_calls(&ipsec) {
            return;
        }
        ipsec.apply(&secure()).unwrap();
        let (mut governed, mut other) = (Actor::governed(), Actor::other());
        // Packet, RDS, TIPC, RxRPC, SMC, XDP.
        for family in [17, 21, 30, 33, 43, 44] {
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
        // Others are not touched.
        for family in [1, 16] {
            assert_eq!(governed.errno(&format!("s = socket.socket({family}, 2, 0)")), 0);
        }
    }

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
                eprintln!("skipped protocol {protocol}: errno {without}");
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
        // A connection that is refused within, made and used outside.
        peer.run("l = tcp(); l.bind(('10.1.0.2', 80)); l.listen()");
        outside.run("s = tcp(); s.connect(('10.1.0.2', 80)); s.send(b'question')");
        assert_eq!(peer.run("c, _ = l.accept(); r = c.recv(9)"), "b'question'");
        assert_eq!(ipsec.counters().unwrap().calls_refused, 5);
    }

    fn sockets_outside_the_control_group_are_not_adopted(world) {
        let mut ipsec = open(world);
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

    fn a_copy_that_usher_s_daemons_hold_stays_its_maker_s(world) {
        std::fs::copy(OTHER, "/mnt/daemon").unwrap();
        let settings = usher_ipsec::Settings { daemons: "/mnt/daemon".into(), ..settings(world) };
        let mut ipsec = usher_ipsec::Ipsec::open(&settings).unwrap();
        let mut policy = secure();
        let networks = policy.applications[0].networks.clone();
        add(&mut policy, "/mnt/daemon", networks);
        ipsec.apply(&policy).unwrap();
        let (mut governed, mut maker) = (Actor::governed(), Actor::other());
        let (mut daemon, mut peer) = (Actor::at("/mnt/daemon"), Actor::peer());
        peer.run("l = tcp(); l.bind(('10.1.0.2', 80)); l.listen()");
        let ask = "r = libc.getpeername(f, bytes(64), struct.pack('I', 64))";
        for (holder, is_daemon) in [(&mut daemon, true), (&mut governed, false)] {
            maker.run("s = tcp(); s.connect(('10.1.0.2', 80))");
            peer.run("c, _ = l.accept()");
            pass(&mut maker, "s", holder);
            let adopted = ipsec.adopt().unwrap();
            holder.run(ask);
            holder.errno("libc.setsockopt(f, 1, 9, struct.pack('I', 1), 4)");
            assert_eq!((adopted == 0, maker.number("mark(s)") == 0), (is_daemon, is_daemon));
            if is_daemon {
                maker.run("s.send(b'question')");
                assert_eq!(peer.run("r = c.recv(9)"), "b'question'");
            }
            maker.run("s.close()");
            holder.run("os.close(f)");
        }
        // Its own sockets are governed.
        assert_ne!(daemon.number("mark(udp())"), 0);
        assert_eq!(daemon.errno("udp().sendto(b'x', ('10.9.0.1', 9))"), EPERM);
    }
}
