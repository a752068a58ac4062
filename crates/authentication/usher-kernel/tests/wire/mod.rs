//! Packets of every form on a wire: a veth pair whose far end is in another network namespace,
//! where a raw socket stands for the client.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc::channel;

use usher_base::ConnectionTuple;

use crate::forge::{checksum, segment};
use crate::world::{PORT, World, eventually, run};

const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Where check_token reads a form.
#[derive(Clone, Copy)]
enum Read {
    Everywhere,
    /// Only at LOCAL_IN.
    Arriving,
    Nowhere,
}
use Read::{Arriving, Everywhere, Nowhere};

impl Form {
    /// Whether check_token reads packets of this form in this world.
    pub fn is_read(&self, world: &World) -> bool {
        match self.read {
            Everywhere => true,
            Arriving => !world.at_interfaces,
            Nowhere => false,
        }
    }
}

/// A way to send a TCP segment.
pub struct Form {
    pub name: &'static str,
    read: Read,
    pub family: u8,
    /// The frames that carry the segment, without Ethernet addresses.
    frames: fn(&ConnectionTuple, &[u8]) -> Vec<Vec<u8>>,
}

const fn form(
    name: &'static str,
    read: Read,
    family: u8,
    frames: fn(&ConnectionTuple, &[u8]) -> Vec<Vec<u8>>,
) -> Form {
    Form {
        name,
        read,
        family,
        frames,
    }
}

/// The usual form of each family.
pub const PLAIN: [Form; 2] = [
    form("IPv4", Everywhere, 4, |ends, tcp| {
        vec![v4(ends, 0, &[], tcp)]
    }),
    form("IPv6", Everywhere, 6, |ends, tcp| vec![v6(ends, TCP, tcp)]),
];

/// Other forms, all of which the kernel accepts.
pub const FORMS: [Form; 15] = [
    form("IPv4 options", Everywhere, 4, |ends, tcp| {
        vec![v4(ends, 0, &[1, 1, 1, 0], tcp)]
    }),
    form("IPv4 fragments", Arriving, 4, |ends, tcp| {
        let cut = (tcp.len() - 4) & !7;
        vec![
            v4(ends, 0x2000, &[], &tcp[..cut]),
            v4(ends, cut as u16 / 8, &[], &tcp[cut..]),
        ]
    }),
    form(
        "IPv4 fragments, the last first",
        Arriving,
        4,
        |ends, tcp| {
            vec![
                v4(ends, 1, &[], &tcp[8..]),
                v4(ends, 0x2000, &[], &tcp[..8]),
            ]
        },
    ),
    form("one VLAN tag", Everywhere, 4, |ends, tcp| {
        vec![tagged(1, &v4(ends, 0, &[], tcp))]
    }),
    form("two VLAN tags", Everywhere, 4, |ends, tcp| {
        vec![tagged(2, &v4(ends, 0, &[], tcp))]
    }),
    form("two VLAN tags, IPv6", Everywhere, 6, |ends, tcp| {
        vec![tagged(2, &v6(ends, TCP, tcp))]
    }),
    form("eight VLAN tags", Arriving, 4, |ends, tcp| {
        vec![tagged(8, &v4(ends, 0, &[], tcp))]
    }),
    form("hop-by-hop options", Everywhere, 6, |ends, tcp| {
        vec![v6(ends, HOP_BY_HOP, &[&PADDING[..], tcp].concat())]
    }),
    form("destination options", Everywhere, 6, |ends, tcp| {
        vec![v6(ends, DESTINATION, &[&PADDING[..], tcp].concat())]
    }),
    form("long destination options", Everywhere, 6, |ends, tcp| {
        // A kind for experiments, which the kernel skips.
        let mut header = [&[TCP, 15, 0x1e, 124][..], &[0; 124]].concat();
        header.extend(tcp);
        vec![v6(ends, DESTINATION, &header)]
    }),
    form("nine headers of options", Nowhere, 6, |ends, tcp| {
        let mut headers = [DESTINATION, 0, 1, 4, 0, 0, 0, 0].repeat(8);
        headers.extend(PADDING);
        headers.extend(tcp);
        vec![v6(ends, DESTINATION, &headers)]
    }),
    form(
        "a routing header that is used up",
        Everywhere,
        6,
        |ends, tcp| vec![v6(ends, ROUTING, &[&routing(ends, 0)[..], tcp].concat())],
    ),
    form("a routing header", Nowhere, 6, |ends, tcp| {
        vec![v6(ends, ROUTING, &[&routing(ends, 1)[..], tcp].concat())]
    }),
    form("an atomic fragment", Everywhere, 6, |ends, tcp| {
        vec![v6(ends, FRAGMENT, &fragment(0, tcp))]
    }),
    form("IPv6 fragments", Arriving, 6, |ends, tcp| {
        vec![
            v6(ends, FRAGMENT, &fragment(1, &tcp[..24])),
            v6(ends, FRAGMENT, &fragment(24, &tcp[24..])),
        ]
    }),
];

