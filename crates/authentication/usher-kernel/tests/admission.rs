//! Connections are admitted to their user's queue, or refused.

#[macro_use]
mod world;
mod forge;

use std::io::{Read, Write};
use std::net::{SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::net::getsockname;
use usher_bpf::Pins;
use usher_kernel::admission::{AdmissionState, Announced, Limits};
use usher_kernel::{KernelError, listener};
use world::*;

tests! {
    fn an_announced_connection_reaches_its_users_queue_and_no_other(world) {
        let (admission, alice, bob) = world.serve();
        for (client, uid) in
            [(Client::v4(), ALICE), (Client::v6(), ALICE), (Client::v4(), BOB), (Client::v6(), BOB)]
        {
            let (own, other) = if uid == ALICE { (&alice, &bob) } else { (&bob, &alice) };
            let connection = client.connection;
            admission.announce(&connection, &announced(uid)).unwrap();
            assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Announced);
            let mut far = client.connect().unwrap();
            assert!(!listener::has_waiting(other.as_fd()));
            let (mut near, from) = accept(own);
            assert_eq!(from, connection.client);
            assert_eq!(near.local_addr().unwrap().port(), PORT);
            far.write_all(b"hello").unwrap();
            let mut bytes = [0; 5];
            near.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");

            let entry = row(&admission, &connection).unwrap();
            assert_eq!(entry.state, AdmissionState::Established);
            assert_eq!((entry.service, entry.uid), (SERVICE, uid));
            assert_eq!(entry.session, announced(uid).session);
            assert!(entry.established.unwrap() < Duration::from_secs(60));

            drop(far);
            drop(near);
            eventually("the entry goes with the connection", || row(&admission, &connection).is_none());
        }
        let counters = admission.counters().unwrap();
        assert_eq!((counters.admitted, counters.established, counters.closed), (4, 4, 4));
        assert_eq!(counters.untracked, 0);
    }

    // Threat model: A1
    fn a_stranger_is_reset_and_never_reaches_a_queue(world) {
        let (admission, alice, bob) = world.serve();
        let announced_client = Client::v4();
        admission.announce(&announced_client.connection, &announced(ALICE)).unwrap();
        for stranger in [Client::v4(), Client::v6()] {
            stranger.expect_refused();
        }
        for queue in [&alice, &bob] {
            assert!(!listener::has_waiting(queue.as_fd()));
        }
        assert_eq!(admission.counters().unwrap().refused_unannounced, 2);
        announced_client.connect().unwrap();
        accept(&alice);
    }

    // Threat model: A1
    fn the_listener_itself_cannot_be_addressed(world) {
        let (_admission, alice, _bob) = world.serve();
        let own = listener::listener_address(SERVICE, ALICE, 0);
        TcpStream::connect((own, PORT)).unwrap_err();
        // The listener stays out of reach even if its whole address block is made local.
        run("ip", &["route", "add", "local", "240.0.0.0/4", "dev", "lo"]);
        let own = own.to_string();
        for address in [&own, "127.0.0.6", "::1", "::ffff:127.0.0.1"] {
            let error = TcpStream::connect((address, PORT)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{address}");
        }
        assert!(!listener::has_waiting(alice.as_fd()));
        // The route leads to listeners of ports that are not under admission.
        let _other = TcpListener::bind("[::]:144").unwrap();
        TcpStream::connect((own.as_str(), 144)).unwrap();
    }

    fn binding_a_services_port_for_all_addresses_stops_no_service(world) {
        let admission = world.open().unwrap();
        admission.set_services(&[(PORT, SERVICE)]).unwrap();
        let thief = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
        thief.set_nonblocking(true).unwrap();
        let alice = listener::create(SERVICE, ALICE, PORT, 16).unwrap();
        assert_ne!(SocketAddrV6::try_from(getsockname(&alice).unwrap()).unwrap().port(), PORT);
        admission.add_listener(SERVICE, ALICE, alice.as_fd()).unwrap();
        let client = Client::v4();
        admission.announce(&client.connection, &announced(ALICE)).unwrap();
        client.connect().unwrap();
        accept(&alice);
        assert_eq!(thief.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(thief);
        // The listener's first address may be taken by a listener of the same user that is being replaced.
        let _former = listener::create(SERVICE, ALICE, 144, 16).unwrap();
        listener::create(SERVICE, ALICE, 144, 16).unwrap();
    }

    // Threat model: A1
    fn a_listener_without_admission_is_out_of_reach(world) {
        // The programs are not loaded at all, as if they had been detached.
        let queue = listener::create(SERVICE, ALICE, PORT, 16).unwrap();
        for address in ["10.9.0.1", "127.0.0.1", "::1"] {
            let error = TcpStream::connect((address, PORT)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{address}");
        }
        TcpStream::connect((listener::listener_address(SERVICE, ALICE, 0), PORT)).unwrap_err();
        assert!(!listener::has_waiting(queue.as_fd()));
        let _ = world;
    }

    fn an_announcement_expires(world) {
        let (admission, alice, _bob) = world.serve();
        let late = Client::v4();
        let short = Announced { lifetime: Duration::from_millis(1), ..announced(ALICE) };
        admission.announce(&late.connection, &short).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let connection = late.connection;
        late.expect_refused();
        assert_eq!(admission.counters().unwrap().refused_late, 1);
        assert_eq!(admission.sweep().unwrap(), 1);
        assert!(row(&admission, &connection).is_none());

        let timely = Client::v4();
        admission.announce(&timely.connection, &announced(ALICE)).unwrap();
        assert_eq!(admission.sweep().unwrap(), 0);
        timely.connect().unwrap();
        accept(&alice);
        assert_eq!(admission.sweep().unwrap(), 0);
    }

    fn what_has_expired_does_not_stand_in_the_way(world) {
        let (admission, _alice, bob) = world.serve();
        let client = Client::v4();
        let short = Announced { lifetime: Duration::from_millis(1), ..announced(ALICE) };
        admission.announce(&client.connection, &short).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        admission.announce(&client.connection, &announced(BOB)).unwrap();
        client.connect().unwrap();
        accept(&bob);
    }

    fn an_announcement_is_withdrawn_by_its_session_only(world) {
        let (admission, alice, _bob) = world.serve();
        let (one, other) = (Client::v4(), Client::v4());
        for client in [&one, &other] {
            admission.announce(&client.connection, &announced(ALICE)).unwrap();
        }
        admission.withdraw(&one.connection, &announced(ALICE).session).unwrap();
        admission.withdraw(&one.connection, &announced(ALICE).session).unwrap();
        admission.withdraw(&other.connection, &announced(BOB).session).unwrap();
        one.expect_refused();
        let connection = other.connection;
        let far = other.connect().unwrap();
        let (near, _) = accept(&alice);
        // An entry that is withdrawn after its connection is established stays, and is followed to the
        // connection's end.
        admission.withdraw(&connection, &announced(ALICE).session).unwrap();
        assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Established);
        drop((far, near));
        eventually("the entry goes", || row(&admission, &connection).is_none());
    }

    fn no_syn_is_admitted_after_a_withdrawal(world) {
        let (admission, _alice, _bob) = world.serve();
        // A queue with room for one: the second SYN is admitted, then TCP drops it, and the client
        // sends it again.
        let narrow = queue(&admission, ALICE, 0);
        let second_syn = || {
            let first = Client::v4();
            admission.announce(&first.connection, &announced(ALICE)).unwrap();
            let first = first.connect().unwrap();
            let second = Client::v4();
            let connection = second.connection;
            admission.announce(&connection, &announced(ALICE)).unwrap();
            let pending = std::thread::spawn(move || second.connect());
            eventually("the SYN is seen", || {
                row(&admission, &connection).unwrap().state == AdmissionState::SynReceived
            });
            (first, connection, pending)
        };
        let (_first, connection, pending) = second_syn();
        admission.withdraw(&connection, &announced(ALICE).session).unwrap();
        assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Withdrawn);
        accept(&narrow);
        let error = pending.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);

        // The twin without a withdrawal: the retransmitted SYN is admitted.
        let (_first, _, pending) = second_syn();
        accept(&narrow);
        pending.join().unwrap().unwrap();
    }

    fn a_handshake_under_way_survives_its_withdrawal(world) {
        let (admission, alice, _bob) = world.serve();
        hold_handshakes(&alice);
        let client = Client::v6();
        let connection = client.connection;
        admission.announce(&connection, &announced(ALICE)).unwrap();
        let mut far = client.connect().unwrap();
        assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::SynReceived);
        admission.withdraw(&connection, &announced(ALICE).session).unwrap();
        assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Withdrawn);
        far.write_all(b"x").unwrap();
        eventually("the handshake ends", || listener::has_waiting(alice.as_fd()));
        assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Established);
        accept(&alice);
        drop(far);
        eventually("the entry goes", || row(&admission, &connection).is_none());
    }

    // Threat model: A150
    fn a_connection_that_was_forgotten_under_way_is_reported(world) {
        let (admission, alice, _bob) = world.serve();
        hold_handshakes(&alice);
        for client in [Client::v4(), Client::v6()] {
            let connection = client.connection;
            admission.announce(&connection, &announced(ALICE)).unwrap();
            let mut far = client.connect().unwrap();
            admission.forget(&connection).unwrap();
            assert!(row(&admission, &connection).is_none());
            assert_eq!(admission.drain_untracked().unwrap(), []);
            far.write_all(b"x").unwrap();
            let reports = admission.untracked().unwrap();
            let mut poll =
                [rustix::event::PollFd::new(&reports, rustix::event::PollFlags::IN)];
            let patience = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut poll, Some(&patience)).unwrap(), 1);
            assert_eq!(admission.drain_untracked().unwrap(), [connection]);
            let nothing = rustix::time::Timespec::default();
            assert_eq!(rustix::event::poll(&mut poll, Some(&nothing)).unwrap(), 0);
            assert!(usher_system::connections::destroy(&connection).unwrap());
        }
        assert_eq!(admission.counters().unwrap().untracked, 2);
    }

    fn an_established_connection_is_not_forgotten(world) {
        let (admission, alice, _bob) = world.serve();
        let client = Client::v4();
        let connection = client.connection;
        admission.announce(&connection, &announced(ALICE)).unwrap();
        let far = client.connect().unwrap();
        let near = accept(&alice);
        admission.forget(&connection).unwrap();
        assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Established);
        drop((far, near));
        eventually("the entry goes", || row(&admission, &connection).is_none());
    }

    fn the_same_ends_may_be_used_again(world) {
        let (admission, alice, bob) = world.serve();
        let client = Client::v4();
        let connection = client.connection;
        for (uid, queue) in [(ALICE, &alice), (BOB, &bob), (ALICE, &alice)] {
            // The server closes first and keeps the endpoints in TIME_WAIT.
            let client = Client::bound(connection.client, connection.server);
            admission.announce(&connection, &announced(uid)).unwrap();
            let mut far = client.connect().unwrap();
            let (near, _) = accept(queue);
            drop(near);
            assert_eq!(far.read(&mut [0]).unwrap(), 0);
            drop(far);
            eventually("the entry goes", || row(&admission, &connection).is_none());
            // No other connection may use these endpoints meanwhile.
            Client::bound(connection.client, connection.server).expect_refused();
        }
        drop(client);
    }

    fn the_same_ends_are_announced_once(world) {
        use usher_kernel::admission::AnnounceError;
        let (admission, alice, _bob) = world.serve();
        let client = Client::v4();
        let connection = client.connection;
        let again = |uid| admission.announce(&connection, &announced(uid));
        again(ALICE).unwrap();
        assert!(matches!(again(BOB), Err(AnnounceError::AlreadyAnnounced)));
        let _far = client.connect().unwrap();
        let _near = accept(&alice);
        assert!(matches!(again(BOB), Err(AnnounceError::AlreadyAnnounced)));
        assert_eq!(row(&admission, &connection).unwrap().uid, ALICE);
    }

    fn no_queue_means_refusal(world) {
        let (admission, alice, bob) = world.serve();
        let attempt = |uid| {
            let client = Client::v6();
            admission.announce(&client.connection, &announced(uid)).unwrap();
            client
        };
        attempt(ALICE).connect().unwrap();
        // The queue is removed from the table, although its listener lives.
        admission.remove_listener(SERVICE, ALICE).unwrap();
        admission.remove_listener(SERVICE, ALICE).unwrap();
        attempt(ALICE).expect_refused();
        // The last holder of the listener closes it.
        attempt(BOB).connect().unwrap();
        drop(bob);
        attempt(BOB).expect_refused();
        // A user who never had a queue.
        attempt(61_003).expect_refused();
        assert_eq!(admission.counters().unwrap().refused_no_listener, 3);
        // An announcement whose SYN found no queue is valid for the next SYN, unless SYNs are read.
        forge::stop_reading(world);
        let client = attempt(ALICE);
        let connection = client.connection;
        let again = Client::bound(connection.client, connection.server);
        client.expect_refused();
        admission.add_listener(SERVICE, ALICE, alice.as_fd()).unwrap();
        again.connect().unwrap();
    }

    fn an_announcement_for_another_service_is_refused(world) {
        let (admission, _alice, _bob) = world.serve();
        let client = Client::v4();
        let other = Announced { service: SERVICE + 1, ..announced(ALICE) };
        let foreign = listener::create(SERVICE + 1, ALICE, PORT, 1).unwrap();
        admission.add_listener(SERVICE + 1, ALICE, foreign.as_fd()).unwrap();
        admission.announce(&client.connection, &other).unwrap();
        client.expect_refused();
        assert_eq!(admission.counters().unwrap().refused_state, 1);
    }

    fn full_tables_refuse(world) {
        use usher_kernel::KernelError;
        use usher_kernel::admission::AnnounceError;
        let admission =
            world.open_with(&Limits { sessions: 1, admissions: 2, listeners: 2, tokens: 2 }).unwrap();
        admission.set_services(&[(PORT, SERVICE)]).unwrap();
        let alice = queue(&admission, ALICE, 16);
        let _bob = queue(&admission, BOB, 16);
        let carol = listener::create(SERVICE, 61_003, PORT, 16).unwrap();
        assert!(matches!(
            admission.add_listener(SERVICE, 61_003, carol.as_fd()),
            Err(KernelError::Full(_))
        ));
        // An existing queue can be replaced.
        admission.add_listener(SERVICE, ALICE, alice.as_fd()).unwrap();

        let clients = [Client::v4(), Client::v4(), Client::v4()];
        admission.announce(&clients[0].connection, &announced(ALICE)).unwrap();
        admission.announce(&clients[1].connection, &announced(ALICE)).unwrap();
        assert!(matches!(
            admission.announce(&clients[2].connection, &announced(ALICE)),
            Err(AnnounceError::Full)
        ));
        admission.withdraw(&clients[0].connection, &announced(ALICE).session).unwrap();
        admission.announce(&clients[2].connection, &announced(ALICE)).unwrap();
        let [first, second, third] = clients;
        first.expect_refused();
        second.connect().unwrap();
        third.connect().unwrap();
    }

    fn ports_come_under_admission_and_leave_it(world) {
        let (admission, _alice, _bob) = world.serve();
        let other = TcpListener::bind("0.0.0.0:8025").unwrap();
        TcpStream::connect("10.9.0.1:8025").unwrap();
        admission.set_services(&[(PORT, SERVICE), (8025, 9)]).unwrap();
        TcpStream::connect("10.9.0.1:8025").unwrap_err();
        Client::v4().expect_refused();
        admission.set_services(&[(PORT, SERVICE)]).unwrap();
        TcpStream::connect("10.9.0.1:8025").unwrap();
        Client::v4().expect_refused();
        drop(other);

        // There is room for every port.
        let every: Vec<(u16, u32)> = (1..=u16::MAX).map(|port| (port, 1)).collect();
        admission.set_services(&every).unwrap();
        TcpStream::connect("10.9.0.1:8025").unwrap_err();
        Client::v4().expect_refused();
        admission.set_services(&[(PORT, SERVICE)]).unwrap();
    }

    // Threat model: A10
    fn syn_cookies_are_admitted(world) {
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        let (admission, alice, bob) = world.serve();
        for (client, uid) in [(Client::v4(), ALICE), (Client::v6(), BOB)] {
            let connection = client.connection;
            admission.announce(&connection, &announced(uid)).unwrap();
            let far = client.connect().unwrap();
            let queue = if uid == ALICE { &alice } else { &bob };
            eventually("the ACK comes", || listener::has_waiting(queue.as_fd()));
            let (near, _) = accept(queue);
            assert_eq!(row(&admission, &connection).unwrap().state, AdmissionState::Established);
            drop((far, near));
            eventually("the entry goes", || row(&admission, &connection).is_none());
        }
        // The SYN and the ACK of each connection are counted.
        assert_eq!(admission.counters().unwrap().admitted, 4);
        Client::v4().expect_refused();
        Client::v6().expect_refused();
    }

    fn the_listener_belongs_to_its_user(world) {
        let (_admission, _alice, _bob) = world.serve();
        let table = std::fs::read_to_string("/proc/self/net/tcp6").unwrap();
        let users: std::collections::BTreeSet<&str> =
            table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7)).collect();
        assert_eq!(users, [ALICE.to_string(), BOB.to_string()].iter().map(String::as_str).collect());
        // This thread creates files as root again.
        let file = tempfile::NamedTempFile::new().unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!(file.as_file().metadata().unwrap().uid(), 0);
    }

    /// A killed process may leave a child that holds its locks until the child executes its program.
    fn pins_that_are_locked_for_a_moment_are_waited_for(world) {
        let (locked, is_locked) = channel();
        let holder = std::thread::spawn({
            let pins = Pins::lock(&world.pins).unwrap();
            move || {
                locked.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(300));
                drop(pins);
            }
        });
        is_locked.recv().unwrap();
        let _held = Pins::lock(&world.pins).unwrap();
        holder.join().unwrap();
        let refused = Pins::lock(&world.pins).unwrap_err();
        assert!(matches!(refused, KernelError::InUse(_)), "{refused}");
    }
}
