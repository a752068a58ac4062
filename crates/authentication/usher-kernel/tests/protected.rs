//! Packets to the ports of services that demand protection: those without the mark of an inbound SA are
//! dropped, in every form that a kernel accepts. A filter at the interface stands for the SA.

#[macro_use]
mod world;
mod forge;
mod wire;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use forge::*;
use libbpf_rs::{MapCore, MapFlags, Object, TC_INGRESS, TcHookBuilder};
use usher_base::ConnectionTuple;
use usher_kernel::admission::{AdmissionState, Announced, Counters};
use usher_kernel::protected::{Demand, Protected};
use wire::{FORMS, Form, PLAIN, Wire};
use world::*;

const SHIFT: u32 = 20;
/// The class number that the tests demand, and another one.
const DEMANDED: u32 = 3;
const OTHER: u32 = 5;
const NO_OPTIONS: [u8; 12] = [1; 12];

fn demand() -> BTreeMap<u16, Demand> {
    let classes = 1 << DEMANDED;
    [(
        PORT,
        Demand {
            shift: SHIFT,
            classes,
        },
    )]
    .into()
}

/// Another folder than the world's, because its holder locks it.
fn pins(world: &World) -> PathBuf {
    world.pins.with_file_name("protected")
}

/// The program; none where the kernel knows no such programs.
fn open(world: &World) -> Option<Protected> {
    if !has_netfilter_programs() {
        println!("skipped: this kernel has no netfilter programs");
        return None;
    }
    Some(Protected::open(&pins(world)).unwrap())
}

/// A filter that marks what arrives over the wire, as an inbound SA does.
struct Marker(Object);

impl Marker {
    fn attached() -> Self {
        let object = load();
        let program = object.progs().find(|program| program.name() == "mark");
        let program = program.unwrap();
        // SAFETY: a name that ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(c"near".as_ptr()) };
        TcHookBuilder::new(program.as_fd())
            .ifindex(i32::try_from(index).unwrap())
            .replace(true)
            .handle(1)
            .priority(1)
            .hook(TC_INGRESS)
            .create()
            .unwrap()
            .attach()
            .unwrap();
        Self(object)
    }

    fn mark(&self, class: u32) {
        let map = self.0.maps().find(|map| map.name() == "marks").unwrap();
        let mark = class << SHIFT | 1;
        map.update(&0_u32.to_ne_bytes(), &mark.to_ne_bytes(), MapFlags::ANY)
            .unwrap();
    }
}

/// A host B at the end of a cable, with 10.1.0.2, whose packets to this host an SA encrypts, and
/// 10.1.0.3, whose packets are plain. None: this kernel has no ESP.
fn host_b() -> Option<()> {
    // Not needed where ESP is built in.
    let _ = Command::new("modprobe").arg("esp4").output();
    run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
    for command in [
        "netns add b",
        "link add cable type veth peer name cable netns b",
        "address add 10.1.0.1/24 dev cable",
        "link set cable up",
        "-n b address add 10.1.0.2/24 dev cable",
        "-n b address add 10.1.0.3/24 dev cable",
        "-n b link set cable up",
    ] {
        run("ip", &command.split(' ').collect::<Vec<_>>());
    }
    let mark = format!("{:#x}", DEMANDED << SHIFT);
    for (host, set_mark) in [
        (&[][..], &["output-mark", &mark, "mask", "0xf00000"][..]),
        (&["-n", "b"], &[]),
    ] {
        let state =
            "xfrm state add src 10.1.0.2 dst 10.1.0.1 proto esp spi 4097 mode transport reqid 1";
        let added = Command::new("ip")
            .args(host)
            .args(state.split(' '))
            .args([
                "aead",
                "rfc4106(gcm(aes))",
                "0x000102030405060708090a0b0c0d0e0f10111213",
                "128",
            ])
            .args(set_mark)
            .output()
            .unwrap();
        if !added.status.success() {
            let reason = String::from_utf8_lossy(&added.stderr);
            println!("skipped: this kernel has no ESP: {}", reason.trim());
            return None;
        }
    }
    let policy = "-n b xfrm policy add src 10.1.0.2 dst 10.1.0.1 dir out \
                  tmpl src 10.1.0.2 dst 10.1.0.1 proto esp mode transport reqid 1";
    run(
        "ip",
        &policy
            .split(' ')
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>(),
    );
    Some(())
}

/// The program, with a host B that has IPsec.
fn open_beside_b(world: &World) -> Option<Protected> {
    let protected = open(world)?;
    host_b().map(|()| protected)
}

/// Sends a packet from host B without IPsec, as anyone on the path can.
fn send_from_b(packet: &[u8]) {
    let bytes: String = packet.iter().map(|byte| format!("{byte:02x}")).collect();
    let code = format!(
        "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x800); \
         s.sendto(bytes.fromhex('{bytes}'), ('cable', 0x800, 0, 0, b'\\xff' * 6))"
    );
    let netns = ["netns", "exec", "b", "python3", "-c", &code];
    run("ip", &netns);
}

