//! Ticket programs: what they leave alone, who holds them, and how they behave under stress.

#[macro_use]
mod world;
mod ticket;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use ticket::*;
use usher_kernel::KernelError;
use usher_kernel::ticket::{Counters, Limits, TicketError, Tickets};
use usher_proto::{TokenKey, TokenSlot};
use usher_system::privileges;
use world::token::Token;
use world::*;

const LEVEL: i32 = 0x5573;
const DRAW: i32 = 1;

fn destination(server: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(server) = server else {
        panic!("of IPv4");
    };
    let mut bytes = server.ip().to_ipv6_mapped().octets().to_vec();
    bytes.extend(server.port().to_be_bytes());
    bytes.extend([0; 2]);
    bytes
}

fn error_of(outcome: std::io::Result<()>) -> i32 {
    outcome.map_or_else(|error| error.raw_os_error().unwrap(), |()| 0)
}

/// The number of kernel log lines about a program that changed a long option value. The kernel logs
/// this once after a boot. Before 6.5, unless patched, the caller gets EFAULT.
fn complaints_of_the_kernel() -> usize {
    let mut log = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")
        .unwrap();
    let (mut record, mut complaints) = ([0; 8192], 0);
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                complaints += usize::from(text.contains("bpf setsockopt: ignoring program buffer"));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return complaints,
            // The oldest lines of the log were overwritten meanwhile.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPIPE)),
        }
    }
}

/// Numbers that differ from run to run; the seed is printed.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = RandomState::new().hash_one(0) | 1;
        println!("seed {seed:#x}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next().to_le_bytes()[3])
    }
}

/// Makes a socket, and connects it from an address.
fn attempt(to: SocketAddr, from: Option<SocketAddr>) -> std::io::Result<OwnedFd> {
    let socket = socket_for(to);
    if let Some(from) = from {
        rustix::net::bind(&socket, &from)?;
    }
    rustix::net::connect(&socket, &to)?;
    Ok(socket)
}

fn connected(to: SocketAddr, from: Option<SocketAddr>) -> OwnedFd {
    attempt(to, from).unwrap()
}

