//! Plain connections without a token are held, reported and released.

#[macro_use]
mod world;
#[path = "forge/packet.rs"]
#[allow(dead_code, reason = "every test binary uses a part of it")]
mod packet;
mod ticket;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use packet::{SYN, ip};
use rustix::net::{AddressFamily, SendFlags, SocketType};
use ticket::*;
use usher_base::ConnectionTuple;
use usher_kernel::ticket::{Attempt, Counters, Event, Report, Syn, TicketError, Tickets};
use world::*;

const MAPPED: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V6(std::net::Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a09, 1)),
    PORT,
);

/// Holds plain connections to the world's server.
fn hold(world: &World) -> Tickets {
    let tickets = open(world);
    let destinations = [v4(PORT), v6(PORT)].map(|server| (server, None));
    tickets.holding().set_destinations(destinations).unwrap();
    tickets
}

/// The next report.
fn report(tickets: &Tickets) -> Report {
    let mut reports = Vec::new();
    eventually("a report", || {
        reports.extend(tickets.holding().reports().unwrap().entries);
        !reports.is_empty()
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0)
}

/// The next report, which must be of a held SYN of the user.
fn held(tickets: &Tickets, uid: u32) -> (Attempt, ConnectionTuple, Syn) {
    let report = report(tickets);
    assert_eq!((report.uid, report.ticket), (uid, None));
    let Event::Held(Some(syn)) = report.event else {
        panic!("{report:?}");
    };
    (report.attempt, report.connection, syn)
}

/// Drops packets to the server until its filter is removed.
fn lose(server: &Server) {
    // A filter of one instruction: no packet passes.
    let mut nothing = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    // SAFETY: a structure without padding that matters; the kernel reads it now.
    let filter = unsafe {
        std::slice::from_raw_parts((&raw const filter).cast::<u8>(), size_of_val(&filter))
    };
    set_bytes(
        &server.listener,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_FILTER,
        filter,
    )
    .unwrap();
}

fn lose_no_more(server: &Server) {
    set(
        &server.listener,
        libc::SOL_SOCKET,
        libc::SO_DETACH_FILTER,
        0,
    )
    .unwrap();
}

/// The send-only sockets of this process.
fn raw_sockets() -> Vec<BorrowedFd<'static>> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let sockets = descriptors.map(|entry| {
        let name = entry.unwrap().file_name();
        let number: i32 = name.to_str().unwrap().parse().unwrap();
        // SAFETY: an open descriptor, except for the folder's own, for which the kernel returns
        // EBADF.
        unsafe { BorrowedFd::borrow_raw(number) }
    });
    let is_raw =
        |socket: &BorrowedFd| rustix::net::sockopt::socket_type(socket) == Ok(SocketType::RAW);
    sockets.filter(is_raw).collect()
}

/// Connects the raw sockets that can connect to this address, and returns their number.
fn connect_raw_sockets(to: SocketAddr) -> usize {
    let mut sockets = raw_sockets();
    sockets.retain(|socket| rustix::net::connect(socket, &to).is_ok());
    sockets.len()
}

/// Tries to send a packet by each raw socket. Returns how many have sent it.
fn send_by_raw_sockets(packet: &[u8], to: SocketAddr) -> usize {
    let to = SocketAddr::new(to.ip(), 0);
    let mut sockets = raw_sockets();
    let sends = |socket: &mut BorrowedFd| {
        rustix::net::sendto(socket, packet, SendFlags::empty(), &to).is_ok()
    };
    sockets.retain_mut(sends);
    sockets.len()
}

