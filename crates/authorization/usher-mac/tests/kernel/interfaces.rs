//! Labels of network interfaces and of packets, by the module `test`: by an interface of the name `closed`
//! packets arrive only at sockets of that name, and leave only from such.

use super::reached::refusals;
use super::*;

/// A network namespace, joined to this one by a pair of interfaces which have the same name.
struct Wire;

const NETWORK: &str = "usher-mac";
const NAME: &str = "usher-wire";

fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    let done = command.args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}");
}

impl Wire {
    fn new() -> Self {
        ip(&format!("netns add {NETWORK}"));
        let wire = Self;
        ip("link set lo up");
        ip(&format!("-n {NETWORK} link set lo up"));
        wire.join();
        wire
    }

    fn join(&self) {
        ip(&format!(
            "link add {NAME} type veth peer name {NAME} netns {NETWORK}"
        ));
        for (network, number) in [("", 1), (NETWORK, 2)] {
            let of = if network.is_empty() {
                String::new()
            } else {
                format!("-n {network} ")
            };
            ip(&format!("{of}address add 10.77.0.{number}/24 dev {NAME}"));
            ip(&format!(
                "{of}address add fd77::{number}/64 dev {NAME} nodad"
            ));
            ip(&format!("{of}link set {NAME} up"));
        }
    }

    /// The interfaces go, and others of the same name come.
    fn join_again(&self) {
        ip(&format!("link del {NAME}"));
        self.join();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", NAME]).status();
        let _ = Command::new("ip").args(["netns", "del", NETWORK]).status();
    }
}

/// Packets to a socket of this name: by the wire, TCP and UDP, IPv4 and IPv6.
fn by_wire(name: &str) -> Vec<String> {
    arriving(name, ["10.77.0.1", "fd77__1"], NETWORK)
}

/// Packets to a socket of this name between sockets of this host: TCP and UDP, IPv4 and IPv6.
fn by_loopback(name: &str) -> Vec<String> {
    arriving(name, ["127.0.0.1", "__1"], "")
}

fn arriving(name: &str, addresses: [&str; 2], sender: &str) -> Vec<String> {
    let kinds = ["tcp", "udp"].into_iter();
    let acts = kinds.flat_map(|kind| {
        addresses.map(|address| format!("arrive:{name}:{kind}:{address}:{sender}"))
    });
    acts.collect()
}

fn labels(of: &[(&str, &str)]) -> BTreeMap<String, usher_label::Label> {
    let labels = of
        .iter()
        .map(|(name, label)| ((*name).to_owned(), label.parse().unwrap()));
    labels.collect()
}

/// The results of these acts, which are all the same.
fn results(acts: &[String]) -> String {
    let results = act(0, acts);
    let result = results[0].split(' ').nth(1).unwrap().to_owned();
    assert_eq!(results, all(acts, &result));
    result
}

// Threat model: M82, M83, M86, M91
#[test]
fn a_packet_has_the_label_of_the_interface_by_which_it_came() {
    let Some(mut world) = World::new("interfaces", 36) else {
        return;
    };
    let wire = Wire::new();
    let framework = world.framework();
    framework
        .set_interfaces(&labels(&[(NAME, "other/x,test/closed")]))
        .unwrap();
    assert!(framework.interfaces().unwrap().is_empty());
    // The module's elements are in the labels when it comes into force.
    framework.load(&Module::named("test").unwrap()).unwrap();
    assert_eq!(
        framework.interfaces().unwrap(),
        labels(&[(NAME, "test/closed")])
    );
    assert_eq!(results(&by_wire("closed")), "ok");
    assert_eq!(results(&by_wire("open")), "EACCES");
    // A packet between sockets of this host has the label of `lo`.
    assert_eq!(results(&by_loopback("open")), "ok");
    // In another network namespace the name means another interface.
    let there = ["arrive:open:udp:10.77.0.2::usher-mac".to_owned()];
    assert_eq!(results(&there), "ok");
    // A copy of what this host sends to a multicast group does not come by the interface either.
    let copy = |name: &str| act(0, &[format!("multicast:{name}:10.77.0.1")]);
    assert_eq!(copy("open"), ["multicast ok"]);
    // A new interface of the name has the label at once.
    wire.join_again();
    let udp = by_wire("open").split_off(2);
    assert_eq!(results(&udp), "EACCES");
    assert_eq!(results(&by_wire("closed")), "ok");
    // If one label is impossible, all of them are refused.
    let framework = world.framework();
    let wrong = labels(&[("lo", "test/closed"), (NAME, "test/(low-high)")]);
    let error = framework.set_interfaces(&wrong).unwrap_err();
    assert!(matches!(error, Error::Interface { .. }), "{error}");
    assert!(framework.check_interfaces(&wrong).is_err());
    assert_eq!(results(&udp), "EACCES");
    assert_eq!(results(&by_loopback("open")), "ok");
    // Labels are replaced.
    world
        .framework()
        .set_interfaces(&labels(&[("lo", "test/closed")]))
        .unwrap();
    assert_eq!(results(&by_wire("open")), "ok");
    assert_eq!(results(&by_loopback("closed")), "ok");
    assert_eq!(results(&by_loopback("open")), "EACCES");
    assert_eq!(copy("closed"), ["multicast ok"]);
    assert_eq!(copy("open"), ["multicast EACCES"]);
    // A module that is loaded again has its elements, and none that the policy no longer has.
    let framework = world.framework();
    framework.unload("test").unwrap();
    framework.load(&Module::named("test").unwrap()).unwrap();
    assert_eq!(results(&by_loopback("open")), "EACCES");
    let framework = world.framework();
    framework.unload("test").unwrap();
    framework.set_interfaces(&BTreeMap::new()).unwrap();
    framework.load(&Module::named("test").unwrap()).unwrap();
    assert_eq!(results(&by_loopback("open")), "ok");
}

