//! Owners of connections, and cutting connections.

#[macro_use]
mod world;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use rustix::fs::{Gid, Uid};
use usher_base::ConnectionTuple;
use usher_kernel::admission::AdmissionState;
use usher_kernel::listener;
use usher_system::connections::{destroy, owner};
use world::*;

tests! {
    fn a_destroyed_connection_is_cut_at_both_ends_and_no_other(world) {
        let (admission, alice, _bob) = world.serve();
        for (client, neighbour) in [(Client::v4(), Client::v4()), (Client::v6(), Client::v6())] {
            let (cut, kept) = (client.connection, neighbour.connection);
            for connection in [&cut, &kept] {
                admission.announce(connection, &announced(ALICE)).unwrap();
            }
            let mut far = client.connect().unwrap();
            let (mut near, _) = accept(&alice);
            let mut far_kept = neighbour.connect().unwrap();
            let (mut near_kept, _) = accept(&alice);

            assert!(destroy(&cut).unwrap());
            assert_eq!(far.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(near.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
            assert!(row(&admission, &cut).is_none());
            assert!(!destroy(&cut).unwrap());

            far_kept.write_all(b"x").unwrap();
            near_kept.read_exact(&mut [0]).unwrap();
            assert!(row(&admission, &kept).is_some());
            // A connection that has not been accepted yet.
            let waiting = Client::bound(cut.client, cut.server);
            admission.announce(&cut, &announced(ALICE)).unwrap();
            let mut far = waiting.connect().unwrap();
            assert!(destroy(&cut).unwrap());
            assert_eq!(far.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(row(&admission, &cut).is_none());
            let (mut near, _) = accept(&alice);
            assert_ne!(near.read(&mut [0]).ok(), Some(1));
        }
    }

    fn a_handshake_under_way_is_cut(world) {
        let (admission, alice, _bob) = world.serve();
        hold_handshakes(&alice);
        for client in [Client::v4(), Client::v6()] {
            let connection = client.connection;
            admission.announce(&connection, &announced(ALICE)).unwrap();
            let mut far = client.connect().unwrap();
            assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::SynReceived);
            assert!(destroy(&connection).unwrap());
            admission.forget(&connection).unwrap();
            // The connection has gone, with its place in the queue: data is answered by a RST.
            far.write_all(b"x").unwrap();
            assert_eq!(far.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(!listener::has_waiting(alice.as_fd()));
        }
        assert_eq!(admission.drain_untracked().unwrap(), []);
    }

    fn what_is_only_announced_is_not_there_and_asking_does_no_harm(world) {
        let (admission, alice, _bob) = world.serve();
        for client in [Client::v4(), Client::v6()] {
            let connection = client.connection;
            admission.announce(&connection, &announced(ALICE)).unwrap();
            let before = admission.counters().unwrap();
            assert!(!destroy(&connection).unwrap());
            assert_eq!(owner(connection.server, connection.client).unwrap(), None);
            assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Announced);
            assert_eq!(admission.counters().unwrap(), before);
            client.connect().unwrap();
            accept(&alice);
        }
    }

    fn a_listener_is_never_destroyed_in_the_place_of_a_connection(world) {
        let _ = world;
        let plain = TcpListener::bind("10.9.0.1:8025").unwrap();
        let nobody = ConnectionTuple::new(v4(9), v4(8025)).unwrap();
        assert!(!destroy(&nobody).unwrap());
        TcpStream::connect("10.9.0.1:8025").unwrap();
        plain.accept().unwrap();
    }

    fn the_owner_is_the_one_who_made_the_socket(world) {
        let _ = world;
        for address in ["10.9.0.1:0", "[::1]:0"] {
            let proxy = TcpListener::bind(address).unwrap();
            for uid in [ALICE, BOB, 0] {
                let connection = TcpStream::connect(proxy.local_addr().unwrap()).unwrap();
                rustix::fs::fchown(&connection, Some(Uid::from_raw(uid)), None::<Gid>).unwrap();
                let (theirs, ours) =
                    (connection.local_addr().unwrap(), connection.peer_addr().unwrap());
                let found = owner(theirs, ours).unwrap().unwrap();
                assert_eq!(found.uid, uid);
                let (accepted, _) = proxy.accept().unwrap();
                // The other endpoint is another socket.
                let other = owner(ours, theirs).unwrap().unwrap();
                assert_eq!(other.uid, 0);
                assert_ne!(other.inode, found.inode);
                // A half-closed connection still has an owner, whichever side has closed its half.
                connection.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(owner(theirs, ours).unwrap(), Some(found));
                // A connection that its owner has closed has no owner, although the kernel has not finished
                // it yet.
                drop(connection);
                assert_eq!(owner(theirs, ours).unwrap(), None);
                drop(accepted);
            }
            // A connection that does not exist has no owner; the listener's does not count.
            assert_eq!(owner(proxy.local_addr().unwrap(), v4(9)).unwrap(), None);
            let nobody = std::net::SocketAddr::new(proxy.local_addr().unwrap().ip(), 9);
            assert_eq!(owner(proxy.local_addr().unwrap(), nobody).unwrap(), None);
        }
    }
}
