//! The destinations to which the processes of services may connect.
//!
//! Threat model: A70

#[macro_use]
mod world;
mod destination;
mod ownership;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use destination::*;
use libbpf_rs::{MapCore, MapHandle};
use ownership::{call, ring};
use rustix::net::{AddressFamily, Protocol, SocketType};
use usher_kernel::KernelError;
use usher_kernel::cgroup::Group;
use usher_kernel::destinations::Destinations;
use world::*;

const REFUSED: i32 = libc::EACCES;

fn to(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A struct sockaddr.
fn raw(address: SocketAddr) -> Vec<u8> {
    let mut bytes = match address {
        SocketAddr::V4(_) => (libc::AF_INET as u16).to_ne_bytes().to_vec(),
        SocketAddr::V6(_) => (libc::AF_INET6 as u16).to_ne_bytes().to_vec(),
    };
    bytes.extend(address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            bytes.extend(address.ip().octets());
            bytes.extend([0; 8]);
        }
        SocketAddr::V6(address) => {
            bytes.extend([0; 4]);
            bytes.extend(address.ip().octets());
            bytes.extend([0; 4]);
        }
    }
    bytes
}

fn outcome(result: io::Result<i64>) -> i32 {
    result.map_or_else(|error| error.raw_os_error().unwrap(), |_| 0)
}

/// Plain sendto(2).
fn send_raw(socket: &OwnedFd, address: &[u8], flags: i32) -> i32 {
    let byte = [b'x'];
    let (data, to) = (byte.as_ptr() as i64, address.as_ptr() as i64);
    let arguments = [
        socket.as_raw_fd().into(),
        data,
        1,
        flags.into(),
        to,
        address.len() as i64,
    ];
    outcome(call(libc::SYS_sendto, &arguments))
}

/// sendmsg(2), or sendmmsg(2) of one message.
fn send_message(socket: &OwnedFd, address: &mut [u8], several: bool) -> i32 {
    let mut byte = [b'x'];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: a structure of numbers and pointers, which may be null.
    let mut messages: libc::mmsghdr = unsafe { std::mem::zeroed() };
    messages.msg_hdr.msg_name = address.as_mut_ptr().cast();
    messages.msg_hdr.msg_namelen = address.len() as u32;
    messages.msg_hdr.msg_iov = &raw mut part;
    messages.msg_hdr.msg_iovlen = 1;
    let (socket, message) = (socket.as_raw_fd().into(), &raw mut messages as i64);
    outcome(if several {
        call(libc::SYS_sendmmsg, &[socket, message, 1, 0])
    } else {
        call(libc::SYS_sendmsg, &[socket, message, 0])
    })
}

/// Every way to name a peer, each also in the form for an IPv6 socket.
fn every_way(address: SocketAddr) -> Vec<(String, i32)> {
    let mut found = Vec::new();
    let mut add = |what: &str, outcome| found.push((format!("{what} {address}"), outcome));
    let kind = |kind, protocol| socket(family(address), kind, protocol);
    let datagram = || kind(SocketType::DGRAM, None);
    let stream = || kind(SocketType::STREAM, None);
    add("connect by TCP", tcp(address));
    add("connect by UDP", udp(address));
    add("sendto", send(address));
    add(
        "sendmsg",
        send_message(&datagram(), &mut raw(address), false),
    );
    add(
        "sendmmsg",
        send_message(&datagram(), &mut raw(address), true),
    );
    add(
        "sendto with Fast Open",
        send_raw(&stream(), &raw(address), libc::MSG_FASTOPEN),
    );
    let waiting = stream();
    rustix::io::ioctl_fionbio(&waiting, true).unwrap();
    let begun = code(rustix::net::connect(&waiting, &address));
    add(
        "connect without waiting",
        if begun == libc::EINPROGRESS { 0 } else { begun },
    );
    let deferred = stream();
    let on = 1_i32;
    let option = [
        deferred.as_raw_fd().into(),
        libc::IPPROTO_TCP.into(),
        libc::TCP_FASTOPEN_CONNECT.into(),
        &raw const on as i64,
        4,
    ];
    call(libc::SYS_setsockopt, &option).unwrap();
    add(
        "connect with Fast Open",
        code(rustix::net::connect(&deferred, &address)),
    );
    let multipath = Protocol::from_raw(262_u32.try_into().unwrap());
    match rustix::net::socket(family(address), SocketType::STREAM, Some(multipath)) {
        Ok(socket) => add(
            "connect by MPTCP",
            code(rustix::net::connect(&socket, &address)),
        ),
        Err(error) => println!("skipped: MPTCP: {error}"),
    }
    // The process itself submits, or the ring's own thread does.
    for flags in [0, ring::SETUP_SQPOLL] {
        match ring::Ring::new(flags) {
            Ok(ring) => {
                let mut connect = |kind: OwnedFd, what: &str| {
                    add(what, -ring.connect(kind.as_raw_fd(), &raw(address)));
                };
                connect(stream(), "connect by io_uring and TCP");
                connect(datagram(), "connect by io_uring and UDP");
            }
            Err(error) => println!("skipped: io_uring: {error}"),
        }
    }
    found
}

