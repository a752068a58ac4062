//! The SYNs that carry a token, and the tokens in them.
//!
//! Threat model: A44

#[macro_use]
mod world;
mod ticket;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use rustix::net::AddressFamily;
use ticket::*;
use usher_kernel::ticket::{Counters, Wanted};
use world::*;

const MAPPED: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V6(std::net::Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a09, 1)),
    PORT,
);

tests! {
    fn a_connection_carries_the_next_element(world) {
        let tickets = open(world);
        let server = Server::new();
        let over_v4 = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let over_v6 = Session::given(&tickets, 2, 8, &key(ALICE, v6(PORT)));
        for position in 1..=3 {
            for (session, to) in [(&over_v4, v4(PORT)), (&over_v6, v6(PORT))] {
                connect(ALICE, &drawn(to), to).unwrap();
                assert_eq!(session.position(&server.syn()), position);
            }
        }
        // The socket is bound to its source before, with a port or only an address.
        for port in [40_000, 0] {
            for (session, from, to) in [(&over_v4, v4(port), v4(PORT)), (&over_v6, v6(port), v6(PORT))] {
                let socket = drawn(to);
                rustix::net::bind(&socket, &from).unwrap();
                connect(ALICE, &socket, to).unwrap();
                assert_eq!(session.position(&server.syn()), if port == 0 { 5 } else { 4 });
            }
        }
        // An IPv6 socket that connects to an IPv4 address.
        let socket = socket(AddressFamily::INET6);
        assert_eq!(draw(ALICE, &socket, MAPPED), 0);
        connect(ALICE, &socket, MAPPED).unwrap();
        let syn = server.syn();
        assert!(syn.connection.server.is_ipv4());
        assert_eq!(over_v4.position(&syn), 6);
        assert_eq!(tickets.next(&key(ALICE, MAPPED)).unwrap(), Some(6));
        assert_eq!(tickets.next(&key(ALICE, v6(PORT))).unwrap(), Some(5));
        assert_eq!(tickets.next(&key(BOB, v6(PORT))).unwrap(), None);
        let all = Counters { drawn: 11, written: 11, established: 11, ..Counters::default() };
        assert_eq!(counted(&tickets), all);
    }

    fn an_established_connection_shows_that_its_ticket_worked(world) {
        let tickets = open(world);
        let passed = |user| tickets.has_passed(&key(user, v4(PORT))).unwrap();
        Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        Session::given(&tickets, 2, 8, &key(BOB, v4(PORT)));
        let error = connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
        assert!(!passed(ALICE));
        let server = Server::new();
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        server.syn();
        assert!(passed(ALICE) && !passed(BOB));
        // The answer is about the present ticket only: user space knows about earlier ones.
        Session::given(&tickets, 3, 8, &key(ALICE, v4(PORT)));
        assert!(!passed(ALICE));
    }

    fn a_connect_that_does_not_wait_carries_it_too(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let socket = drawn(v4(PORT));
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        let error = connect(ALICE, &socket, v4(PORT)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
        assert_eq!(session.position(&server.syn()), 1);
    }

    fn a_syn_that_is_sent_again_is_the_same(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let capture = Capture::start();
        // A filter of one instruction: no packet passes.
        let mut nothing = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
        let filter = libc::sock_fprog { len: 1, filter: &raw mut nothing };
        // SAFETY: a structure without padding that matters; the kernel reads it now.
        let filter = unsafe {
            std::slice::from_raw_parts((&raw const filter).cast::<u8>(), size_of_val(&filter))
        };
        set_bytes(&server.listener, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter).unwrap();
        let socket = drawn(v4(PORT));
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| connect(ALICE, &socket, v4(PORT)));
            let lost = capture.next();
            set(&server.listener, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0).unwrap();
            let came = capture.next();
            assert_eq!(session.position(&lost), 1);
            let arrived = server.syn();
            assert_eq!((&lost, &came), (&came, &arrived));
            connecting.join().unwrap().unwrap();
        });
        let counters = counted(&tickets);
        assert_eq!((counters.drawn, counters.established), (1, 1));
        assert!(counters.written >= 2);
        assert_eq!(tickets.next(&key(ALICE, v4(PORT))).unwrap(), Some(1));
    }

    fn nobody_draws_from_another_users_ticket(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        for stranger in [BOB, 0] {
            let socket = socket_for(v4(PORT));
            assert_eq!(draw(stranger, &socket, v4(PORT)), libc::ENOENT);
            connect(stranger, &socket, v4(PORT)).unwrap();
            assert_eq!(server.syn().option, None);
        }
        // The ticket is not valid for another server either.
        for other in [v4(PORT + 1), v6(PORT), SocketAddr::from(([10, 9, 0, 2], PORT))] {
            assert_eq!(draw(ALICE, &socket_for(other), other), libc::ENOENT);
        }
        assert_eq!(tickets.next(&key(ALICE, v4(PORT))).unwrap(), Some(0));
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 1);
        // The ticket is valid until it is removed.
        assert!(tickets.remove(&key(ALICE, v4(PORT))).unwrap());
        assert!(!tickets.remove(&key(ALICE, v4(PORT))).unwrap());
        assert_eq!(draw(ALICE, &socket_for(v4(PORT)), v4(PORT)), libc::ENOENT);
        let all = Counters {
            without_ticket: 6, drawn: 1, written: 1, established: 1, ..Counters::default()
        };
        assert_eq!(counted(&tickets), all);
    }

    fn a_token_goes_where_it_was_drawn_for_and_nowhere_else(world) {
        let tickets = open(world);
        let (server, other) = (Server::new(), Server::at(144));
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        connect(ALICE, &drawn(v4(PORT)), v4(144)).unwrap();
        assert_eq!(other.syn().option, None);
        connect(ALICE, &drawn(v4(PORT)), SocketAddr::from(([127, 0, 0, 1], PORT))).unwrap();
        assert_eq!(server.syn().option, None);
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 3);
        let all = Counters {
            drawn: 3, other_destination: 2, written: 1, established: 1, ..Counters::default()
        };
        assert_eq!(counted(&tickets), all);
    }

    fn a_token_that_was_sent_in_vain_is_not_sent_again(world) {
        let tickets = open(world);
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let capture = Capture::start();
        let socket = drawn(v4(PORT));
        for _ in 0..2 {
            let error = connect(ALICE, &socket, v4(PORT)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
        }
        assert_eq!(session.position(&capture.next()), 1);
        assert_eq!(capture.next().option, None);
        let failed = Counters { drawn: 1, written: 1, failed: 1, ..Counters::default() };
        assert_eq!(counted(&tickets), failed);
        // The same socket connects with a new draw; of two draws the later one counts.
        let server = Server::new();
        assert_eq!(draw(ALICE, &socket, v4(PORT)), 0);
        assert_eq!(draw(ALICE, &socket, v4(PORT)), 0);
        connect(ALICE, &socket, v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 3);
    }

    fn only_a_syn_without_ack_carries_it(world) {
        let tickets = open(world);
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let capture = Capture::start();
        // Both endpoints are one socket, which answers its own SYN: a simultaneous open.
        let socket = drawn(v4(PORT));
        rustix::net::bind(&socket, &v4(PORT)).unwrap();
        connect(ALICE, &socket, v4(PORT)).unwrap();
        assert_eq!(session.position(&capture.next()), 1);
        assert_eq!(capture.next_answer().option, None);
        let all = Counters { drawn: 1, written: 1, established: 1, ..Counters::default() };
        assert_eq!(counted(&tickets), all);
        let asked = tickets.counters().unwrap().asked;
        rustix::io::write(&socket, b"hello").unwrap();
        assert_eq!(rustix::io::read(&socket, &mut [0; 5]).unwrap(), 5);
        assert_eq!(tickets.counters().unwrap().asked, asked);
    }

    fn after_the_handshake_no_option_is_asked_for(world) {
        let tickets = open(world);
        let server = Server::new();
        Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let socket = drawn(v4(PORT));
        connect(ALICE, &socket, v4(PORT)).unwrap();
        let asked = tickets.counters().unwrap().asked;
        assert!(asked > 0);
        let (mut near, _) = server.accept();
        let mut far = TcpStream::from(socket);
        let mut bytes = [0; 5];
        for _ in 0..100 {
            far.write_all(b"hello").unwrap();
            near.read_exact(&mut bytes).unwrap();
            near.write_all(&bytes).unwrap();
            far.read_exact(&mut bytes).unwrap();
        }
        drop((far, near));
        let all = Counters { drawn: 1, asked, written: 1, established: 1, ..Counters::default() };
        assert_eq!(tickets.counters().unwrap(), all);
    }

    fn a_block_after_the_other_is_drawn_and_told(world) {
        let tickets = open(world);
        let server = Server::new();
        let alice = key(ALICE, v4(PORT));
        let session = Session::new(7, 65);
        tickets.put(&alice, &session.ticket).unwrap();
        let none_left = || assert_eq!(draw(ALICE, &socket_for(v4(PORT)), v4(PORT)), libc::ESTALE);
        let connects = |position| {
            connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
            assert_eq!(session.position(&server.syn()), position);
        };
        none_left();
        assert_eq!(tickets.wanted().unwrap().entries, [Wanted { number: 7, block: 0 }]);
        session.fill_block(&tickets, 0);
        (1..=64).for_each(connects);
        assert_eq!(tickets.wanted().unwrap().entries, []);
        for _ in 0..3 {
            none_left();
        }
        assert_eq!(tickets.next(&alice).unwrap(), Some(64));
        let readable = tickets.wanted_descriptor().unwrap();
        let mut ready = [rustix::event::PollFd::new(&readable, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut ready, None).unwrap(), 1);
        assert_eq!(tickets.wanted().unwrap().entries, [Wanted { number: 7, block: 1 }]);
        session.fill_block(&tickets, 1);
        assert!(tickets.drop_block(7, 0).unwrap());
        assert!(!tickets.drop_block(7, 0).unwrap());
        connects(65);
        // The chain ends within a block.
        none_left();
        assert_eq!(tickets.next(&alice).unwrap(), Some(65));
        assert_eq!(tickets.wanted().unwrap().entries, []);
        // A ticket that replaces another begins at its own position.
        let mut later = Session::new(8, 130);
        later.ticket.next = 127;
        later.fill(&tickets);
        tickets.put(&alice, &later.ticket).unwrap();
        for position in [128, 129] {
            connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
            assert_eq!(later.position(&server.syn()), position);
        }
        let told = [Wanted { number: 8, block: 1 }, Wanted { number: 8, block: 2 }];
        assert_eq!(tickets.wanted().unwrap().entries, told);
        let all = Counters {
            drawn: 67, written: 67, established: 67, exhausted: 5, ..Counters::default()
        };
        assert_eq!(counted(&tickets), all);
    }

    fn an_expired_ticket_gives_nothing(world) {
        let tickets = open(world);
        let server = Server::new();
        let mut session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        session.ticket.lifetime = std::time::Duration::ZERO;
        tickets.put(&key(ALICE, v4(PORT)), &session.ticket).unwrap();
        let socket = socket_for(v4(PORT));
        assert_eq!(draw(ALICE, &socket, v4(PORT)), libc::EKEYEXPIRED);
        connect(ALICE, &socket, v4(PORT)).unwrap();
        assert_eq!(server.syn().option, None);
        assert_eq!(counted(&tickets), Counters { expired: 1, ..Counters::default() });
        session.ticket.lifetime = std::time::Duration::from_secs(60);
        tickets.put(&key(ALICE, v4(PORT)), &session.ticket).unwrap();
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 1);
    }

    fn a_plain_connect_draws_where_user_space_says_so(world) {
        let tickets = open(world);
        let server = Server::new();
        let mut session = Session::new(1, 8);
        session.fill(&tickets);
        for (number, to) in [(1, v4(PORT)), (2, v6(PORT)), (3, MAPPED)] {
            session.ticket.number = number;
            session.fill(&tickets);
            for plain in [false, true] {
                tickets.holding().set_destinations(plain.then_some((to, None))).unwrap();
                tickets.put(&key(ALICE, to), &session.ticket).unwrap();
                // Other destinations, even without a ticket.
                let elsewhere = SocketAddr::from(([127, 0, 0, 1], PORT));
                connect(ALICE, &socket_for(elsewhere), elsewhere).unwrap();
                assert_eq!(server.syn().option, None);
                if !plain {
                    for uid in [ALICE, BOB, 0] {
                        connect(uid, &socket_for(to), to).unwrap();
                        assert_eq!(server.syn().option, None);
                    }
                    continue;
                }
                connect(ALICE, &socket_for(to), to).unwrap();
                let syn = server.syn();
                assert_eq!(session.position(&syn), 1);
                // An element that was drawn before is not drawn again.
                connect(ALICE, &drawn(to), to).unwrap();
                assert_eq!(session.position(&server.syn()), 2);
                assert_eq!(tickets.next(&key(ALICE, to)).unwrap(), Some(2));
            }
        }
        // An element drawn for another destination is dropped.
        let elsewhere = SocketAddr::from(([127, 0, 0, 2], PORT));
        session.ticket.number = 4;
        session.fill(&tickets);
        tickets.put(&key(ALICE, elsewhere), &session.ticket).unwrap();
        let socket = drawn(elsewhere);
        connect(ALICE, &socket, MAPPED).unwrap_err();
        connect(ALICE, &socket, v4(PORT)).unwrap();
        session.ticket.number = 3;
        assert_eq!(session.position(&server.syn()), 3);
        let all = Counters { drawn: 8, written: 7, established: 7, ..Counters::default() };
        assert_eq!(counted(&tickets), all);
        // A datagram socket that connects is not affected.
        let datagrams = std::net::UdpSocket::bind("[::]:0").unwrap();
        as_user(ALICE, || datagrams.connect(v6(PORT)).unwrap());
        as_user(ALICE, || rustix::net::connect(datagrams.as_fd(), &MAPPED).unwrap());
        assert_eq!(counted(&tickets), all);
    }

    fn draws_at_the_same_time_are_of_different_elements(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 256, &key(ALICE, v4(PORT)));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| as_user(ALICE, || {
                    for _ in 0..25 {
                        let socket = socket_for(v4(PORT));
                        usher::draw_token(socket.as_fd(), v4(PORT)).unwrap();
                        rustix::net::connect(&socket, &v4(PORT)).unwrap();
                    }
                }));
            }
        });
        let mut positions: Vec<_> = (0..200).map(|_| session.position(&server.syn())).collect();
        positions.sort_unstable();
        assert_eq!(positions, (1..=200).collect::<Vec<_>>());
        assert_eq!(tickets.next(&key(ALICE, v4(PORT))).unwrap(), Some(200));
        let mut told = tickets.wanted().unwrap().entries;
        told.sort_unstable();
        assert_eq!(told, [0, 1, 2, 3].map(|block| Wanted { number: 1, block }));
        let all = Counters { drawn: 200, written: 200, established: 200, ..Counters::default() };
        assert_eq!(counted(&tickets), all);
    }
}