/// An extension header with meaningless options, before TCP.
const PADDING: [u8; 8] = [TCP, 0, 1, 4, 0, 0, 0, 0];

/// A segment routing header with two segments, both of which are the server.
fn routing(ends: &ConnectionTuple, left: u8) -> Vec<u8> {
    let IpAddr::V6(server) = ends.server.ip() else {
        panic!("not IPv6")
    };
    let server = server.octets();
    [&[TCP, 4, 4, left, 1, 0, 0, 0][..], &server, &server].concat()
}

/// A fragment header with offset and flag, before a part of a segment.
fn fragment(place: u16, part: &[u8]) -> Vec<u8> {
    let place = place.to_be_bytes();
    [&[TCP, 0, place[0], place[1], 0, 0, 0, 9][..], part].concat()
}

fn v4(ends: &ConnectionTuple, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (ends.client.ip(), ends.server.ip()) else {
        panic!("not IPv4")
    };
    let header = 20 + options.len();
    let total = u16::try_from(header + payload.len()).unwrap().to_be_bytes();
    let fragment = fragment.to_be_bytes();
    let first = 0x40 | u8::try_from(header / 4).unwrap();
    let port = ends.client.port().to_be_bytes();
    let mut packet = vec![first, 0, total[0], total[1], port[0], port[1]];
    packet.extend([fragment[0], fragment[1], 64, 6, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(options);
    let sum = checksum(&[&packet]).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    [&[0x08, 0x00], &packet[..], payload].concat()
}

fn v6(ends: &ConnectionTuple, next: u8, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = (ends.client.ip(), ends.server.ip()) else {
        panic!("not IPv6")
    };
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], next, 64];
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(payload);
    frame
}

/// The frame behind this many tags of VLAN 0, which only set a priority.
fn tagged(tags: usize, frame: &[u8]) -> Vec<u8> {
    [&[0x81, 0x00, 0x20, 0x00].repeat(tags)[..], frame].concat()
}

/// The wire's far end.
pub struct Wire {
    socket: OwnedFd,
}

impl Wire {
    /// Makes the pair, with the server's addresses 10.8.0.1 and fd08::1 at the near end.
    pub fn laid() -> Self {
        run(
            "ip",
            &["link", "add", "near", "type", "veth", "peer", "name", "far"],
        );
        run(
            "ip",
            &["link", "set", "near", "address", "02:00:00:00:00:01"],
        );
        run("ip", &["address", "add", "10.8.0.1/24", "dev", "near"]);
        run(
            "ip",
            &["address", "add", "fd08::1/64", "dev", "near", "nodad"],
        );
        for address in ["10.8.0.2", "fd08::2"] {
            let mac = "02:00:00:00:00:02";
            run(
                "ip",
                &["neigh", "add", address, "lladdr", mac, "dev", "near"],
            );
        }
        for name in ["all", "near"] {
            let switch = format!("/proc/sys/net/ipv6/conf/{name}/seg6_enabled");
            if std::fs::write(switch, "1").is_err() {
                println!("skipped: this kernel has no segment routing");
            }
        }
        let (tell, told) = channel();
        let (moved, wait) = channel();
        let other = std::thread::spawn(move || {
            // SAFETY: moves only this thread, to a new network namespace.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            tell.send(rustix::thread::gettid()).unwrap();
            wait.recv().unwrap();
            run("ip", &["link", "set", "far", "up"]);
            raw_socket("far")
        });
        let thread = told.recv().unwrap().as_raw_nonzero().to_string();
        run("ip", &["link", "set", "far", "netns", &thread]);
        run("ip", &["link", "set", "near", "up"]);
        moved.send(()).unwrap();
        let socket = other.join().unwrap();
        // Earlier packets are lost. The kernel assigns an IPv6 address in a task of its own, which
        // a busy machine runs late.
        eventually("the wire carries", || {
            let shows = |arguments: &[&str], what: &str| {
                let shown = Command::new("ip").args(arguments).output().unwrap();
                String::from_utf8_lossy(&shown.stdout).contains(what)
            };
            shows(&["link", "show", "near"], "state UP")
                && shows(&["route", "get", "fd08::1"], "local fd08::1")
        });
        Self { socket }
    }