/// The packet with this header between its IPv6 header and its TCP header.
fn extended(packet: &[u8], kind: u8, header: [u8; 8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[5] += 8;
    packet[6] = kind;
    packet.splice(40..40, header);
    packet
}

tests! {
    fn a_held_syn_is_sent_in_the_kernels_place(world) {
        let tickets = hold(world);
        let sender = tickets.holding().sender().unwrap();
        let server = Server::new();
        let families = [AddressFamily::INET, AddressFamily::INET6, AddressFamily::INET6];
        for (family, to) in families.into_iter().zip([v4(PORT), v6(PORT), MAPPED]) {
            let socket = socket(family);
            begin(ALICE, &socket, to);
            let (attempt, connection, syn) = held(&tickets, ALICE);
            assert_eq!(connection.server.ip(), to.ip().to_canonical());
            let local: SocketAddr = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
            assert_eq!(connection.client.port(), local.port());
            assert!(is_connecting(&socket));
            // The gate is not released: the kernel's retransmission stays held, and only the copy arrives.
            gate(&tickets, &connection, attempt, false);
            sender.send(&syn).unwrap();
            end(&socket).unwrap();
            assert_eq!(server.syn().connection, connection);
            let over = report(&tickets);
            assert_eq!((over.attempt, over.event), (attempt, Event::Over));
            tickets.holding().gates().remove(&connection).unwrap();
        }
        let counted = counted(&tickets);
        assert!(counted.held >= 3, "{counted:?}");
        assert_eq!(Counters { held: 0, ..counted }, Counters::default());
    }

    // Threat model: A15
    fn a_held_syn_is_sent_with_its_sockets_mark(world) {
        // The accepted connection has the mark that its SYN had.
        std::fs::write("/proc/sys/net/ipv4/tcp_fwmark_accept", "1").unwrap();
        let tickets = hold(world);
        let sender = tickets.holding().sender().unwrap();
        let server = Server::new();
        for mark in [0, 1 << 20, 3 << 20, CLASS_BITS] {
            let socket = socket_for(v4(PORT));
            set(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed()).unwrap();
            begin(ALICE, &socket, v4(PORT));
            let (attempt, connection, syn) = held(&tickets, ALICE);
            // The gate is not released: the kernel's own copies stay held.
            gate(&tickets, &connection, attempt, false);
            sender.send(&syn).unwrap();
            end(&socket).unwrap();
            let (accepted, _) = server.accept();
            let mut found = [0; 4];
            get_bytes(&accepted, libc::SOL_SOCKET, libc::SO_MARK, &mut found);
            assert_eq!(u32::from_ne_bytes(found), mark);
            assert_eq!(report(&tickets).event, Event::Over);
            tickets.holding().gates().remove(&connection).unwrap();
        }
        // No class has this mark: the kernel sends its own SYN once the gate is released.
        let socket = socket_for(v4(PORT));
        set(&socket, libc::SOL_SOCKET, libc::SO_MARK, 7).unwrap();
        begin(ALICE, &socket, v4(PORT));
        let (attempt, connection, syn) = held(&tickets, ALICE);
        assert!(sender.send(&syn).is_err());
        gate(&tickets, &connection, attempt, true);
        end(&socket).unwrap();
        assert_eq!(server.syn().connection, connection);
    }

    fn a_released_syn_goes_without_help_a_second_later(world) {
        let tickets = hold(world);
        let server = Server::new();
        let socket = socket_for(v4(PORT));
        begin(ALICE, &socket, v4(PORT));
        let (attempt, connection, _) = held(&tickets, ALICE);
        gate(&tickets, &connection, attempt, true);
        end(&socket).unwrap();
        assert_eq!(server.syn().connection, connection);
    }

    fn what_is_not_released_stays_held_and_is_told_again(world) {
        let tickets = hold(world);
        let _server = Server::new();
        let socket = socket_for(v4(PORT));
        begin(ALICE, &socket, v4(PORT));
        let (attempt, connection, first) = held(&tickets, ALICE);
        let (again, same, second) = held(&tickets, ALICE);
        assert_eq!((again, same), (attempt, connection));
        // The retransmission has another time stamp.
        assert_ne!(first, second);
        // Under a gate the SYN is held without a report.
        gate(&tickets, &connection, attempt, false);
        let before = sent_again(&socket);
        eventually("its SYN is sent again", || sent_again(&socket) > before);
        assert_eq!(tickets.holding().reports().unwrap().entries, []);
        assert!(is_connecting(&socket));
        gate(&tickets, &connection, attempt, true);
        end(&socket).unwrap();
    }

    fn so_many_reports_are_taken_at_once_and_the_rest_the_next_time(world) {
        let tickets = hold(world);
        let _server = Server::new();
        // Each connection is reported twice: its SYN, and that it was abandoned.
        as_user(ALICE, || {
            for _ in 0..600 {
                let socket = socket_for(v4(PORT));
                rustix::io::ioctl_fionbio(&socket, true).unwrap();
                rustix::net::connect(&socket, &v4(PORT)).unwrap_err();
            }
        });
        let first = tickets.holding().reports().unwrap();
        assert_eq!((first.entries.len(), first.more), (1024, true));
        let second = tickets.holding().reports().unwrap();
        assert_eq!((second.entries.len(), second.more), (176, false));
        let all = first.entries.iter().chain(&second.entries);
        let told: HashSet<_> =
            all.map(|report| (report.attempt, report.event == Event::Over)).collect();
        assert_eq!(told.len(), 1200, "none is lost, and none is told twice");
    }

    // Threat model: A41
    fn another_sockets_syn_with_gated_ends_does_not_leave(world) {
        let tickets = hold(world);
        let sender = tickets.holding().sender().unwrap();
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(BOB, v4(PORT)));
        let bound = || {
            let socket = socket_for(v4(PORT));
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
            rustix::net::bind(&socket, &v4(40_000)).unwrap();
            socket
        };
        let alices = bound();
        begin(ALICE, &alices, v4(PORT));
        let (attempt, connection, _) = held(&tickets, ALICE);
        // Alice is announced and gives up. Bob gets the port, and has a ticket.
        gate(&tickets, &connection, attempt, true);
        drop(alices);
        assert_eq!(report(&tickets).event, Event::Over);
        let bobs = bound();
        begin(BOB, &bobs, v4(PORT));
        eventually("his SYN was sent twice", || counted(&tickets).kept_back >= 2);
        assert!(is_connecting(&bobs));
        // A second attempt of Alice's is not the announced one either.
        drop(bobs);
        let again = bound();
        begin(ALICE, &again, v4(PORT));
        eventually("her SYN is kept back", || counted(&tickets).kept_back >= 3);
        drop(again);
        assert_eq!(tickets.holding().reports().unwrap().entries, []);
        // Once no announcement stands, each connection is served.
        tickets.holding().gates().remove(&connection).unwrap();
        let bobs = bound();
        begin(BOB, &bobs, v4(PORT));
        end(&bobs).unwrap();
        assert_eq!(session.position(&server.syn()), 2);
        drop(bobs);
        let alices = socket_for(v4(PORT));
        begin(ALICE, &alices, v4(PORT));
        let (attempt, connection, syn) = held(&tickets, ALICE);
        gate(&tickets, &connection, attempt, true);
        sender.send(&syn).unwrap();
        end(&alices).unwrap();
    }

    fn a_waiting_connect_ends_with_release_and_reset(world) {
        let tickets = hold(world);
        let sender = tickets.holding().sender().unwrap();
        let _server = Server::new();
        let closed = v6(PORT + 1);
        tickets.holding().set_destinations([(v4(PORT), None), (closed, None)]).unwrap();
        for (to, expected) in [(v4(PORT), Ok(())), (closed, Err(Some(libc::ECONNREFUSED)))] {
            std::thread::scope(|scope| {
                let socket = socket_for(to);
                let connecting = scope.spawn(move || connect(ALICE, &socket, to));
                let (attempt, connection, syn) = held(&tickets, ALICE);
                assert!(!connecting.is_finished());
                gate(&tickets, &connection, attempt, true);
                sender.send(&syn).unwrap();
                let ended = connecting.join().unwrap().map_err(|error| error.raw_os_error());
                assert_eq!(ended, expected);
                assert_eq!(report(&tickets).event, Event::Over);
            });
        }
    }

    fn a_socket_that_connects_a_second_time_is_held_a_second_time(world) {
        let tickets = hold(world);
        let socket = socket_for(v4(PORT));
        begin(ALICE, &socket, v4(PORT));
        let (first, connection, _) = held(&tickets, ALICE);
        gate(&tickets, &connection, first, true);
        // No process listens.
        assert_eq!(end(&socket).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
        assert_eq!(report(&tickets).event, Event::Over);
        tickets.holding().gates().remove(&connection).unwrap();
        // The kernel reports the former failure once more.
        let aborted = connect(ALICE, &socket, v4(PORT)).unwrap_err();
        assert_eq!(aborted.raw_os_error(), Some(libc::ECONNABORTED));
        begin(ALICE, &socket, v4(PORT));
        let (second, ..) = held(&tickets, ALICE);
        assert_eq!(first.cookie, second.cookie);
        assert_ne!(first, second);
    }

    fn what_is_announced_before_or_goes_elsewhere_is_not_held(world) {
        let tickets = hold(world);
        let (server, other) = (Server::new(), Server::at(144));
        let announced = socket_for(v4(PORT));
        tickets.holding().exempt(announced.as_fd()).unwrap();
        connect(ALICE, &announced, v4(PORT)).unwrap();
        assert_eq!(server.syn().option, None);
        for elsewhere in [v4(144), v6(144), SocketAddr::from(([127, 0, 0, 1], 144))] {
            connect(ALICE, &socket_for(elsewhere), elsewhere).unwrap();
            other.accept();
        }
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], PORT));
        connect(ALICE, &socket_for(elsewhere), elsewhere).unwrap();
        server.accept();
        // Connections are no longer held once the policy has changed.
        tickets.holding().set_destinations([(v6(PORT), None)]).unwrap();
        connect(ALICE, &socket_for(v4(PORT)), v4(PORT)).unwrap();
        server.accept();
        let socket = socket_for(v6(PORT));
        begin(ALICE, &socket, v6(PORT));
        held(&tickets, ALICE);
        drop(socket);
        assert_eq!(report(&tickets).event, Event::Over);
        let counted_now = counted(&tickets);
        assert!(counted_now.held >= 1, "{counted_now:?}");
        assert_eq!(Counters { held: 0, ..counted_now }, Counters::default());
        // Another network is another host, even with the same addresses.
        let connect = "import socket\ns = socket.socket()\ns.settimeout(5)\n\
             try: s.connect(('10.9.0.1', 143))\nexcept ConnectionRefusedError: pass\n";
        tickets.holding().set_destinations([(v4(PORT), None)]).unwrap();
        let script = format!(
            "ip link set lo up && ip address add 10.9.0.1/24 dev lo && python3 -c \"{connect}\""
        );
        run("unshare", &["--net", "sh", "-c", &script]);
        assert_eq!(tickets.holding().reports().unwrap().entries, []);
    }

    fn a_token_that_finds_no_room_is_made_up_for_by_holding(world) {
        let tickets = hold(world);
        let _server = Server::new();
        Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        const IPPROTO_MPTCP: u32 = 262;
        let protocol = rustix::net::Protocol::from_raw(IPPROTO_MPTCP.try_into().unwrap());
        let made = rustix::net::socket(AddressFamily::INET, rustix::net::SocketType::STREAM, Some(protocol));
        let Ok(socket) = made else {
            println!("skipped: this kernel has no MPTCP");
            return;
        };
        begin(ALICE, &socket, v4(PORT));
        let (attempt, connection, syn) = held(&tickets, ALICE);
        assert_eq!(counted(&tickets).no_room, 1);
        gate(&tickets, &connection, attempt, true);
        tickets.holding().sender().unwrap().send(&syn).unwrap();
        end(&socket).unwrap();
    }

    fn a_token_that_is_refused_is_told_with_its_ticket(world) {
        let tickets = hold(world);
        Session::given(&tickets, 7, 8, &key(ALICE, v4(PORT)));
        // No process listens.
        connect(ALICE, &socket_for(v4(PORT)), v4(PORT)).unwrap_err();
        let refused = report(&tickets);
        assert_eq!((refused.event, refused.ticket, refused.uid), (Event::Refused, Some(7), ALICE));
        // A program that gives up is no evidence about the path.
        let server = Server::new();
        lose(&server);
        let socket = socket_for(v4(PORT));
        begin(ALICE, &socket, v4(PORT));
        drop(socket);
        assert_eq!(tickets.holding().reports().unwrap().entries, []);
        let counters = counted(&tickets);
        assert_eq!((counters.refused, counters.failed, counters.held), (1, 2, 0));
    }

    fn a_token_that_is_not_answered_is_given_up(world) {
        let tickets = hold(world);
        let server = Server::new();
        Session::given(&tickets, 7, 8, &key(ALICE, v4(PORT)));
        lose(&server);
        let socket = socket_for(v4(PORT));
        begin(ALICE, &socket, v4(PORT));
        let given_up = report(&tickets);
        assert_eq!((given_up.uid, given_up.ticket), (ALICE, Some(7)));
        let counters = counted(&tickets);
        assert_eq!((counters.written, counters.unanswered, counters.held), (2, 1, 1));
        lose_no_more(&server);
        let Event::Held(Some(syn)) = given_up.event else {
            panic!("{given_up:?}");
        };
        gate(&tickets, &given_up.connection, given_up.attempt, true);
        tickets.holding().sender().unwrap().send(&syn).unwrap();
        end(&socket).unwrap();
        assert_eq!(server.syn().option, None);
    }

    fn a_full_table_holds_and_lets_nothing_go(world) {
        let tickets = hold(world);
        let server = Server::new();
        let holding = tickets.holding();
        let five = (1..=5).map(|port| (v4(1000 + port), None));
        assert!(matches!(holding.set_destinations(five), Err(TicketError::Full)));
        holding.set_destinations([(v4(PORT), None)]).unwrap();
        let sockets: Vec<OwnedFd> = (0..5).map(|_| socket_for(v4(PORT))).collect();
        let mut gated: Vec<ConnectionTuple> = Vec::new();
        for (number, socket) in sockets.iter().enumerate() {
            begin(ALICE, socket, v4(PORT));
            let mut reports = Vec::new();
            eventually("a report", || {
                let fresh = holding.reports().unwrap().entries.into_iter();
                reports.extend(fresh.filter(|report| !gated.contains(&report.connection)));
                !reports.is_empty()
            });
            let (connection, attempt) = (reports[0].connection, reports[0].attempt);
            let outcome = holding.gates().put(&connection, &gating(attempt, true));
            assert_eq!(matches!(outcome, Err(TicketError::Full)), number == 4);
            gated.push(connection);
        }
        for socket in &sockets[..4] {
            end(socket).unwrap();
            server.accept();
        }
        assert!(is_connecting(&sockets[4]));
        // There is room for the fifth connection's gate again.
        holding.gates().remove(&gated[0]).unwrap();
        eventually("it is told of once more", || {
            let mut reports = holding.reports().unwrap().entries.into_iter();
            let again = reports.find(|report| matches!(report.event, Event::Held(_)));
            again.is_some_and(|report| {
                let gate = gating(report.attempt, true);
                holding.gates().put(&report.connection, &gate).is_ok()
            })
        });
        end(&sockets[4]).unwrap();
    }

    fn with_their_holder_gone_connections_are_nobodys(world) {
        let tickets = hold(world);
        let server = Server::new();
        let socket = socket_for(v4(PORT));
        begin(ALICE, &socket, v4(PORT));
        held(&tickets, ALICE);
        drop(tickets);
        end(&socket).unwrap();
        assert_eq!(server.syn().option, None);
    }

    // Threat model: A137
    fn the_sender_sends_what_was_told_of_and_nothing_else(world) {
        let tickets = hold(world);
        let _server = Server::new();
        let socket = socket_for(v4(PORT));
        begin(ALICE, &socket, v4(PORT));
        let (attempt, connection, syn) = held(&tickets, ALICE);
        // The sender of another party's programs, which have not reported this SYN.
        let others = open(world);
        let refused = others.holding().sender().unwrap().send(&syn).unwrap_err();
        assert!(refused.to_string().contains("Operation not permitted"), "{refused}");
        assert_eq!(counted(&others).unsent, 1);
        // That sender does not send the SYN even if its socket is connected.
        assert_eq!(connect_raw_sockets(v4(PORT)), 2 * 16, "one for each mark");
        others.holding().sender().unwrap().send(&syn).unwrap_err();
        assert_eq!(counted(&others).unsent, 2);
        gate(&tickets, &connection, attempt, true);
        tickets.holding().sender().unwrap().send(&syn).unwrap();
        end(&socket).unwrap();
        assert_eq!(counted(&tickets).unsent, 0);
        // Raw sockets of other programs send anything.
        run("python3", &["-c", "import socket\n\
            s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)\n\
            s.sendto(b'anything', ('10.9.0.1', 0))\n"]);
    }

    fn the_sender_sends_no_part_and_nothing_behind_other_headers(world) {
        let tickets = hold(world);
        let _server = Server::new();
        for server in [v4(PORT), v6(PORT)] {
            let socket = socket_for(server);
            begin(ALICE, &socket, server);
            let (attempt, connection, _) = held(&tickets, ALICE);
            let syn = ip(&connection, SYN, &[]);
            let mut forms = if server.is_ipv4() {
                // Fragments: one that others follow, and one that is not the first.
                [0x2000_u16, 0x0001].map(|fragment| {
                    let mut part = syn.clone();
                    part[6..8].copy_from_slice(&fragment.to_be_bytes());
                    part
                }).to_vec()
            } else {
                // The first fragment, an atomic one, and options for the destination.
                vec![
                    extended(&syn, 44, [6, 0, 0, 1, 0, 0, 0, 9]),
                    extended(&syn, 44, [6, 0, 0, 0, 0, 0, 0, 9]),
                    extended(&syn, 60, [6, 0, 1, 4, 0, 0, 0, 0]),
                ]
            };
            // An ACK; and data behind the header.
            forms.push(ip(&connection, SYN | packet::ACK, &[]));
            forms.push([&syn[..], b"data"].concat());
            for form in forms {
                let before = counted(&tickets).unsent;
                assert_eq!(send_by_raw_sockets(&form, server), 0, "{form:?}");
                assert!(counted(&tickets).unsent > before, "{form:?}");
            }
            // The twin: the one raw socket that has the mark of the connection's socket.
            assert_eq!(send_by_raw_sockets(&syn, server), 1);
            gate(&tickets, &connection, attempt, true);
            drop(socket);
            eventually("its end is reported", || {
                let reports = tickets.holding().reports().unwrap().entries;
                reports.iter().any(|report| report.event == Event::Over)
            });
        }
    }
}
