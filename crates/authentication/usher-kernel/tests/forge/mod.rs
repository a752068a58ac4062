//! Tokens and the SYNs that carry them: forged ones, passed to the attached program
//! (BPF_PROG_TEST_RUN), and those of real sockets.
#![allow(dead_code, reason = "every test binary uses a part of it")]

mod packet;

pub use packet::*;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use libbpf_rs::libbpf_sys;
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, Program, TC_INGRESS, TcHookBuilder,
};
use usher_base::ConnectionTuple;
use usher_kernel::admission::{Admission, Counters, Limits, TokenSession};
use usher_proto::token::{TokenChain, TokenElement};
use usher_proto::{SessionId, TokenSlot};

use crate::world::token::Token;
use crate::world::{ALICE, Client, HOST, PORT, SERVICE, World, queue};

/// The handle and priority of the project's filters.
pub const HANDLE: u32 = 0x5573;
pub const PRIORITY: u32 = 3;

/// The verdict of the filter at interfaces: TC_ACT_UNSPEC.
const UNSPECIFIED: u32 = u32::MAX;
/// The verdict at LOCAL_IN: NF_ACCEPT.
const ACCEPTED: u32 = 1;

/// A session with its whole chain.
pub struct Chain {
    pub session: TokenSession,
    pub elements: Vec<TokenElement>,
}

impl Chain {
    pub fn new(number: u8, length: u32) -> Self {
        let id = SessionId::from_bytes([number; 16]);
        Self::generate(
            id,
            length,
            [number; 11],
            [number ^ 0x55; 16],
            [number ^ 0xaa; 16],
        )
    }

    pub fn generate(
        session: SessionId,
        length: u32,
        seed: TokenElement,
        salt: [u8; 16],
        key: [u8; 16],
    ) -> Self {
        let chain = TokenChain::generate(length, seed, salt);
        let elements = (0..chain.blocks()).flat_map(|number| chain.block(number).to_vec());
        Self {
            session: TokenSession {
                session,
                service: SERVICE,
                uid: ALICE,
                host: HOST,
                anchor: chain.anchor(),
                salt,
                length,
                key,
                lifetime: Duration::from_secs(3600),
            },
            elements: elements.collect(),
        }
    }

    pub fn element(&self, position: u32) -> TokenElement {
        self.elements[position as usize - 1]
    }

    /// The option of the token at `position`, for this connection.
    pub fn option(&self, slot: TokenSlot, position: u32, connection: &ConnectionTuple) -> [u8; 20] {
        let token = Token {
            slot,
            position: position.to_le_bytes()[0],
            element: self.element(position),
        };
        option(&token.encode(&self.session.key, connection))
    }
}

/// The program that reads tokens. The test passes packets to it.
pub struct Checker {
    program: OwnedFd,
    /// Whether the program is the filter at interfaces.
    is_filter: bool,
}

impl Checker {
    pub fn attached(world: &World, admission: &Admission) -> Self {
        assert!(admission.attach_tokens().unwrap().is_empty());
        Self {
            program: Program::fd_from_id(reader(world).unwrap()).unwrap(),
            is_filter: world.at_interfaces,
        }
    }

    /// A variant of the program, with a pause between spending a token and admitting its connection. The
    /// tables are the same.
    pub fn paused(world: &World) -> Self {
        let object = include_bytes!(concat!(env!("OUT_DIR"), "/admission_paused.bpf.o"));
        let mut open = ObjectBuilder::default().open_memory(object).unwrap();
        for mut map in open.maps_mut() {
            let path = world.pins.join(map.name());
            let pinned = MapHandle::from_pinned_path(&path).unwrap();
            map.set_max_entries(pinned.max_entries()).unwrap();
            map.reuse_fd(pinned.as_fd()).unwrap();
        }
        let object = open.load().unwrap();
        let program = object
            .progs()
            .find(|program| program.name() == "check_token")
            .unwrap();
        Self {
            program: program.as_fd().try_clone_to_owned().unwrap(),
            is_filter: true,
        }
    }

