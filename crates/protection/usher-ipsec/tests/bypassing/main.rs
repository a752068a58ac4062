//! Attempts of programs on a governed host to send or receive past their policy. Each way
//! is open to a program that is not governed, or to a peer that is trusted. Without SAs.

#[macro_use]
#[path = "../world/mod.rs"]
mod world;

mod packets;
mod programs;

use world::*;

/// The packets that have arrived at host B since the last look.
fn captured(peer: &mut Actor) -> String {
    peer.run("r = protocols(seen)")
}

/// Waits until a packet has arrived at host B.
fn arrives(what: &str, peer: &mut Actor) -> String {
    let mut seen = String::from("{}");
    eventually(what, || {
        seen = captured(peer);
        seen != "{}"
    });
    seen
}

/// Requires that after the acts nothing has left from the governed program, but something from
/// another program.
fn only_others(what: &str, acts: &[&str], [governed, other, peer]: [&mut Actor; 3]) {
    for act in acts {
        governed.errno(act);
    }
    // A packet of the acts would arrive before this one.
    governed.run("t = udp(); t.sendto(b'mark', ('10.1.0.3', 9))");
    assert_eq!(arrives(what, peer), "{17: 1}", "{what}: a governed program");
    for act in acts {
        other.errno(act);
    }
    let seen = arrives(what, peer);
    assert!(seen != "{}", "{what}: another program");
}