tests! {
    fn options_of_other_levels_are_what_they_were(world) {
        std::fs::write("/proc/sys/net/ipv4/igmp_max_msf", "4000").unwrap();
        let group = Ipv4Addr::new(239, 1, 1, 1);
        let interface = Ipv4Addr::new(10, 9, 0, 1);
        // A list of 2,000 sources (8 KiB), as the kernel returns it afterwards.
        let list = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.join_multicast_v4(&group, &interface).unwrap();
            let mut value = [group.octets(), interface.octets()].concat();
            value.extend(1_u32.to_ne_bytes());
            value.extend(2000_u32.to_ne_bytes());
            for source in 0..2000_u32 {
                value.extend(Ipv4Addr::from(0x0a0a_0000 + source).octets());
            }
            const IP_MSFILTER: i32 = 41;
            set_bytes(&socket, libc::IPPROTO_IP, IP_MSFILTER, &value).unwrap();
            let mut found = value.clone();
            found[16..].fill(0);
            assert_eq!(get_bytes(&socket, libc::IPPROTO_IP, IP_MSFILTER, &mut found), value.len());
            assert!(found == value, "all sources");
        };
        // Short options, long ones, and errors.
        let others = || {
            list();
            let socket = socket(AddressFamily::INET);
            let mut name = vec![0; 8192];
            name[..2].copy_from_slice(b"lo");
            set_bytes(&socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &name).unwrap();
            let mut found = [0; 16];
            let length = get_bytes(&socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &mut found);
            assert_eq!(&found[..length], b"lo\0");
            set(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
            let mut found = [0; 4];
            get_bytes(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut found);
            assert_eq!(i32::from_ne_bytes(found), 1);
            assert_eq!(
                [
                    error_of(set_bytes(&socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &[1])),
                    error_of(set(&socket, libc::SOL_SOCKET, 9999, 1)),
                    error_of(set(&socket, LEVEL + 1, DRAW, 1)),
                    error_of(set_bytes(&socket, 9999, DRAW, &name)),
                ],
                [libc::EINVAL, libc::ENOPROTOOPT, libc::ENOPROTOOPT, libc::ENOPROTOOPT]
            );
        };
        others();
        let tickets = open(world);
        let complaints = complaints_of_the_kernel();
        others();
        assert_eq!(complaints_of_the_kernel(), complaints);
        assert_eq!(tickets.counters().unwrap(), Counters::default());
    }

    fn sockets_that_cannot_carry_a_token_are_told_so(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let datagrams: OwnedFd = UdpSocket::bind("127.0.0.1:0").unwrap().into();
        assert_eq!(draw(ALICE, &datagrams, v4(PORT)), libc::EOPNOTSUPP);
        let (local, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(draw(ALICE, &local.into(), v4(PORT)), libc::EOPNOTSUPP);
        let listener: OwnedFd = server.listener.try_clone().unwrap().into();
        assert_eq!(draw(ALICE, &listener, v4(PORT)), libc::EISCONN);
        let connected = drawn(v4(PORT));
        connect(ALICE, &connected, v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 1);
        assert_eq!(draw(ALICE, &connected, v4(PORT)), libc::EISCONN);
        let mut unsuitable = 4;
        // A connection with several paths is not identified by its endpoints.
        let multipath = rustix::net::Protocol::from_raw(std::num::NonZero::new(262).unwrap());
        let socket = rustix::net::socket_with(
            AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, Some(multipath),
        );
        if let Ok(socket) = socket {
            assert_eq!(draw(ALICE, &socket, v4(PORT)), libc::EOPNOTSUPP);
            connect(ALICE, &socket, v4(PORT)).unwrap();
            assert_eq!(server.syn().option, None);
            unsuitable += 1;
        }
        let socket = socket_for(v4(PORT));
        let good = destination(v4(PORT));
        let mut reserved = good.clone();
        reserved[19] = 1;
        let mut longer = good.clone();
        longer.resize(8192, 0);
        for bad in [&[], &good[..19], &reserved, &longer] {
            let code = as_user(ALICE, || error_of(set_bytes(&socket, LEVEL, DRAW, bad)));
            assert_eq!(code, libc::EINVAL, "{}", bad.len());
        }
        let code = as_user(ALICE, || error_of(set_bytes(&socket, LEVEL, DRAW + 2, &good)));
        assert_eq!(code, libc::ENOPROTOOPT);
        assert_eq!(tickets.next(&key(ALICE, v4(PORT))).unwrap(), Some(1));
        assert_eq!(as_user(ALICE, || error_of(set_bytes(&socket, LEVEL, DRAW, &good))), 0);
        let all = Counters { unsuitable, drawn: 2, written: 1, established: 1, ..Counters::default() };
        assert_eq!(counted(&tickets), all);
    }

    fn with_fast_open_there_is_no_room(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3").unwrap();
        set(&server.listener, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 16).unwrap();
        // The first asks for a cookie, the second has one and sends its data with the SYN.
        for round in 1..=2 {
            let socket = drawn(v4(PORT));
            set(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1).unwrap();
            connect(ALICE, &socket, v4(PORT)).unwrap();
            let mut far = TcpStream::from(socket);
            far.write_all(b"hello").unwrap();
            let (mut near, syn) = server.accept();
            assert_eq!(syn.option, None);
            let mut bytes = [0; 5];
            near.read_exact(&mut bytes).unwrap();
            let all = Counters { drawn: round, no_room: round, ..Counters::default() };
            assert_eq!(counted(&tickets), all);
        }
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 3);
    }

    fn without_the_holder_connections_go_without(world) {
        let server = Server::new();
        let socket = socket_for(v4(PORT));
        assert_eq!(draw(ALICE, &socket, v4(PORT)), libc::ENOPROTOOPT);
        let tickets = open(world);
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let kept = drawn(v4(PORT));
        connect(ALICE, &drawn(v4(PORT)), v4(PORT)).unwrap();
        assert_eq!(session.position(&server.syn()), 2);
        drop(tickets);
        assert_eq!(draw(ALICE, &socket, v4(PORT)), libc::ENOPROTOOPT);
        for socket in [&kept, &socket] {
            connect(ALICE, socket, v4(PORT)).unwrap();
            assert_eq!(server.syn().option, None);
        }
    }

    fn after_loading_no_privilege_is_needed(world) {
        let tickets = open(world);
        let server = Server::new();
        let bob = key(BOB, v4(PORT));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                privileges::become_user(BOB, BOB, &[]).unwrap();
                let session = Session::given(&tickets, 1, 65, &bob);
                let socket = socket_for(v4(PORT));
                usher::draw_token(socket.as_fd(), v4(PORT)).unwrap();
                rustix::net::connect(&socket, &v4(PORT)).unwrap();
                assert_eq!(session.position(&server.syn()), 1);
                assert_eq!(tickets.next(&bob).unwrap(), Some(1));
                assert_eq!(tickets.wanted().unwrap().entries.len(), 1);
                assert!(tickets.drop_block(1, 1).unwrap());
                session.fill_block(&tickets, 1);
                assert_eq!(tickets.counters().unwrap().drawn, 1);
                assert!(tickets.remove(&bob).unwrap());
                // This thread has no privilege left.
                let refused = Tickets::open(&world.cgroup, None, &Limits { tickets: 1, blocks: 1, ..Limits::default() });
                assert!(matches!(refused, Err(KernelError::Bpf { .. })), "{refused:?}");
            }).join().unwrap();
        });
        Tickets::open(&world.cgroup, None, &Limits { tickets: 1, blocks: 1, ..Limits::default() }).unwrap();
    }

    fn full_tables_are_told(world) {
        let tickets = Tickets::open(&world.cgroup, None, &Limits { tickets: 2, blocks: 2, ..Limits::default() }).unwrap();
        let session = Session::new(1, 200);
        for uid in [ALICE, BOB] {
            tickets.put(&key(uid, v4(PORT)), &session.ticket).unwrap();
        }
        let third = tickets.put(&key(0, v4(PORT)), &session.ticket);
        assert!(matches!(third, Err(TicketError::Full)), "{third:?}");
        tickets.put(&key(ALICE, v4(PORT)), &Session::new(2, 1).ticket).unwrap();
        tickets.remove(&key(BOB, v4(PORT))).unwrap();
        tickets.put(&key(0, v4(PORT)), &session.ticket).unwrap();
        let element = [[1; 11]];
        tickets.fill(1, 0, &element).unwrap();
        tickets.fill(1, 1, &element).unwrap();
        let third = tickets.fill(1, 2, &element);
        assert!(matches!(third, Err(TicketError::Full)), "{third:?}");
        tickets.fill(1, 1, &[[1; 11]; 64]).unwrap();
        for size in [0, 65] {
            let wrong = tickets.fill(1, 1, &vec![[1; 11]; size]);
            assert!(matches!(wrong, Err(TicketError::BlockSize)), "{wrong:?}");
        }
    }

    // Threat model: A44
    fn a_user_namespace_makes_nobody_else(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(ALICE, v4(PORT)));
        let strangers = Session::given(&tickets, 2, 8, &key(0, v4(PORT)));
        let value: String =
            destination(v4(PORT)).iter().map(|byte| format!("{byte:02x}")).collect();
        let program = format!(
            "import os, socket\n\
             assert os.getuid() == 0\n\
             s = socket.socket()\n\
             s.setsockopt({LEVEL}, {DRAW}, bytes.fromhex('{value}'))\n\
             s.connect(('10.9.0.1', {PORT}))\n"
        );
        let uid = ALICE.to_string();
        run("setpriv", &[
            "--reuid", &uid, "--regid", &uid, "--clear-groups",
            "unshare", "--user", "--map-root-user", "python3", "-c", &program,
        ]);
        assert_eq!(session.position(&server.syn()), 1);
        // Root of the initial namespace has a ticket and draws from it.
        assert!(Command::new("python3").args(["-c", &program]).status().unwrap().success());
        assert_eq!(strangers.position(&server.syn()), 1);
    }

    // Threat model: A50
    fn a_network_of_its_own_is_another_host(world) {
        let tickets = open(world);
        let server = Server::new();
        let session = Session::given(&tickets, 1, 8, &key(0, v4(PORT)));
        let draw = format!(
            "import socket\n\
             s = socket.socket()\n\
             s.setsockopt({LEVEL}, {DRAW}, bytes.fromhex('{}'))\n",
            destination(v4(PORT)).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        );
        let refused = Command::new("unshare").args(["--net", "python3", "-c", &draw]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("[Errno 2]"), "{said}");
        assert_eq!(tickets.next(&key(0, v4(PORT))).unwrap(), Some(0));
        run("python3", &["-c", &format!("{draw}s.connect(('10.9.0.1', {PORT}))\n")]);
        assert_eq!(session.position(&server.syn()), 1);
    }

    fn a_closed_connections_owner_is_known_to_who_accepts_it(world) {
        let tickets = open(world);
        let server = Server::new();
        let owner = |uid, to| {
            as_user(uid, || drop(connected(to, None)));
            let (accepted, from) = server.listener.accept().unwrap();
            let noted = tickets.relayed().owner(accepted.as_fd()).unwrap();
            // The kernel itself does not know any more.
            let asked = usher_system::connections::owner(from, accepted.local_addr().unwrap());
            assert_eq!(asked.unwrap(), None);
            noted
        };
        tickets.relayed().set([v4(PORT)]).unwrap();
        for uid in [ALICE, BOB, 0] {
            assert_eq!(owner(uid, v4(PORT)), Some(uid));
        }
        // Other addresses are not the proxy's.
        assert_eq!(owner(ALICE, v6(PORT)), None);
        tickets.relayed().set([v6(PORT)]).unwrap();
        assert_eq!(owner(ALICE, v6(PORT)), Some(ALICE));
        assert_eq!(owner(ALICE, v4(PORT)), None);
    }

    // Threat model: A57
    fn endpoints_of_two_users_in_a_row_have_no_owner(world) {
        let tickets = open(world);
        tickets.relayed().set([v4(PORT)]).unwrap();
        // Bob's connection is refused, so nobody accepts it.
        let refused = as_user(BOB, || attempt(v4(PORT), Some(v4(40_000))).unwrap_err());
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        as_user(ALICE, || attempt(v4(PORT), Some(v4(40_001))).unwrap_err());
        let server = Server::new();
        for (port, owner) in [(40_000, None), (40_001, Some(ALICE)), (40_002, Some(ALICE))] {
            as_user(ALICE, || drop(connected(v4(PORT), Some(v4(port)))));
            let (accepted, _) = server.listener.accept().unwrap();
            assert_eq!(tickets.relayed().owner(accepted.as_fd()).unwrap(), owner, "{port}");
        }
    }

    // Threat model: A57
    fn another_networks_connection_does_not_touch_an_owner(world) {
        let tickets = open(world);
        tickets.relayed().set([v4(PORT)]).unwrap();
        let elsewhere = format!(
            "ip link set lo up && ip address add 10.9.0.1/32 dev lo && python3 -c \
             'import socket; s = socket.socket(); s.bind((\"10.9.0.1\", 40000)); \
             print(s.connect_ex((\"10.9.0.1\", {PORT})))'"
        );
        let output = Command::new("unshare").args(["--net", "sh", "-c", &elsewhere]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "111\n", "{output:?}");
        let server = Server::new();
        as_user(ALICE, || drop(connected(v4(PORT), Some(v4(40_000)))));
        let (accepted, _) = server.listener.accept().unwrap();
        assert_eq!(tickets.relayed().owner(accepted.as_fd()).unwrap(), Some(ALICE));
    }

    fn the_option_is_what_the_protocol_says_for_any_connection(world) {
        run("ip", &["-6", "route", "add", "local", "fd00:9::/64", "dev", "lo"]);
        std::fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
        let tickets = open(world);
        let mut random = Random::new();
        let count = rounds(300);
        for number in 1..=count {
            let server = Server::at(0);
            let port = server.listener.local_addr().unwrap().port();
            let mut address = |port| if number % 2 == 0 {
                let [a, b, c] = random.bytes();
                SocketAddr::from((Ipv4Addr::new(127, a, b, c | 1), port))
            } else {
                let bytes: [u8; 8] = random.bytes();
                let bits = 0xfd00_0009 << 96 | u128::from(u64::from_le_bytes(bytes) | 1);
                SocketAddr::from((Ipv6Addr::from_bits(bits), port))
            };
            let (from, to) = (address(0), address(port));
            let alice = key(ALICE, to);
            let mut session = Session::new(number, 1);
            session.ticket.key = TokenKey::from_bytes(random.bytes());
            session.ticket.slot = TokenSlot::new(random.next() as u32 >> 8).unwrap();
            session.ticket.next = random.next() as u32 >> 12;
            let elements: [[u8; 11]; 64] = std::array::from_fn(|_| random.bytes());
            tickets.fill(number, session.ticket.next / 64, &elements).unwrap();
            tickets.put(&alice, &session.ticket).unwrap();
            let socket = drawn(to);
            rustix::net::bind(&socket, &from).unwrap();
            connect(ALICE, &socket, to).unwrap();
            let syn = server.syn();
            assert_eq!((syn.connection.client.ip(), syn.connection.server), (from.ip(), to));
            let token = Token {
                slot: session.ticket.slot,
                position: (session.ticket.next + 1).to_le_bytes()[0],
                element: elements[session.ticket.next as usize % 64],
            };
            let expected = token.encode(session.ticket.key.as_bytes(), &syn.connection);
            assert_eq!(syn.option, Some(expected), "{syn:?}");
            tickets.remove(&alice).unwrap();
            tickets.drop_block(number, session.ticket.next / 64).unwrap();
        }
        let count = u64::from(count);
        let all = Counters { drawn: count, written: count, established: count, ..Counters::default() };
        assert_eq!(counted(&tickets), all);
    }

    // Threat model: A44
    fn a_draw_never_returns_another_users_token(world) {
        // The tables are so small that memory passes from one user's ticket to the other's at once.
        let tickets = Tickets::open(&world.cgroup, None, &Limits { tickets: 2, blocks: 4, ..Limits::default() }).unwrap();
        let server = Server::new();
        let stop = AtomicBool::new(false);
        let users = [ALICE, BOB];
        let count = rounds(300) as usize;
        std::thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                let mut sessions = HashMap::new();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    for uid in users {
                        number += 1;
                        let mut session = Session::new(number, 64);
                        session.ticket.slot = TokenSlot::new(number).unwrap();
                        session.fill(&tickets);
                        tickets.put(&key(uid, v4(PORT)), &session.ticket).unwrap();
                        sessions.insert(number, (uid, session));
                    }
                    for (uid, gone) in users.into_iter().zip(number - 1..) {
                        tickets.remove(&key(uid, v4(PORT))).unwrap();
                        tickets.drop_block(gone, 0).unwrap();
                    }
                }
                sessions
            });
            let drawing = users.map(|uid| scope.spawn(move || as_user(uid, || {
                let mut streams = Vec::new();
                while streams.len() < count {
                    let socket = socket_for(v4(PORT));
                    if usher::draw_token(socket.as_fd(), v4(PORT)).is_ok() {
                        rustix::net::connect(&socket, &v4(PORT)).unwrap();
                        streams.push(TcpStream::from(socket));
                    }
                }
                streams
            })));
            let syns: Vec<_> = (0..2 * count).map(|_| server.syn()).collect();
            // The connections stay open until all are made, so no port is used twice.
            let streams = drawing.map(|thread| thread.join().unwrap());
            let owners: HashMap<_, _> = users.into_iter().zip(&streams)
                .flat_map(|(uid, streams)| streams.iter().map(move |stream| (stream.local_addr().unwrap().port(), uid)))
                .collect();
            assert_eq!(owners.len(), 2 * count);
            stop.store(true, Ordering::Relaxed);
            let sessions = replacing.join().unwrap();
            let mut spent = std::collections::HashSet::new();
            for syn in &syns {
                let [slot @ .., _] = *syn.option.unwrap().first_chunk::<4>().unwrap();
                let number = u32::from_be_bytes([0, slot[0], slot[1], slot[2]]);
                let (uid, session) = &sessions[&number];
                let position = session.position(syn);
                assert_eq!(owners[&syn.connection.client.port()], *uid);
                assert!(spent.insert((number, position)));
            }
        });
    }
}