    /// Passes an Ethernet frame to the program, which leaves the verdict open and the frame unchanged.
    /// At LOCAL_IN every packet has a whole IP header, so other frames are left out.
    pub fn run(&self, frame: &[u8]) {
        if !self.is_filter {
            let is_ip = matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd]);
            if is_ip && frame.len() >= 14 + 20 {
                assert_eq!(self.run_on(&frame[14..], None), ACCEPTED);
            }
            return;
        }
        let mut after = vec![0_u8; frame.len() + 64];
        assert_eq!(self.run_on(frame, Some(&mut after)), UNSPECIFIED);
        assert_eq!(&after[..frame.len()], frame);
    }

    /// The program's result for a packet. `after` becomes the packet as the program has left it.
    fn run_on(&self, packet: &[u8], after: Option<&mut Vec<u8>>) -> u32 {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: packet.as_ptr().cast(),
            data_size_in: u32::try_from(packet.len()).unwrap(),
            ..Default::default()
        };
        if let Some(after) = after {
            options.data_out = after.as_mut_ptr().cast();
            options.data_size_out = u32::try_from(after.len()).unwrap();
        }
        let program = self.program.as_raw_fd();
        // SAFETY: both buffers live until the call returns and have the given sizes.
        let code = unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &mut options) };
        assert_eq!(code, 0);
        let size = options.data_size_out as usize;
        assert!(!self.is_filter || size == packet.len(), "{size}");
        options.retval
    }

    /// Passes a SYN with these options to the program.
    pub fn syn(&self, connection: &ConnectionTuple, options: &[u8]) {
        self.run(&ethernet(&ip(connection, SYN, options)));
    }
}

/// The links of the program that reads tokens at LOCAL_IN.
pub fn links(world: &World) -> Vec<PathBuf> {
    let links = ["ipv4_0", "ipv4_1", "ipv6_0", "ipv6_1"];
    let links = links.map(|link| world.pins.join(format!("link_check_token_{link}")));
    links.into_iter().filter(|link| link.exists()).collect()
}

/// The id of the program in force that reads tokens.
pub fn reader(world: &World) -> Option<u32> {
    if world.at_interfaces {
        return program_on(1);
    }
    let links = links(world).into_iter();
    let ids: Vec<_> = links
        .map(|link| Link::open(link).unwrap().info().unwrap().prog_id)
        .collect();
    assert!(
        ids.is_empty() || ids.len() == 2 && ids[0] == ids[1],
        "{ids:?}"
    );
    ids.first().copied()
}

/// Ends the reading of tokens, as root can.
pub fn stop_reading(world: &World) {
    for link in links(world) {
        Link::open(&link).unwrap().detach().unwrap();
        std::fs::remove_file(link).unwrap();
    }
    let none = File::open("/dev/null").unwrap();
    // Interfaces of a world have the lowest numbers.
    for index in 1..32 {
        if program_on(index).is_some() {
            TcHookBuilder::new(none.as_fd())
                .ifindex(index)
                .handle(HANDLE)
                .priority(PRIORITY)
                .hook(TC_INGRESS)
                .detach()
                .unwrap();
        }
    }
}

/// The id of Usher's program at ingress of an interface.
pub fn program_on(index: i32) -> Option<u32> {
    let none = File::open("/dev/null").unwrap();
    TcHookBuilder::new(none.as_fd())
        .ifindex(index)
        .handle(HANDLE)
        .priority(PRIORITY)
        .hook(TC_INGRESS)
        .query()
        .ok()
}

/// The connection to the service from a port of a client that does not exist.
pub fn from_port(port: u16) -> ConnectionTuple {
    ConnectionTuple::new(
        SocketAddr::from(([10, 9, 0, 2], port)),
        SocketAddr::from(([10, 9, 0, 1], PORT)),
    )
    .unwrap()
}

