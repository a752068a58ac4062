//! The module `ifoff` in a kernel: a host that routes between two network namespaces, by interfaces that are on or
//! silent. interface_acts.py has the acts.

use super::attacks::Actor;
use super::reached::refusals;
use super::*;

/// Interfaces of the host, and network namespaces with `peer` at the other end of each.
const WIRES: [&str; 2] = ["usher-a", "usher-b"];

fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    let done = command.args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}");
}

fn set(path: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
}

/// The address of an interface on its link.
fn station(network: &str, interface: &str) -> String {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", network, "cat"]);
    let path = format!("/sys/class/net/{interface}/address");
    let text = match network {
        "" => fs::read_to_string(path).unwrap(),
        _ => String::from_utf8(command.arg(path).output().unwrap().stdout).unwrap(),
    };
    text.trim().to_owned()
}

/// The host and its neighbours. Every interface knows the station at the other end of its wire, so that only
/// the acts ask for one.
struct Network;

impl Network {
    fn new() -> Self {
        let network = Self;
        ip("link set lo up");
        set("ipv4/ip_forward", "1");
        for (wire, number) in WIRES.into_iter().zip(1..) {
            ip(&format!("netns add {wire}"));
            ip(&format!("-n {wire} link set lo up"));
            network.join(wire, wire, number);
            ip(&format!(
                "-n {wire} route add 10.77.0.0/16 via 10.77.{number}.1"
            ));
        }
        network
    }

    /// Makes an interface of the host, to `peer` in this network namespace.
    fn join(&self, interface: &str, wire: &str, number: u8) {
        let peer = self.peer(interface, wire);
        ip(&format!(
            "link add {interface} type veth peer name {peer} netns {wire}"
        ));
        let ends = [
            (String::new(), interface, 1),
            (format!("-n {wire} "), peer, 2),
        ];
        for (of, device, end) in &ends {
            ip(&format!(
                "{of}address add 10.77.{number}.{end}/24 dev {device}"
            ));
            ip(&format!(
                "{of}address add fd77:{number}::{end}/64 dev {device} nodad"
            ));
            ip(&format!("{of}link set {device} up"));
        }
        let stations = [station(wire, peer), station("", interface)];
        for ((of, device, end), station) in ends.iter().zip(stations) {
            let other = 3 - end;
            for address in [
                format!("10.77.{number}.{other}"),
                format!("fd77:{number}::{other}"),
            ] {
                ip(&format!(
                    "{of}neigh replace {address} lladdr {station} dev {device} nud permanent"
                ));
            }
        }
    }

    /// The first interface of each namespace is `peer`.
    fn peer(&self, interface: &str, wire: &str) -> &'static str {
        if interface == wire { "peer" } else { "late" }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for interface in WIRES.into_iter().chain(["usher-c"]) {
            let _ = Command::new("ip").args(["link", "del", interface]).output();
        }
        for wire in WIRES {
            let _ = Command::new("ip").args(["netns", "del", wire]).output();
        }
    }
}

/// Settings from these statements. Names of interfaces are those of this network namespace.
fn silence(statements: &str) -> Settings {
    let ModuleSettings::Ifoff(silence) = block("ifoff", statements) else {
        panic!("{statements}");
    };
    let names = Names {
        network: fs::metadata("/proc/self/ns/net").unwrap().ino() as u32,
        ..Names::default()
    };
    Settings::Ifoff(silence, names)
}

fn configure(world: &mut World, statements: &str) {
    let settings = silence(statements);
    world.framework().configure("ifoff", &settings).unwrap();
}

/// The acts whose packets leave the host, each with its result where the module stops them.
const LEAVING: [(&str, &str); 11] = [
    ("udp", "EPERM"),
    ("udp6", "EPERM"),
    ("ping", "EPERM"),
    ("tcp", "ok"),
    ("arp", "ok"),
    ("nd", "ok"),
    ("forwarded", "ok"),
    ("packet", "EPERM"),
    ("named", "EPERM"),
    ("bypass", "EPERM"),
    ("kept", "EPERM"),
];

/// The kinds of packets that enter the host.
const ENTERING: [&str; 4] = ["arp", "ping", "reset", "forwarded"];

/// The cases where everything passes `usher-a`.
fn passes() -> Vec<(String, &'static str)> {
    let leaving = LEAVING
        .iter()
        .map(|(kind, _)| (format!("sent:{kind}"), "ok"));
    let entering = ENTERING.iter().map(|kind| (format!("got:{kind}"), "ok"));
    let mut cases: Vec<_> = leaving.chain(entering).collect();
    cases.push(("receives:10.77.1.1".into(), "ok"));
    cases
}

/// The cases where nothing passes `usher-a`.
fn stops() -> Vec<(String, &'static str)> {
    let leaving = LEAVING
        .iter()
        .map(|(kind, result)| (format!("unsent:{kind}"), *result));
    let entering = ENTERING.iter().map(|kind| (format!("ungot:{kind}"), "ok"));
    let mut cases: Vec<_> = leaving.chain(entering).collect();
    cases.push(("receives:10.77.1.1".into(), "EACCES"));
    cases
}

/// Whether a program of libpcap captures by an interface, for a second.
fn captures(interface: &str) -> bool {
    // Not to a file: dumpcap would remove it after a failure, even /dev/null.
    let arguments = ["-q", "-a", "duration:1", "-w", "-", "-i", interface];
    let output = Command::new("dumpcap").args(arguments).output().unwrap();
    output.status.success()
}

