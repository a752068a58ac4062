//! Connections whose SYN carries a token, with real sockets and real packets.
//!
//! Threat model: A8, A13

#[macro_use]
mod world;
mod forge;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use forge::*;
use rustix::net::sockopt;
use usher_base::ConnectionTuple;
use usher_kernel::admission::{AdmissionState, Announced, Counters, Limits};
use usher_proto::TokenSlot;
use world::*;

const LIMITS: Limits = Limits {
    sessions: 16,
    admissions: 4096,
    listeners: 16,
    tokens: 64,
};

/// Connects and accepts.
fn reach(client: Client, listener: &OwnedFd) -> (std::net::TcpStream, std::net::TcpStream) {
    let connection = client.connection;
    let far = client.connect().unwrap();
    let (near, from) = accept(listener);
    assert_eq!(from, connection.client);
    (far, near)
}

/// Ends the connection by a RST, so that its endpoints are free at once.
fn reset(far: std::net::TcpStream) {
    sockopt::set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
}

tests_of_tokens! {
    fn a_token_is_as_good_as_an_announcement(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let mut connections = Vec::new();
        for position in 1..=6 {
            let client = if position % 2 == 0 { Client::v4() } else { Client::v6() };
            let connection = client.connection;
            writer.write(&client, &chain.option(slot, position, &connection));
            let (mut far, mut near) = reach(client, &alice);
            far.write_all(b"hello").unwrap();
            let mut bytes = [0; 5];
            near.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
            let entry = row(&admission, &connection).unwrap();
            assert_eq!(entry.state, AdmissionState::Established);
            assert_eq!(entry.session, chain.session.session);
            connections.push((far, near));
        }
        // The SYN carries no token, or other bytes in its place.
        Client::v4().expect_refused();
        let client = Client::v6();
        writer.write(&client, &option(&[0; 16]));
        client.expect_refused();
        let mut expected = Counters {
            admitted: 6,
            established: 6,
            refused_unannounced: 2,
            token_accepted: 6,
            token_foreign: 1,
            ..Counters::default()
        };
        counted(&admission, expected);
        drop(connections);
        eventually("the entries go", || admission.admissions().unwrap().is_empty());
        expected.closed = 6;
        counted(&admission, expected);
    }

    fn an_announced_connection_needs_no_token_and_spends_none(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let client = Client::v4();
        let own = Announced { session: chain.session.session, ..announced(ALICE) };
        admission.announce(&client.connection, &own).unwrap();
        writer.write(&client, &chain.option(slot, 1, &client.connection));
        let _connection = reach(client, &alice);
        let another = Client::v4();
        writer.write(&another, &chain.option(slot, 1, &another.connection));
        let _connection = reach(another, &alice);
        counted(&admission, Counters {
            admitted: 2, established: 2, token_repeated: 1, token_accepted: 1, ..Counters::default()
        });
    }

    fn syn_cookies_and_tokens_go_together(world) {
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let client = Client::v4();
        writer.write(&client, &chain.option(slot, 1, &client.connection));
        let _connection = reach(client, &alice);
        counted(&admission, Counters {
            admitted: 2, established: 1, token_accepted: 1, ..Counters::default()
        });
    }

    fn a_lost_syn_is_repeated_and_admitted_once(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        // Another party's filter, which stays in force, drops the SYN: after our filter has seen
        // it, and before LOCAL_IN.
        let loser = Loser::attached(1, 10);
        loser.lose(1);
        let client = Client::v4();
        writer.write(&client, &chain.option(slot, 1, &client.connection));
        let _connection = reach(client, &alice);
        assert_eq!(loser.left(), 0);
        let expected = Counters {
            admitted: 1, established: 1, token_accepted: 1,
            token_repeated: u64::from(world.at_interfaces), ..Counters::default()
        };
        counted(&admission, expected);
        // The SYN is lost before the program sees it.
        let loser = Loser::attached(1, 1);
        loser.lose(1);
        let client = Client::v6();
        writer.write(&client, &chain.option(slot, 2, &client.connection));
        let _connection = reach(client, &alice);
        assert_eq!(loser.left(), 0);
        counted(&admission, Counters {
            admitted: 2, established: 2, token_accepted: 2, ..expected
        });
    }

    // Threat model: A48
    fn the_next_owner_of_an_abandoned_port_is_not_the_user(world) {
        let (admission, alice, checker) = serve(world, &LIMITS);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        for (position, client) in [(1, Client::v4()), (2, Client::v6())] {
            // Alice's SYN has come, and her program has ended.
            let connection = client.connection;
            checker.syn(&connection, &chain.option(slot, position, &connection));
            assert!(row(&admission, &connection).is_some());
            // Bob connects from her port, without a token.
            client.expect_refused();
            assert_eq!(row(&admission, &connection), None);
        }
        assert!(!usher_kernel::listener::has_waiting(alice.as_fd()));
        assert_eq!(admission.counters().unwrap().token_other_syn, 2);
    }

    // Threat model: A43
    fn a_good_token_is_served_where_anothers_announcement_stands(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let bob = queue(&admission, BOB, 16);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        for (position, client) in [(1, Client::v4()), (2, Client::v6())] {
            admission.announce(&client.connection, &announced(BOB)).unwrap();
            writer.write(&client, &chain.option(slot, position, &client.connection));
            let _connection = reach(client, &alice);
        }
        assert!(!usher_kernel::listener::has_waiting(bob.as_fd()));
        // Without a token, the announcement decides.
        let client = Client::v4();
        admission.announce(&client.connection, &announced(BOB)).unwrap();
        let _connection = reach(client, &bob);
        assert_eq!(admission.counters().unwrap().token_replaced, 2);
    }

    // Threat model: A43
    fn an_ack_of_a_replaced_connection_reaches_no_queue(world) {
        // An ACK that answers a SYN cookie finds no connection, and any listener takes it.
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let bob = queue(&admission, BOB, 16);
        let mut tunnel = tunnel("raw");
        run("ip", &["address", "add", "10.7.0.1/24", "dev", "raw"]);
        run("ip", &["link", "set", "raw", "up"]);
        assert!(admission.attach_tokens().unwrap().is_empty());
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let waits = |queue: &OwnedFd| usher_kernel::listener::has_waiting(queue.as_fd());
        let ends = |port| {
            let client = SocketAddr::from(([10, 7, 0, 2], port));
            ConnectionTuple::new(client, ([10, 7, 0, 1], PORT).into()).unwrap()
        };
        let syn = |connection: &ConnectionTuple, number, options: &[u8]| {
            summed(ip(connection, SYN, options), number, 0)
        };
        let ack = |connection: &ConnectionTuple, number: u32, cookie| {
            summed(ip(connection, ACK, &[]), number + 1, cookie)
        };

        let connection = ends(4001);
        admission.announce(&connection, &announced(BOB)).unwrap();
        tunnel.write_all(&syn(&connection, 1000, &[])).unwrap();
        let bobs = cookie(&mut tunnel, &connection);
        let token = chain.option(slot, 1, &connection);
        tunnel.write_all(&syn(&connection, 5000, &token)).unwrap();
        let alices = cookie(&mut tunnel, &connection);
        tunnel.write_all(&ack(&connection, 1000, bobs)).unwrap();
        eventually("the late ACK is refused", || {
            admission.counters().unwrap().refused_unread == 1
        });
        assert!(!waits(&alice) && !waits(&bob));
        tunnel.write_all(&ack(&connection, 5000, alices)).unwrap();
        eventually("alice is served", || waits(&alice));
        assert!(!waits(&bob));
        // If nothing was replaced, the ACK ends its own handshake.
        let connection = ends(4002);
        admission.announce(&connection, &announced(BOB)).unwrap();
        tunnel.write_all(&syn(&connection, 1000, &[])).unwrap();
        let bobs = cookie(&mut tunnel, &connection);
        tunnel.write_all(&ack(&connection, 1000, bobs)).unwrap();
        eventually("bob is served", || waits(&bob));
    }

    fn a_token_is_spent_by_its_connection(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let client = Client::v4();
        let connection = client.connection;
        let first = chain.option(slot, 1, &connection);
        writer.write(&client, &first);
        let (far, near) = reach(client, &alice);
        // Another host has seen the token, and sends it again while the connection lives.
        let thief = Client::v4();
        writer.write(&thief, &first);
        thief.expect_refused();
        // The same element, masked anew for another connection. Only the element's owner could do that.
        let owner = Client::v4();
        writer.write(&owner, &chain.option(slot, 1, &owner.connection));
        owner.expect_refused();
        // The token is sent again between the same endpoints, after the connection.
        reset(far);
        drop(near);
        eventually("the entry goes", || row(&admission, &connection).is_none());
        Client::bound(connection.client, connection.server).expect_refused();
        let counters = admission.counters().unwrap();
        assert_eq!(counters.token_foreign + counters.token_mismatch + counters.token_replayed, 3);
        assert!(counters.token_replayed >= 2);
        assert_eq!((counters.refused_unannounced, counters.token_accepted), (3, 1));
        // The same endpoints serve the next token.
        let again = Client::bound(connection.client, connection.server);
        writer.write(&again, &chain.option(slot, 2, &connection));
        let _connection = reach(again, &alice);
        assert_eq!(admission.counters().unwrap().token_accepted, 2);
    }

    fn without_a_queue_or_a_slot_there_is_no_connection(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let mut chain = Chain::new(1, 100);
        chain.session.uid = BOB;
        let slot = admission.open_tokens(&chain.session).unwrap();
        let client = Client::v4();
        writer.write(&client, &chain.option(slot, 1, &client.connection));
        client.expect_refused();
        let mut expected =
            Counters { token_accepted: 1, refused_no_listener: 1, ..Counters::default() };
        counted(&admission, expected);
        let bob = queue(&admission, BOB, 16);
        let client = Client::v4();
        writer.write(&client, &chain.option(slot, 2, &client.connection));
        let _connection = reach(client, &bob);
        expected =
            Counters { token_accepted: 2, admitted: 1, established: 1, ..expected };
        counted(&admission, expected);
        // Another slot, one beyond the table, and the session's own slot after it is closed.
        let other = TokenSlot::new(slot.number() + 1).unwrap();
        let last = TokenSlot::new(TokenSlot::COUNT - 1).unwrap();
        assert!(admission.close_tokens(&chain.session.session).unwrap());
        for (slot, position) in [(other, 3), (last, 4), (slot, 5)] {
            let client = Client::v4();
            writer.write(&client, &chain.option(slot, position, &client.connection));
            client.expect_refused();
        }
        counted(&admission, Counters { token_unknown: 3, refused_unannounced: 3, ..expected });
        assert!(!usher_kernel::listener::has_waiting(std::os::fd::AsFd::as_fd(&alice)));
    }

    fn many_connect_at_once(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 300);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let (next, late) = (AtomicU32::new(1), AtomicU32::new(0));
        let connections: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    let (next, late, writer, chain) = (&next, &late, &writer, &chain);
                    scope.spawn(move || {
                        // A thread that has to wait for a processor may find that the window has
                        // moved past its token: the SYN is refused, and a client would announce.
                        // Here the next token is tried. An emulated processor may be away for so
                        // long that TCP sends a SYN again while its first copy is checked.
                        let connect = |_| loop {
                            let client = if number % 2 == 0 { Client::v4() } else { Client::v6() };
                            let position = next.fetch_add(1, Ordering::Relaxed);
                            writer.write(&client, &chain.option(slot, position, &client.connection));
                            let connection = client.connection;
                            match client.connect() {
                                Ok(connected) => break (connection, connected),
                                Err(error) => {
                                    let behind = next.load(Ordering::Relaxed) - 1 - position;
                                    assert!(behind > 127 || is_emulated(), "{behind}: {error}");
                                    late.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        };
                        (0..25).map(connect).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let counters = admission.counters().unwrap();
        assert_eq!(counters.established, 200);
        if late.into_inner() == 0 {
            counted(&admission, Counters {
                admitted: 200, established: 200, token_accepted: 200, ..Counters::default()
            });
            assert_eq!(admission.tokens().unwrap()[0].position, 200);
        }
        let mut accepted: Vec<_> = (0..200).map(|_| accept(&alice).1).collect();
        let mut connected: Vec<_> =
            connections.iter().map(|(connection, _)| connection.client).collect();
        accepted.sort();
        connected.sort();
        assert_eq!(accepted, connected);
    }

    fn an_interface_that_comes_is_read_at_once_or_at_the_next_call(world) {
        let (admission, alice, _checker) = serve(world, &LIMITS);
        let writer = Writer::attached(world);
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        run("ip", &["link", "add", "near", "type", "veth", "peer", "name", "far"]);
        run("ip", &["address", "add", "10.8.0.1/24", "dev", "near"]);
        run("ip", &["address", "add", "fd08::1/64", "dev", "near", "nodad"]);
        run("ip", &["link", "set", "near", "up"]);
        let end = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let ends =
            [("10.8.0.2:0", "10.8.0.1:143"), ("[fd08::2]:0", "[fd08::1]:143")].map(|(from, to)| (end(from), end(to)));
        // Another host; its sockets stay there wherever they are used.
        let (tell, told) = channel();
        let (moved, wait) = channel();
        let other = std::thread::spawn(move || {
            // SAFETY: moves only this thread, to a new network namespace.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            tell.send(rustix::thread::gettid()).unwrap();
            wait.recv().unwrap();
            run("ip", &["address", "add", "10.8.0.2/24", "dev", "far"]);
            run("ip", &["address", "add", "fd08::2/64", "dev", "far", "nodad"]);
            run("ip", &["link", "set", "far", "up"]);
            ends.map(|(from, to)| [0; 2].map(|_| Client::bound(from, to)))
        });
        let thread = told.recv().unwrap().as_raw_nonzero().to_string();
        run("ip", &["link", "set", "far", "netns", &thread]);
        moved.send(()).unwrap();
        let clients = other.join().unwrap();

        let mut connections = Vec::new();
        let mut living = Vec::new();
        let mut accepted = 0;
        for (early, late) in clients.map(<(Client, Client)>::from) {
            writer.write(&early, &chain.option(slot, accepted + 1, &early.connection));
            if world.at_interfaces {
                early.expect_refused();
            } else {
                living.push(reach(early, &alice));
                accepted += 1;
            }
            connections.push(late);
        }
        let refused_unannounced = 2 - u64::from(accepted);
        assert_eq!(admission.counters().unwrap().refused_unannounced, refused_unannounced);
        assert!(admission.attach_tokens().unwrap().is_empty());
        for (late, position) in connections.into_iter().zip(accepted + 1..) {
            writer.write(&late, &chain.option(slot, position, &late.connection));
            living.push(reach(late, &alice));
        }
        let all = u64::from(accepted) + 2;
        counted(&admission, Counters {
            refused_unannounced, token_accepted: all, admitted: all, established: all,
            ..Counters::default()
        });
    }

    fn a_device_without_ethernet_headers_is_read_as_well(world) {
        let (admission, _alice, _checker) = serve(world, &LIMITS);
        let mut tunnel = tunnel("raw");
        run("ip", &["address", "add", "10.7.0.1/24", "dev", "raw"]);
        run("ip", &["address", "add", "fd07::1/64", "dev", "raw", "nodad"]);
        run("ip", &["link", "set", "raw", "up"]);
        // The kernel makes the local route of an IPv6 address in the background.
        let routes = || Command::new("ip").args(["-6", "route", "show", "table", "local"]).output().unwrap();
        while !String::from_utf8_lossy(&routes().stdout).contains("fd07::1 ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(admission.attach_tokens().unwrap().is_empty());
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        let end = |text: &str| -> SocketAddr { text.parse().unwrap() };
        for (from, to, position) in
            [("10.7.0.2:4001", "10.7.0.1:143", 1), ("[fd07::2]:4003", "[fd07::1]:143", 2)]
        {
            let connection = ConnectionTuple::new(end(from), end(to)).unwrap();
            let syn = ip(&connection, SYN, &chain.option(slot, position, &connection));
            tunnel.write_all(&syn).unwrap();
            assert_eq!(answer(&mut tunnel, &connection), SYN | ACK);
            assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::SynReceived);
            let stranger =
                ConnectionTuple::new(SocketAddr::new(end(from).ip(), end(from).port() + 1), end(to))
                    .unwrap();
            tunnel.write_all(&ip(&stranger, SYN, &[])).unwrap();
            assert_eq!(answer(&mut tunnel, &stranger), RST | ACK);
        }
        counted(&admission, Counters {
            admitted: 2, refused_unannounced: 2, token_accepted: 2, ..Counters::default()
        });
    }
}

/// A tunnel device; packets written to the file arrive through it.
fn tunnel(name: &str) -> File {
    // Not every host has the node before the device is first used.
    run("mknod", &["/mnt/tun", "c", "10", "200"]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/mnt/tun")
        .unwrap();
    // SAFETY: a structure of integers and arrays of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which lives until the call returns.
    let code = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) };
    assert_eq!(code, 0);
    file
}

/// The acknowledgement number for the SYN-ACK that answers the connection's SYN.
fn cookie(tunnel: &mut File, connection: &ConnectionTuple) -> u32 {
    let tcp = answering(tunnel, connection);
    assert_eq!(tcp[13], SYN | ACK);
    u32::from_be_bytes(*tcp[4..].first_chunk().unwrap()).wrapping_add(1)
}

/// The flags of the first packet that answers the connection's SYN.
fn answer(tunnel: &mut File, connection: &ConnectionTuple) -> u8 {
    answering(tunnel, connection)[13]
}

/// The first TCP header that answers the connection's SYN.
fn answering(tunnel: &mut File, connection: &ConnectionTuple) -> Vec<u8> {
    let mut buffer = [0; 2048];
    loop {
        let size = tunnel.read(&mut buffer).unwrap();
        let packet = &buffer[..size];
        let tcp = match packet[0] >> 4 {
            4 if packet[9] == 6 => &packet[20..],
            6 if packet[6] == 6 => &packet[40..],
            _ => continue,
        };
        if tcp[2..4] == connection.client.port().to_be_bytes() {
            return tcp.to_vec();
        }
    }
}