    /// A connection from this port of the client over the wire.
    pub fn connection(family: u8, port: u16) -> ConnectionTuple {
        let (client, server): (IpAddr, IpAddr) = if family == 4 {
            ([10, 8, 0, 2].into(), [10, 8, 0, 1].into())
        } else {
            (
                [0xfd08, 0, 0, 0, 0, 0, 0, 2].into(),
                [0xfd08, 0, 0, 0, 0, 0, 0, 1].into(),
            )
        };
        ConnectionTuple::new(SocketAddr::new(client, port), SocketAddr::new(server, PORT)).unwrap()
    }

    /// Sends a segment of the client in that form.
    pub fn send(
        &self,
        form: &Form,
        connection: &ConnectionTuple,
        flags: u8,
        numbers: (u32, u32),
        options: &[u8],
    ) {
        for frame in frames(form, connection, flags, numbers, options) {
            // SAFETY: the frame lives until the call returns.
            let sent = unsafe {
                libc::send(
                    self.socket.as_raw_fd(),
                    frame.as_ptr().cast(),
                    frame.len(),
                    0,
                )
            };
            assert_eq!(usize::try_from(sent).unwrap(), frame.len());
        }
    }

    /// The flags of the next segment to the connection's client, and its sequence number.
    pub fn answer(&self, connection: &ConnectionTuple) -> (u8, u32) {
        let mut buffer = [0_u8; 2048];
        loop {
            // SAFETY: the buffer has the given size.
            let size = unsafe {
                libc::recv(
                    self.socket.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    0,
                )
            };
            let size = usize::try_from(size).expect("no answer");
            let frame = &buffer[..size];
            let tcp = match frame[12..14] {
                [0x08, 0x00] if frame[23] == TCP => &frame[34..],
                [0x86, 0xdd] if frame[20] == TCP => &frame[54..],
                _ => continue,
            };
            if tcp[..2] == connection.server.port().to_be_bytes()
                && tcp[2..4] == connection.client.port().to_be_bytes()
            {
                return (tcp[13], u32::from_be_bytes(tcp[4..8].try_into().unwrap()));
            }
        }
    }
}

/// The Ethernet frames of a segment in that form.
pub fn frames(
    form: &Form,
    connection: &ConnectionTuple,
    flags: u8,
    numbers: (u32, u32),
    options: &[u8],
) -> Vec<Vec<u8>> {
    let tcp = segment(
        connection.client,
        connection.server,
        flags,
        numbers,
        options,
    );
    (form.frames)(connection, &tcp)
        .iter()
        .map(|frame| [&SERVER_MAC[..], &CLIENT_MAC, frame].concat())
        .collect()
}

/// A packet socket at the interface, whose reads fail after a minute.
fn raw_socket(interface: &str) -> OwnedFd {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: no pointer is passed.
    let fd = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            i32::from(protocol),
        )
    };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: a descriptor that was just made and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: a name that ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    // SAFETY: a structure of integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = i32::try_from(index).unwrap();
    // SAFETY: an address of the size said.
    let code = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as u32,
        )
    };
    assert_eq!(code, 0, "{}", io::Error::last_os_error());
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(std::time::Duration::from_secs(60)),
    )
    .unwrap();
    socket
}