/// Begins a connection from host B, which waits for an answer for a minute.
fn connect_from_b(client: SocketAddr) -> std::process::Child {
    let code = format!(
        "import socket; s = socket.socket(); s.settimeout(60); s.bind(('{}', {})); \
         s.connect(('10.1.0.1', {PORT}))",
        client.ip(),
        client.port()
    );
    let mut command = Command::new("ip");
    command.args(["netns", "exec", "b", "python3", "-c", &code]);
    command.spawn().unwrap()
}

fn forms() -> impl Iterator<Item = (&'static Form, ConnectionTuple)> {
    static ALL: [Form; 15] = FORMS;
    let forms = ALL.iter().chain(&PLAIN);
    forms
        .zip(4000..)
        .map(|(form, port)| (form, Wire::connection(form.family, port)))
}

fn syn(wire: &Wire, form: &Form, connection: &ConnectionTuple) {
    wire.send(form, connection, SYN, (7000, 0), &NO_OPTIONS);
}

tests! {
    // Threat model: P52
    fn unprotected_packets_are_dropped_in_every_form(world) {
        let Some(protected) = open(world) else { return };
        let wire = Wire::laid();
        let marker = Marker::attached();
        protected.apply(&demand()).unwrap();
        let counters = || protected.counters().unwrap();
        let dropped = || counters().refused + counters().unreadable;
        for class in [0, OTHER] {
            marker.mark(class);
            for (form, connection) in forms() {
                let before = dropped();
                syn(&wire, form, &connection);
                eventually(form.name, || dropped() > before);
            }
        }
        // Later packets are dropped as well as SYNs.
        let before = dropped();
        let connection = Wire::connection(4, 4999);
        wire.send(&PLAIN[0], &connection, ACK, (7000, 1), &NO_OPTIONS);
        eventually("a later packet is dropped", || dropped() > before);
        assert_eq!(counters().protected, 0);
        // The twin: protected, they arrive, and the closed port answers the first one.
        marker.mark(DEMANDED);
        for (form, connection) in forms().filter(|(form, _)| form.is_read(world)) {
            syn(&wire, form, &connection);
            assert_eq!(wire.answer(&connection).0, RST | ACK, "{}", form.name);
        }
        assert!(counters().protected > 0);
    }

    // Threat model: P52
    fn a_plaintext_syn_uses_up_no_announcement(world) {
        let Some(protected) = open_beside_b(world) else { return };
        let (admission, _alice, _bob) = world.serve();
        protected.apply(&demand()).unwrap();
        let [own, plain] = ["10.1.0.2:5001", "10.1.0.3:5002"].map(|client| {
            let client: SocketAddr = client.parse().unwrap();
            let server = SocketAddr::new([10, 1, 0, 1].into(), PORT);
            let connection = ConnectionTuple::new(client, server).unwrap();
            // The long lifetime is for a slow guest, which starts two clients meanwhile.
            let announced = Announced { lifetime: Duration::from_secs(600), ..announced(ALICE) };
            admission.announce(&connection, &announced).unwrap();
            (client, connection)
        });
        let state = |connection| row(&admission, connection).map(|row| row.state);
        let mut waiting = connect_from_b(plain.0);
        eventually("it is refused", || protected.counters().unwrap().refused > 0);
        assert_eq!(state(&plain.1), Some(AdmissionState::Announced));
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        assert_eq!(admission.counters().unwrap().admitted, 0);
        assert!(connect_from_b(own.0).wait().unwrap().success());
        assert!(protected.counters().unwrap().protected > 0);
        assert_eq!(admission.counters().unwrap().admitted, 1);
    }

    // Threat model: A16
    fn an_unprotected_copy_of_a_tokens_syn_spends_nothing(world) {
        let Some(protected) = open(world) else { return };
        let (admission, _alice, _bob) = world.serve();
        let wire = Wire::laid();
        let marker = Marker::attached();
        protected.apply(&demand()).unwrap();
        let chain = Chain::new(1, 100);
        let slot = admission.open_tokens(&chain.session).unwrap();
        for (form, position) in PLAIN.iter().zip(1..) {
            let connection = Wire::connection(form.family, 4000);
            let option = chain.option(slot, position, &connection);
            let refused = || protected.counters().unwrap().refused;
            let before = refused();
            marker.mark(0);
            wire.send(form, &connection, SYN, (7000, 0), &option);
            eventually("the copy is refused", || refused() > before);
            assert_eq!(row(&admission, &connection), None);
            assert_eq!(admission.tokens().unwrap()[0].position, position - 1);
            // The twin.
            marker.mark(DEMANDED);
            wire.send(form, &connection, SYN, (7000, 0), &option);
            assert_eq!(wire.answer(&connection).0, SYN | ACK, "{}", form.name);
            assert_eq!(admission.tokens().unwrap()[0].position, position);
        }
        counted(&admission, Counters { token_accepted: 2, admitted: 2, ..Counters::default() });
    }

    // Threat model: A16
    fn a_token_passes_in_esp(world) {
        let Some(protected) = open_beside_b(world) else { return };
        let (admission, _alice, _bob) = world.serve();
        protected.apply(&demand()).unwrap();
        let writer = Writer::attached(world);
        let (chain, foreign) = (Chain::new(1, 100), Chain::new(2, 100));
        let slot = admission.open_tokens(&chain.session).unwrap();
        let ends = |port| {
            let client = SocketAddr::new([10, 1, 0, 2].into(), port);
            let server = SocketAddr::new([10, 1, 0, 1].into(), PORT);
            ConnectionTuple::new(client, server).unwrap()
        };
        let position = || admission.tokens().unwrap()[0].position;
        // A copy of the SYN in the clear.
        let own = ends(5001);
        let option = chain.option(slot, 1, &own);
        send_from_b(&ip(&own, SYN, &option));
        eventually("it is refused", || protected.counters().unwrap().refused == 1);
        assert_eq!((row(&admission, &own), position()), (None, 0));
        // A forged token, in ESP.
        let forged = ends(5002);
        writer.write_from(5002, &foreign.option(slot, 1, &forged));
        assert!(!connect_from_b(forged.client).wait().unwrap().success());
        assert_eq!(position(), 0);
        writer.write_from(5001, &option);
        assert!(connect_from_b(own.client).wait().unwrap().success());
        assert_eq!(position(), 1);
        let counters = admission.counters().unwrap();
        assert_eq!((counters.token_accepted, counters.admitted), (1, 1));
        assert_eq!(counters.token_foreign + counters.token_mismatch, 1);
    }

    fn a_port_without_a_demand_is_left_alone(world) {
        let Some(protected) = open(world) else { return };
        let wire = Wire::laid();
        let other = Demand { shift: SHIFT, classes: 1 << DEMANDED };
        protected.apply(&[(PORT + 1, other)].into()).unwrap();
        for (form, connection) in forms().filter(|(form, _)| form.is_read(world)) {
            syn(&wire, form, &connection);
            assert_eq!(wire.answer(&connection).0, RST | ACK, "{}", form.name);
        }
        assert_eq!(protected.counters().unwrap().refused, 0);
    }

    // Threat model: P51
    fn a_policy_that_is_not_in_force_yet_lifts_no_demand(world) {
        let Some(protected) = open(world) else { return };
        let wire = Wire::laid();
        let marker = Marker::attached();
        protected.apply(&demand()).unwrap();
        let refused = || protected.counters().unwrap().refused;
        let is_refused = |class, client| {
            marker.mark(class);
            let before = refused();
            syn(&wire, &PLAIN[0], &Wire::connection(4, client));
            eventually("it is refused", || refused() > before);
        };
        let is_answered = |class, client| {
            marker.mark(class);
            let connection = Wire::connection(4, client);
            syn(&wire, &PLAIN[0], &connection);
            assert_eq!(wire.answer(&connection).0, RST | ACK);
        };
        let of = |port, classes| BTreeMap::from([(port, Demand { shift: SHIFT, classes })]);
        // The next policy has another port only.
        protected.add(&of(PORT + 1, 1 << DEMANDED)).unwrap();
        is_refused(0, 4000);
        // A weaker demand, and a stronger one: packets that meet both pass.
        let weaker = of(PORT, 1 << DEMANDED | 1 << OTHER);
        protected.add(&weaker).unwrap();
        is_refused(OTHER, 4001);
        is_answered(DEMANDED, 4002);
        // The weaker demand is in force.
        protected.apply(&weaker).unwrap();
        is_answered(OTHER, 4003);
        protected.add(&demand()).unwrap();
        is_refused(OTHER, 4004);
        protected.apply(&BTreeMap::new()).unwrap();
        is_answered(0, 4005);
    }

    fn what_stays_on_the_host_is_left_alone(world) {
        let Some(protected) = open(world) else { return };
        protected.apply(&demand()).unwrap();
        let listener = TcpListener::bind(("10.9.0.1", PORT)).unwrap();
        TcpStream::connect(("10.9.0.1", PORT)).unwrap();
        listener.accept().unwrap();
    }

    // Threat model: P52
    fn demands_outlive_the_process_and_end_with_the_policy(world) {
        let Some(protected) = open(world) else { return };
        let wire = Wire::laid();
        protected.apply(&demand()).unwrap();
        drop(protected);
        // Twice, because the program takes its two priorities in turn.
        for round in 0..2 {
            let protected = Protected::open(&pins(world)).unwrap();
            let before = protected.counters().unwrap().refused;
            syn(&wire, &PLAIN[0], &Wire::connection(4, 4000 + round));
            eventually("it is refused", || protected.counters().unwrap().refused == before + 1);
        }
        let protected = Protected::open(&pins(world)).unwrap();
        protected.apply(&BTreeMap::new()).unwrap();
        let connection = Wire::connection(4, 4100);
        syn(&wire, &PLAIN[0], &connection);
        assert_eq!(wire.answer(&connection).0, RST | ACK);
        let left = std::fs::read_dir(pins(world)).unwrap();
        let links = left.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with("link_")
        });
        assert_eq!(links.count(), 0);
    }
}
