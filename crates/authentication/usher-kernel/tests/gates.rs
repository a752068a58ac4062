//! Gates of announced connections, which outlive the process that entered them.
//!
//! Threat model: A41

#[macro_use]
mod world;
mod ticket;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ticket::*;
use usher_base::ConnectionTuple;
use usher_kernel::KernelError;
use usher_kernel::ticket::{Attempt, Gate, Limits, Tickets};
use world::*;

const LIMITS: Limits = Limits {
    tickets: 16,
    blocks: 16,
    destinations: 4,
    gates: 4,
    listed: 4,
    class_bits: 0,
};

fn lasting(world: &World) -> Tickets {
    let pins = world.pins.with_file_name("signer");
    let tickets = Tickets::open(&world.cgroup, Some(&pins), &LIMITS).unwrap();
    tickets.holding().gates().lasting().unwrap();
    tickets
}

/// Alice's socket, bound to a port, and its future connection.
fn bound(port: u16) -> (OwnedFd, ConnectionTuple) {
    let socket = socket_for(v4(PORT));
    let client: SocketAddr = (v4(PORT).ip(), port).into();
    rustix::net::bind(&socket, &client).unwrap();
    let connection = ConnectionTuple::new(client, v4(PORT)).unwrap();
    (socket, connection)
}

fn announced(socket: &OwnedFd, seconds: u64) -> Gate {
    Gate {
        attempt: Attempt::of_socket(socket.as_fd()).unwrap(),
        released: true,
        lifetime: Duration::from_secs(seconds),
        session: Some(session(7)),
    }
}

/// Requires that the connection is established, if not by the first SYN: the kernel may still run a program
/// that was detached a moment ago.
fn connects(uid: u32, socket: &OwnedFd) {
    begin(uid, socket, v4(PORT));
    eventually("it is established", || !is_connecting(socket));
}

/// Requires that the SYN does not arrive.
fn is_kept_back(uid: u32, socket: &OwnedFd) {
    begin(uid, socket, v4(PORT));
    eventually("the SYN is sent again", || sent_again(socket) > 0);
    assert!(is_connecting(socket));
}

/// Expects a signer with these limits to give up the gates of an earlier one, whose layout `change` changes.
fn given_up(world: &World, limits: &Limits, change: fn(&Path)) {
    let pins = world.pins.with_file_name("signer");
    let tickets = lasting(world);
    let (alices, connection) = bound(40_000);
    let gate = announced(&alices, 3600);
    tickets.holding().gates().put(&connection, &gate).unwrap();
    drop(tickets);
    change(&pins.join("layout"));
    let tickets = Tickets::open(&world.cgroup, Some(&pins), limits).unwrap();
    tickets.holding().gates().lasting().unwrap();
    assert_eq!(tickets.holding().gates().left(), []);
    let _server = Server::new();
    drop(alices);
    let (bobs, _) = bound(40_000);
    connects(BOB, &bobs);
}

tests! {
    fn a_gate_outlives_the_signer_until_its_time_is_over(world) {
        let server = Server::new();
        let tickets = lasting(world);
        let (alices, connection) = bound(40_000);
        tickets.holding().gates().put(&connection, &announced(&alices, 3)).unwrap();
        // The signer dies, Alice gives up, and Bob gets the port.
        drop(tickets);
        drop(alices);
        let (bobs, _) = bound(40_000);
        begin(BOB, &bobs, v4(PORT));
        eventually("his SYN is sent again", || sent_again(&bobs) > 0 || !is_connecting(&bobs));
        assert!(is_connecting(&bobs));
        // Once no announcement stands, Bob's SYN leaves.
        end(&bobs).unwrap();
        server.accept();
    }

    fn the_announced_socket_connects_without_a_signer(world) {
        let server = Server::new();
        let tickets = lasting(world);
        let (alices, connection) = bound(40_000);
        tickets.holding().gates().put(&connection, &announced(&alices, 3600)).unwrap();
        drop(tickets);
        connects(ALICE, &alices);
        server.accept();
        // Other connections are not blocked either.
        let (bobs, _) = bound(40_001);
        connects(BOB, &bobs);
    }

    fn the_next_signer_finds_the_gates_and_takes_them_away(world) {
        let server = Server::new();
        let first = lasting(world);
        assert_eq!(first.holding().gates().left(), []);
        let (alices, connection) = bound(40_000);
        first.holding().gates().put(&connection, &announced(&alices, 3600)).unwrap();
        let (over, ended) = bound(40_001);
        first.holding().gates().put(&ended, &announced(&over, 0)).unwrap();
        drop(first);
        drop(alices);
        let second = lasting(world);
        let gates = second.holding().gates();
        let left = gates.left();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!((left[0].connection, left[0].session), (connection, Some(session(7))));
        assert!(left[0].lifetime > Duration::from_secs(3000));
        assert!(gates.stands(&connection).unwrap() && !gates.stands(&ended).unwrap());
        let (bobs, _) = bound(40_000);
        is_kept_back(BOB, &bobs);
        assert!(second.counters().unwrap().kept_back >= 2);
        assert!(gates.remove(&connection).unwrap());
        end(&bobs).unwrap();
        server.accept();
    }

    fn one_signer_at_a_time_has_the_pins(world) {
        let pins = world.pins.with_file_name("signer");
        let tickets = lasting(world);
        let second = Tickets::open(&world.cgroup, Some(&pins), &LIMITS);
        assert!(matches!(second, Err(KernelError::InUse(_))), "{second:?}");
        drop(tickets);
        lasting(world);
    }

    fn gates_of_another_limit_are_given_up(world) {
        given_up(world, &Limits { gates: 8, ..LIMITS }, |_| {});
    }

    fn gates_of_another_layout_are_given_up(world) {
        given_up(world, &LIMITS, |layout| {
            run("bpftool", &[
                "map", "update", "pinned", layout.to_str().unwrap(),
                "key", "0", "0", "0", "0", "value", "99", "0", "0", "0", "0", "0", "0", "0",
            ]);
        });
    }

    fn gates_without_a_layout_are_given_up(world) {
        given_up(world, &LIMITS, |layout| std::fs::remove_file(layout).unwrap());
    }

    fn where_nothing_can_be_pinned_gates_end_with_the_signer(world) {
        let _server = Server::new();
        let nowhere = std::path::Path::new("/mnt/signer");
        let tickets = Tickets::open(&world.cgroup, Some(nowhere), &LIMITS).unwrap();
        tickets.holding().gates().lasting().unwrap_err();
        let (alices, connection) = bound(40_000);
        tickets.holding().gates().put(&connection, &announced(&alices, 3600)).unwrap();
        drop(alices);
        let (bobs, _) = bound(40_000);
        is_kept_back(BOB, &bobs);
        drop(tickets);
        end(&bobs).unwrap();
    }
}
