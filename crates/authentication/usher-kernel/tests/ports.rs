//! TCP ports may be bound by their users only.
//!
//! Threat model: A78

#[macro_use]
mod world;
mod ticket;

use std::net::{SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use ticket::as_user;
use usher_kernel::KernelError;
use usher_kernel::ports::{Ports, Reserved};
use world::*;

fn reserved(address: Option<&str>, port: u16, uid: u32) -> Reserved {
    Reserved {
        address: address.map(|address| address.parse().unwrap()),
        port,
        uid,
    }
}

/// The errno of binding; 0: bound.
fn bind(uid: u32, kind: SocketType, address: &str) -> i32 {
    let address: SocketAddr = address.parse().unwrap();
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    as_user(uid, || rustix::net::bind(&socket, &address))
        .map_or_else(|error| error.raw_os_error(), |()| 0)
}

fn tcp(uid: u32, address: &str) -> i32 {
    bind(uid, SocketType::STREAM, address)
}

tests! {
    fn a_port_is_bound_by_its_owner_and_root_at_every_address(world) {
        let ports = Ports::open(&world.cgroup).unwrap();
        let everywhere = ["0.0.0.0:8025", "10.9.0.1:8025", "127.0.0.1:8025", "[::]:8025", "[::1]:8025",
            "[::ffff:0.0.0.0]:8025", "[::ffff:10.9.0.1]:8025"];
        let all = |uid| everywhere.map(|address| tcp(uid, address));
        assert_eq!(all(BOB), [0; 7]);
        ports.apply([reserved(None, 8025, ALICE)]).unwrap();
        assert_eq!(all(ALICE), [0; 7]);
        assert_eq!(all(0), [0; 7]);
        assert_eq!(all(BOB), [libc::EACCES; 7]);
        assert_eq!(ports.counters().unwrap().port_refused, 7);
        // Other ports, and the port of another protocol, are open to all users.
        assert_eq!(tcp(BOB, "0.0.0.0:8026"), 0);
        assert_eq!(tcp(BOB, "0.0.0.0:0"), 0);
        assert_eq!(bind(BOB, SocketType::DGRAM, "0.0.0.0:8025"), 0);
        assert_eq!(ports.counters().unwrap().port_refused, 7);
        // A refusal releases the port.
        assert_eq!(all(ALICE), [0; 7]);
    }

    fn a_port_at_one_address_is_reserved_there_and_for_all_at_once(world) {
        let ports = Ports::open(&world.cgroup).unwrap();
        ports.apply([reserved(Some("127.0.1.1"), 8025, ALICE), reserved(Some("fd00::7"), 8026, 0)]).unwrap();
        run("ip", &["address", "add", "fd00::7/128", "dev", "lo", "nodad"]);
        for kept in ["127.0.1.1:8025", "[::ffff:127.0.1.1]:8025", "0.0.0.0:8025", "[::]:8025"] {
            assert_eq!([tcp(BOB, kept), tcp(ALICE, kept), tcp(0, kept)], [libc::EACCES, 0, 0], "{kept}");
        }
        for kept in ["[fd00::7]:8026", "[::]:8026", "0.0.0.0:8026"] {
            assert_eq!([tcp(BOB, kept), tcp(ALICE, kept), tcp(0, kept)], [libc::EACCES, libc::EACCES, 0], "{kept}");
        }
        for free in ["127.0.1.2:8025", "10.9.0.1:8025", "[::1]:8025", "[::1]:8026", "127.0.1.1:8026"] {
            assert_eq!(tcp(BOB, free), 0, "{free}");
        }
    }

    fn whose_a_port_is_may_change_and_end(world) {
        let ports = Ports::open(&world.cgroup).unwrap();
        let outcome = |address| [tcp(ALICE, address), tcp(BOB, address)];
        ports.apply([reserved(None, 8025, ALICE), reserved(Some("127.0.1.1"), 8026, ALICE)]).unwrap();
        assert_eq!(outcome("0.0.0.0:8025"), [0, libc::EACCES]);
        assert_eq!(outcome("127.0.1.1:8026"), [0, libc::EACCES]);
        ports.apply([reserved(None, 8025, BOB), reserved(Some("127.0.1.1"), 8026, BOB)]).unwrap();
        assert_eq!(outcome("0.0.0.0:8025"), [libc::EACCES, 0]);
        assert_eq!(outcome("127.0.1.1:8026"), [libc::EACCES, 0]);
        // One port with two owners at two addresses: only root may bind both.
        ports.apply([reserved(Some("127.0.1.1"), 8026, BOB), reserved(Some("127.0.1.2"), 8026, ALICE)]).unwrap();
        assert_eq!(outcome("127.0.1.1:8026"), [libc::EACCES, 0]);
        assert_eq!(outcome("127.0.1.2:8026"), [0, libc::EACCES]);
        assert_eq!(outcome("0.0.0.0:8026"), [libc::EACCES; 2]);
        assert_eq!(outcome("0.0.0.0:8025"), [0, 0]);
        ports.apply([]).unwrap();
        assert_eq!(outcome("127.0.1.1:8026"), [0, 0]);
        ports.apply([reserved(None, 8025, ALICE)]).unwrap();
        drop(ports);
        assert_eq!(outcome("0.0.0.0:8025"), [0, 0]);
    }

    fn former_addresses_make_room_for_new_ones(world) {
        const ROOM: u32 = 16_384;
        let ports = Ports::open(&world.cgroup).unwrap();
        let of = |addresses: std::ops::Range<u32>, port| {
            let first = u32::from(std::net::Ipv4Addr::new(127, 1, 0, 0));
            addresses.map(move |number| Reserved {
                address: Some(std::net::Ipv4Addr::from(first + number).into()),
                port,
                uid: ALICE,
            })
        };
        ports.apply(of(0..ROOM, 8025)).unwrap();
        assert_eq!(tcp(BOB, "127.1.0.0:8025"), libc::EACCES);
        // As many other addresses.
        ports.apply(of(ROOM..2 * ROOM, 8025)).unwrap();
        assert_eq!(tcp(BOB, "127.1.0.0:8025"), 0);
        assert_eq!(tcp(BOB, "127.1.64.0:8025"), libc::EACCES);
        // One address too many, and a port at all addresses.
        let too_many = of(0..ROOM + 1, 8025).chain([reserved(None, 8026, ALICE)]);
        assert!(matches!(ports.apply(too_many), Err(KernelError::Full(_))));
        assert_eq!(tcp(BOB, "127.1.0.0:8025"), libc::EACCES);
        assert_eq!(tcp(BOB, "0.0.0.0:8026"), libc::EACCES);
        assert_eq!(tcp(BOB, "127.1.64.1:8025"), 0);
    }

    /// The kernel chooses among few ports, and all but one are reserved.
    fn a_reserved_port_is_not_had_by_chance(world) {
        let ports = Ports::open(&world.cgroup).unwrap();
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40003").unwrap();
        let (mut had, mut refused) = (0, 0);
        for free in 40000..=40003 {
            let kept = (40000..=40003).filter(|port| *port != free);
            ports.apply(kept.map(|port| reserved(None, port, 0))).unwrap();
            for _ in 0..50 {
                match as_user(BOB, || TcpListener::bind("127.0.0.1:0")) {
                    Ok(listener) => {
                        assert_eq!(listener.local_addr().unwrap().port(), free);
                        had += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
                        refused += 1;
                    }
                }
            }
        }
        assert_eq!(ports.counters().unwrap().port_refused, refused);
        assert!(had > 0 && refused > 0, "{had} {refused}");
    }

    fn other_namespaces_and_processes_are_left_alone(world) {
        let ports = Ports::open(&world.cgroup).unwrap();
        ports.apply([reserved(None, 8025, 0)]).unwrap();
        assert_eq!(tcp(BOB, "0.0.0.0:8025"), libc::EACCES);
        let elsewhere = as_network_of_its_own(|| tcp(BOB, "0.0.0.0:8025"));
        assert_eq!(elsewhere, 0);
    }
}

/// Runs `body` in a thread with a new network namespace.
fn as_network_of_its_own(body: impl FnOnce() -> i32 + Send) -> i32 {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a new namespace for this thread; no pointers.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            body()
        });
        thread.join().unwrap()
    })
}