// Threat model: M33, M36
#[test]
fn by_a_silent_interface_no_packet_enters_or_leaves() {
    let Some(mut world) = World::new("ifoff", 78) else {
        return;
    };
    let _network = Network::new();
    let mut actor = Actor::start(0);
    let taps = [
        ("tap:peer:peer:usher-a", "ok"),
        ("tap:beyond:peer:usher-b", "ok"),
        // Sockets from before the module was loaded.
        ("tap:own:usher-a", "ok"),
        ("tap_all:all", "ok"),
        ("keep_packet:usher-a", "ok"),
    ];
    let owned = |cases: &[(&'static str, &'static str)]| -> Vec<(String, &'static str)> {
        cases
            .iter()
            .map(|(act, result)| ((*act).into(), *result))
            .collect()
    };
    actor.does_all(&owned(&taps));
    actor.does_all(&passes());
    // FreeBSD's default: loopback only.
    world
        .framework()
        .load(&Module::named("ifoff").unwrap())
        .unwrap();
    for (act, result) in [("sends:127.0.0.1", "ok"), ("sends:10.77.1.2", "EPERM")] {
        actor.does_all(&[(act.into(), result)]);
    }
    configure(&mut world, "others on; interface \"usher-a\" off;");
    actor.does_all(&stops());
    configure(&mut world, "others on; interface \"usher-a\" on;");
    actor.does_all(&passes());
    for point in [EntryPoint::InterfaceReceive, EntryPoint::InterfaceSend] {
        assert!(refusals(world.framework(), point) > 2, "{point}");
    }
    // Packets by another interface are judged by that interface, so a router between the two is deaf, too.
    configure(&mut world, "interface \"usher-a\" on;");
    actor.does_all(&owned(&[
        ("sends:10.77.1.2", "ok"),
        ("sends:10.77.2.2", "EPERM"),
        // In other network namespaces the name says nothing, and `lo` is on.
        ("sends:10.77.1.1:usher-a", "EPERM"),
        ("sends:127.0.0.1:usher-a", "ok"),
    ]));
    // A capture that began before, and a new one.
    configure(&mut world, "others on; interface \"usher-a\" off;");
    actor.does_all(&owned(&[
        ("drained:own", "EPERM"),
        ("drained:all", "EPERM"),
        ("takes_ring:own", "EPERM"),
        ("rebind:own:usher-b", "EPERM"),
        ("rebind:all:usher-b", "EPERM"),
        ("tap:new:usher-a", "EPERM"),
        ("tap_all:new", "EPERM"),
        ("binds_xdp:usher-a", "EPERM"),
        ("binds_xdp:usher-b", "EINVAL"),
        ("tap:other:usher-b", "ok"),
        ("catches:other:usher-b", "ok"),
        ("rebind:other:usher-a", "EPERM"),
        ("rebind:other:lo", "ok"),
        ("takes_ring:other", "ok"),
    ]));
    assert!(!captures("usher-a"));
    assert!(captures("usher-b"));
    configure(
        &mut world,
        "others on; interface \"usher-a\" off; capture on;",
    );
    actor.does_all(&owned(&[
        ("drained:own", "ok"),
        ("catches:own", "ok"),
        ("receives:10.77.1.1", "EACCES"),
        ("unsent:packet", "EPERM"),
        ("unsent:bypass", "EPERM"),
        ("tap_all:new", "ok"),
    ]));
    assert!(captures("usher-a"));
    world.framework().unload("ifoff").unwrap();
    actor.does_all(&passes());
}

// Threat model: M35
#[test]
fn a_new_interface_is_silent_for_sockets_at_once() {
    let Some(mut world) = World::new("ifoff_new", 79) else {
        return;
    };
    let network = Network::new();
    let mut actor = Actor::start(0);
    let settings = silence("others on; interface \"usher-c\" off;");
    world.framework().load(&Module::with(settings)).unwrap();
    let framework = |world: &mut World| world.framework().follow_interfaces().unwrap();
    assert!(!framework(&mut world), "nothing is new");
    let former = world.framework().objects().unwrap().links.len();
    network.join("usher-c", "usher-a", 3);
    let mut sockets = |result| {
        actor.does_all(&[
            (
                "sends:10.77.3.2".into(),
                if result { "ok" } else { "EPERM" },
            ),
            (
                "receives:10.77.3.1".into(),
                if result { "ok" } else { "EACCES" },
            ),
        ]);
    };
    sockets(false);
    assert!(refusals(world.framework(), EntryPoint::SocketDeliver) > 0);
    assert_eq!(refusals(world.framework(), EntryPoint::InterfaceReceive), 0);
    // Then for all packets.
    assert!(framework(&mut world));
    assert!(!framework(&mut world));
    assert_eq!(world.framework().objects().unwrap().links.len(), former + 2);
    sockets(false);
    assert!(refusals(world.framework(), EntryPoint::InterfaceReceive) > 0);
    configure(&mut world, "others on;");
    sockets(true);
    // The programs of an interface that is gone go with it.
    ip("link del usher-c");
    assert!(framework(&mut world));
    assert_eq!(world.framework().objects().unwrap().links.len(), former);
}
