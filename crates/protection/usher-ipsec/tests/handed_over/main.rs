//! Sockets that one program makes and another uses: a governed one and one that is not, both ways.
//! Without SAs.

#[macro_use]
#[path = "../world/mod.rs"]
mod world;

mod connections;
mod processes;
mod sockets;

use usher_protection::Treatment;
use world::*;

/// Passes a socket. The receiver has it as the descriptor `f`, and has made no call about it.
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
    format!("s = tcp(); kept.append(s); s.bind(('{from}', 0)); s.connect(('10.1.0.1', 80))")
}

/// Puts these tables in force. Returns the protection, a maker that listens, and host B; none where no LSM
/// programs refuse calls.
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

const LISTEN: &str = "l = tcp(6); l.setsockopt(1, 2, 1); l.bind(('', 80)); l.listen(); kept = []";