/// As [`from_port`], over IPv6.
pub fn from_port_v6(port: u16) -> ConnectionTuple {
    ConnectionTuple::new(
        SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 2], port)),
        SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], PORT)),
    )
    .unwrap()
}

/// Admission of the service with a listener for Alice, attached everywhere.
pub fn serve(world: &World, limits: &Limits) -> (Admission, OwnedFd, Checker) {
    let admission = world.open_with(limits).unwrap();
    admission.set_services(&[(PORT, SERVICE)]).unwrap();
    let alice = queue(&admission, ALICE, 512);
    let checker = Checker::attached(world, &admission);
    (admission, alice, checker)
}

/// Expects exactly these counters. Waits for them, because a program removes an entry before it counts
/// it.
#[track_caller]
pub fn counted(admission: &Admission, expected: Counters) {
    let mut counters = admission.counters().unwrap();
    for _ in 0..20_000 {
        if counters == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
        counters = admission.counters().unwrap();
    }
    assert_eq!(counters, expected);
}

/// Makes sockets of the test's cgroup write given bytes into their SYN.
pub struct Writer {
    object: Object,
    _link: Link,
}

impl Writer {
    pub fn attached(world: &World) -> Self {
        let object = load();
        let cgroup = File::open(&world.cgroup).unwrap();
        let link = object
            .progs_mut()
            .find(|program| program.name() == "write_token")
            .unwrap()
            .attach_cgroup(cgroup.as_raw_fd())
            .unwrap();
        Self {
            object,
            _link: link,
        }
    }

    pub fn write(&self, client: &Client, option: &[u8; 20]) {
        self.write_from(client.connection.client.port(), option);
    }

    /// As `write`, for a client on this port.
    pub fn write_from(&self, port: u16, option: &[u8; 20]) {
        let port = u32::from(port);
        let map = self
            .object
            .maps()
            .find(|map| map.name() == "options")
            .unwrap();
        map.update(&port.to_ne_bytes(), option, MapFlags::ANY)
            .unwrap();
    }

    pub fn forget(&self, port: u16) {
        let map = self
            .object
            .maps()
            .find(|map| map.name() == "options")
            .unwrap();
        map.delete(&u32::from(port).to_ne_bytes()).unwrap();
    }
}

pub fn load() -> Object {
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/token_writer.bpf.o"));
    ObjectBuilder::default()
        .open_memory(object)
        .unwrap()
        .load()
        .unwrap()
}

/// Another party's filter at ingress of an interface, which drops packets.
pub struct Loser {
    object: Object,
}

impl Loser {
    pub fn attached(index: i32, priority: u32) -> Self {
        let object = load();
        let program = object
            .progs()
            .find(|program| program.name() == "lose")
            .unwrap();
        hook(program.as_fd(), index, priority)
            .create()
            .unwrap()
            .attach()
            .unwrap();
        Self { object }
    }

    fn losses(&self, index: u32) -> u64 {
        let map = self
            .object
            .maps()
            .find(|map| map.name() == "losses")
            .unwrap();
        let value = map
            .lookup(&index.to_ne_bytes(), MapFlags::ANY)
            .unwrap()
            .unwrap();
        u64::from_ne_bytes(value.try_into().unwrap())
    }

    pub fn lose(&self, packets: u64) {
        let map = self
            .object
            .maps()
            .find(|map| map.name() == "losses")
            .unwrap();
        map.update(&0_u32.to_ne_bytes(), &packets.to_ne_bytes(), MapFlags::ANY)
            .unwrap();
    }

    pub fn left(&self) -> u64 {
        self.losses(0)
    }

    pub fn seen(&self) -> u64 {
        self.losses(1)
    }
}

fn hook(program: BorrowedFd<'_>, index: i32, priority: u32) -> libbpf_rs::TcHook {
    TcHookBuilder::new(program)
        .ifindex(index)
        .handle(1)
        .priority(priority)
        .hook(TC_INGRESS)
}