/// A socket of this name sends by the wire.
fn sending(kind: &str, name: &str) -> Vec<String> {
    let addresses = ["10.77.0.2", "fd77__2"];
    let acts = addresses.map(|address| format!("send:{name}:{kind}:{address}:{NETWORK}"));
    acts.to_vec()
}

// Threat model: M87, M91
#[test]
fn a_packet_leaves_only_by_an_interface_that_its_socket_may_use() {
    let Some(mut world) = World::new("transmit", 38) else {
        return;
    };
    let _wire = Wire::new();
    // In this guest TCP gives up after the second SYN.
    fs::write("/proc/sys/net/ipv4/tcp_syn_retries", "1").unwrap();
    let framework = world.framework();
    framework.load(&Module::named("test").unwrap()).unwrap();
    framework
        .set_interfaces(&labels(&[(NAME, "test/closed")]))
        .unwrap();
    for (kind, refusal) in [
        ("udp", "EPERM"),
        ("tcp", "ETIMEDOUT"),
        ("mptcp", "ETIMEDOUT"),
    ] {
        assert_eq!(results(&sending(kind, "closed")), "ok", "{kind}");
        let refused = |point| refusals(world.framework(), point);
        let before = [EntryPoint::InterfaceTransmit, EntryPoint::SocketDeliver].map(refused);
        assert_eq!(results(&sending(kind, "open")), refusal, "{kind}");
        let mut refused = |point| refusals(world.framework(), point);
        // No answer was refused: no packet left that could be answered.
        assert!(
            refused(EntryPoint::InterfaceTransmit) >= before[0] + 2,
            "{kind}"
        );
        assert_eq!(refused(EntryPoint::SocketDeliver), before[1], "{kind}");
    }
    // By another interface the socket may send.
    assert_eq!(results(&by_loopback("open")), "ok");
    let framework = world.framework();
    framework.set_interfaces(&BTreeMap::new()).unwrap();
    for kind in ["udp", "tcp", "mptcp"] {
        assert_eq!(results(&sending(kind, "open")), "ok", "{kind}");
    }
}

// Threat model: M86, M91
#[test]
fn a_datagram_has_the_label_of_the_process_that_sends_it() {
    let Some(mut world) = World::new("datagrams", 37) else {
        return;
    };
    world
        .framework()
        .load(&Module::named("test").unwrap())
        .unwrap();
    assert_eq!(act(0, &["datagram:closed".into()]), ["datagram ok"]);
    assert_eq!(act(0, &["datagram:open".into()]), ["datagram EACCES"]);
    world.framework().unload("test").unwrap();
    world.framework().load(&Module::none()).unwrap();
    let wire = Wire::new();
    // Without a module with labels nothing is lost. The acts set no label then.
    let arrives = format!("arrive::udp:10.77.0.1:{NETWORK}");
    assert_eq!(act(0, &[arrives]), ["arrive ok"]);
    drop(wire);
}