tests! {
    fn every_way_to_name_a_peer_is_governed(world) {
        run("ip", &["address", "add", "fd09::1/128", "dev", "lo", "nodad"]);
        let listen = |text| TcpListener::bind(to(text)).unwrap();
        let _listeners = ["10.9.0.1:7000", "10.9.0.1:7001", "[fd09::1]:7000", "[fd09::1]:7001"].map(listen);
        let _ports = ["10.9.0.1:7000", "10.9.0.1:7001", "[fd09::1]:7000", "[fd09::1]:7001"]
            .map(|text| UdpSocket::bind(to(text)).unwrap());
        let destinations = open(world);
        restrict(&destinations, &[(FIRST, "10.9.0.1 port 7000, fd09::1 port 6999 - 7000")]);
        let all = |port: u16| {
            let v4 = SocketAddr::new("10.9.0.1".parse().unwrap(), port);
            let v6 = SocketAddr::new("fd09::1".parse().unwrap(), port);
            [v4, v6, mapped(v4)].into_iter().flat_map(every_way).collect::<Vec<_>>()
        };
        for (what, outcome) in [all(7000), all(7001)].concat() {
            assert_eq!(outcome, 0, "not a process of the service: {what}");
        }
        enter(world, &destinations, "s-1", FIRST);
        for (what, outcome) in all(7000) {
            assert_eq!(outcome, 0, "{what}");
        }
        let refused = all(7001);
        for (what, outcome) in &refused {
            assert_eq!(*outcome, REFUSED, "{what}");
        }
        assert_eq!(destinations.counters().unwrap().connect_refused, refused.len() as u64);
    }

    /// udp_sendmsg() treats an address without a family as IPv4, and an IPv6 socket accepts an IPv4
    /// address.
    fn an_address_of_another_family_is_governed(world) {
        let receiver = UdpSocket::bind(to("10.9.0.1:7001")).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let destinations = open(world);
        enter(world, &destinations, "s-1", FIRST);
        let ways = || {
            let mut without = raw(to("10.9.0.1:7001"));
            without[..2].copy_from_slice(&[0, 0]);
            let v4 = socket(AddressFamily::INET, SocketType::DGRAM, None);
            let v6 = socket(AddressFamily::INET6, SocketType::DGRAM, None);
            let as_v4 = raw(to("10.9.0.1:7001"));
            [send_raw(&v4, &without, 0), send_raw(&v6, &as_v4, 0), code(rustix::net::connect(&v6, &to("10.9.0.1:7001")))]
        };
        assert_eq!(ways(), [0; 3]);
        restrict(&destinations, &[(FIRST, "10.9.0.1 port 7000, ::/0")]);
        assert_eq!(ways(), [REFUSED; 3]);
        let mut byte = [0];
        assert_eq!([(); 3].map(|()| receiver.recv(&mut byte).is_ok()), [true, true, false]);
    }

    fn zeros_are_no_way_to_this_host(world) {
        let _listener = TcpListener::bind(to("[::]:7000")).unwrap();
        let destinations = open(world);
        enter(world, &destinations, "s-1", FIRST);
        let zeros = ["0.0.0.0:7000", "[::]:7000", "[::ffff:0.0.0.0]:7000"].map(to);
        assert_eq!(zeros.map(tcp), [0; 3]);
        assert_eq!(zeros.map(udp), [0; 3]);
        restrict(&destinations, &[(FIRST, "0.0.0.0/0, ::/0")]);
        assert_eq!(zeros.map(tcp), [REFUSED; 3]);
        assert_eq!(zeros.map(udp), [REFUSED; 3]);
        assert_eq!(zeros.map(send), [REFUSED; 3]);
        assert_eq!(["127.0.0.1:7000", "[::1]:7000", "[::ffff:127.0.0.1]:7000"].map(to).map(tcp), [0; 3]);
    }

    fn other_protocols_are_not_to_be_had(world) {
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
        let destinations = open(world);
        enter(world, &destinations, "s-1", FIRST);
        const UDPLITE: u32 = 136;
        const ICMP: [u32; 2] = [1, 58];
        const SCTP: u32 = 132;
        let make = |family, kind, protocol: u32| {
            let protocol = Protocol::from_raw(protocol.try_into().unwrap());
            code(rustix::net::socket(family, kind, Some(protocol)))
        };
        let all = || {
            let (v4, v6) = (AddressFamily::INET, AddressFamily::INET6);
            let (packets, raw) = (SocketType::DGRAM, SocketType::RAW);
            vec![
                make(v4, packets, ICMP[0]), make(v6, packets, ICMP[1]), make(v4, raw, 255), make(v6, raw, 255),
                make(v4, packets, UDPLITE), make(v6, packets, UDPLITE), make(v4, SocketType::STREAM, SCTP),
            ]
        };
        let before = all();
        // Some kernels have dropped UDP-Lite, and not all have SCTP.
        assert_eq!(before[..4], [0; 4]);
        restrict(&destinations, &[(FIRST, "0.0.0.0/0, ::/0")]);
        for (before, after) in before.into_iter().zip(all()) {
            assert_eq!(after, if before == 0 { REFUSED } else { before });
        }
        // Local sockets have no destinations.
        rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
    }

    fn each_process_is_its_services(world) {
        let destinations = open(world);
        restrict(&destinations, &[(FIRST, "10.9.0.1"), (SECOND, "10.9.0.2")]);
        let both = || ["10.9.0.1:9", "10.9.0.2:9"].map(to).map(udp);
        assert_eq!(both(), [0, 0], "nobody's");
        let made_before = socket(AddressFamily::INET, SocketType::DGRAM, None);
        enter(world, &destinations, "first-1", FIRST);
        assert_eq!(both(), [0, REFUSED]);
        // A socket that was made before the process entered the group.
        assert_eq!(code(rustix::net::connect(&made_before, &to("10.9.0.2:9"))), REFUSED);
        let made_here = socket(AddressFamily::INET, SocketType::DGRAM, None);
        let second = enter(world, &destinations, "second-1", SECOND);
        assert_eq!(both(), [REFUSED, 0]);
        assert_eq!(code(rustix::net::connect(&made_here, &to("10.9.0.1:9"))), REFUSED);
        // Adopted processes live in a group below.
        Group::create(second.path(), "guest-1").unwrap().move_self().unwrap();
        assert_eq!(both(), [REFUSED, 0]);
        // A child process, also as another user and in its own namespaces.
        let script = "import socket\nfor a in ('10.9.0.1', '10.9.0.2'):\n try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((a, 9)); print('connected')\n except OSError as e: print(e.errno)";
        for prefix in [&["setpriv", "--reuid=61001", "--clear-groups"][..], &["unshare", "--cgroup", "--mount", "--pid", "--fork"]] {
            let output = Command::new(prefix[0]).args(&prefix[1..]).args(["/usr/bin/python3", "-c", script]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(text, "13\nconnected\n", "{}", String::from_utf8_lossy(&output.stderr));
        }
        enter(world, &destinations, "third-1", 9);
        assert_eq!(both(), [0, 0], "a service without `connect`");
        group(world, "nobody").move_self().unwrap();
        assert_eq!(both(), [0, 0], "nobody's again");
    }

    fn a_change_governs_processes_that_run_and_connections_stay(world) {
        let listener = TcpListener::bind(to("10.9.0.1:7000")).unwrap();
        let destinations = open(world);
        enter(world, &destinations, "s-1", FIRST);
        let ask = || ["10.9.0.1:7000", "10.9.0.1:7001"].map(to).map(udp);
        restrict(&destinations, &[(FIRST, "10.9.0.1 port 7000")]);
        assert_eq!(ask(), [0, REFUSED]);
        let stream = std::net::TcpStream::connect(to("10.9.0.1:7000")).unwrap();
        restrict(&destinations, &[(FIRST, "10.9.0.1 port 7001")]);
        assert_eq!(ask(), [REFUSED, 0]);
        io::Write::write_all(&mut &stream, b"x").unwrap();
        let (accepted, _) = listener.accept().unwrap();
        io::Read::read_exact(&mut &accepted, &mut [0]).unwrap();
        restrict(&destinations, &[(FIRST, "none")]);
        assert_eq!(ask(), [REFUSED, REFUSED]);
        restrict(&destinations, &[(FIRST, "0.0.0.0/0")]);
        assert_eq!(ask(), [0, 0]);
        restrict(&destinations, &[(SECOND, "none")]);
        assert_eq!(ask(), [0, 0]);
    }

    fn what_is_in_force_stays_so_without_its_keeper(world) {
        let destinations = open(world);
        enter(world, &destinations, "s-1", FIRST);
        restrict(&destinations, &[(FIRST, "10.9.0.1")]);
        let ask = || ["10.9.0.1:9", "10.9.0.2:9"].map(to).map(udp);
        assert_eq!(ask(), [0, REFUSED]);
        assert!(Destinations::open(&world.pins, &world.cgroup).is_err(), "a second keeper");
        drop(destinations);
        assert_eq!(ask(), [0, REFUSED]);
        let destinations = open(world);
        assert_eq!(ask(), [0, REFUSED]);
        assert_eq!(destinations.counters().unwrap().connect_refused, 3);
        // Each call is counted once, although the programs were attached twice.
        restrict(&destinations, &[]);
        assert_eq!(ask(), [0, 0]);
    }

    fn only_what_differs_is_put_in_force_anew(world) {
        let destinations = open(world);
        let table = |service: u32| {
            let map = MapHandle::from_pinned_path(world.pins.join("permitted")).unwrap();
            map.lookup(&service.to_ne_bytes(), libbpf_rs::MapFlags::ANY).unwrap().unwrap()
        };
        restrict(&destinations, &[(FIRST, "10.9.0.1"), (SECOND, "none")]);
        let (first, second) = (table(FIRST), table(SECOND));
        restrict(&destinations, &[(FIRST, "10.9.0.1"), (SECOND, "10.9.0.2")]);
        assert_eq!(table(FIRST), first);
        assert_ne!(table(SECOND), second);
        // A restriction that was lifted meanwhile is put in force anew.
        restrict(&destinations, &[(SECOND, "10.9.0.2")]);
        restrict(&destinations, &[(FIRST, "10.9.0.1"), (SECOND, "10.9.0.2")]);
        assert_ne!(table(FIRST), first);
        enter(world, &destinations, "s-1", FIRST);
        assert_eq!(["10.9.0.1:9", "10.9.0.2:9"].map(to).map(udp), [0, REFUSED]);
    }

    fn a_full_table_of_groups_refuses_until_one_has_gone(world) {
        let destinations = open(world);
        destinations.govern(&group(world, "s-1"), FIRST).unwrap();
        let map = MapHandle::from_pinned_path(world.pins.join("governed")).unwrap();
        // Fills all remaining places with groups that never exist.
        let others = map.max_entries() - 1;
        let gone = |number: u32| u64::MAX - u64::from(number);
        let keys: Vec<u8> = (0..others).flat_map(|number| gone(number).to_ne_bytes()).collect();
        let values: Vec<u8> = (0..others).flat_map(|_| SECOND.to_ne_bytes()).collect();
        let any = libbpf_rs::MapFlags::ANY;
        map.update_batch(&keys, &values, others, any, any).unwrap();

        let full = destinations.govern(&group(world, "s-2"), FIRST);
        assert!(matches!(full, Err(KernelError::Full(_))), "{full:?}");
        // An existing group needs no room.
        destinations.govern(&group(world, "s-1"), SECOND).unwrap();
        map.delete(&gone(0).to_ne_bytes()).unwrap();
        destinations.govern(&group(world, "s-2"), FIRST).unwrap();
    }

    fn groups_that_are_gone_are_forgotten(world) {
        let destinations = open(world);
        for (name, service) in [("stays", FIRST), ("goes", SECOND)] {
            destinations.govern(&group(world, name), service).unwrap();
        }
        let known = || {
            let map = MapHandle::from_pinned_path(world.pins.join("governed")).unwrap();
            let mut services: Vec<Vec<u8>> =
                map.keys().map(|key| map.lookup(&key, libbpf_rs::MapFlags::ANY).unwrap().unwrap()).collect();
            services.sort();
            services
        };
        let number = |service: u32| service.to_ne_bytes().to_vec();
        assert_eq!(known(), [number(FIRST), number(SECOND)]);
        group(world, "goes").remove().unwrap();
        drop(destinations);
        let _destinations = open(world);
        assert_eq!(known(), [number(FIRST)]);
    }
}
