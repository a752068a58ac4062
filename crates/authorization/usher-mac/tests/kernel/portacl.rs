//! The module `portacl` in a kernel, by the scenarios of FreeBSD's tests of mac_portacl(4).

use super::attacks::Actor;
use super::*;

use usher_mac::portacl::{PortHolder, PortProtocol, PortRule, PortSettings};

/// The first port that the kernel keeps for nobody, with its former value.
struct Start(String);

const START: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

impl Start {
    fn set(port: u16) -> Self {
        let former = fs::read_to_string(START).unwrap();
        fs::write(START, port.to_string()).unwrap();
        Self(former)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        let _ = fs::write(START, &self.0);
    }
}

/// Rules that permit the user, or else the group, all of these ports.
fn rules(holder: PortHolder, ports: &[u16]) -> Vec<PortRule> {
    let protocols = [PortProtocol::Tcp, PortProtocol::Udp];
    let rules = protocols.into_iter().flat_map(|protocol| {
        ports.iter().map(move |port| PortRule {
            holder,
            protocol,
            port: *port,
        })
    });
    rules.collect()
}

// Threat model: M29
#[test]
fn ports_are_bound_by_those_whom_rules_permit_them() {
    let Some(mut world) = World::new("portacl", 70) else {
        return;
    };
    let (user, group) = (world.user, world.twin);
    let mut actor = Actor::start(0);
    let settings = |rules, port_high| PortSettings {
        rules,
        port_high,
        ..PortSettings::default()
    };
    let by = |uid: u32, gid: &str, act: &str| format!("as:{uid}:{gid}:binds:{act}");
    // {user, group} x {tcp, udp} x {IPv4, IPv6} x {77, 7777}.
    let matrix = |results: [&'static str; 2]| {
        let mut cases = Vec::new();
        for kind in ["tcp:4", "tcp:6", "udp:4", "udp:6"] {
            for (port, result) in [77, 7777].into_iter().zip(results) {
                cases.push((by(user, "9", &format!("{kind}:{port}")), result));
            }
        }
        cases
    };
    {
        // The kernel keeps port 77, and neither the module nor its rules change that.
        let _start = Start::set(78);
        actor.does_all(&matrix(["EACCES", "ok"]));
        let permitted = settings(rules(PortHolder::User(user), &[77, 7777]), 77);
        let module = Module::with(Settings::Portacl(permitted));
        world.framework().load(&module).unwrap();
        actor.does_all(&matrix(["EACCES", "ok"]));
        // By a capability it lets the user through; then the rule decides.
        let with = |port: u16| {
            let ids = ["--reuid", "3140", "--regid", "9", "--clear-groups"];
            assert_eq!(user, 3140);
            let kept = [
                "--inh-caps=+net_bind_service",
                "--ambient-caps=+net_bind_service",
            ];
            let program = format!("import socket; socket.socket().bind(('127.0.0.1', {port}))");
            let mut command = Command::new("setpriv");
            let command = command
                .args(ids)
                .args(kept)
                .args(["/usr/bin/python3", "-c", &program]);
            let output = command.output().unwrap();
            (
                output.status.success(),
                String::from_utf8(output.stderr).unwrap(),
            )
        };
        assert_eq!(with(77), (true, String::new()));
        let (is_bound, refused) = with(76);
        assert!(!is_bound && refused.contains("Errno 1]"), "{refused}");
    }
    let _start = Start::set(0);
    let mut configure = |settings: PortSettings| {
        let settings = Settings::Portacl(settings);
        world.framework().configure("portacl", &settings).unwrap();
    };
    // Without a rule, and with one: for the user, the group, and a supplementary group.
    configure(settings(Vec::new(), 77));
    actor.does_all(&matrix(["EPERM", "ok"]));
    configure(settings(Vec::new(), 7778));
    actor.does_all(&matrix(["EPERM", "EPERM"]));
    configure(settings(rules(PortHolder::User(user), &[77, 7777]), 7778));
    actor.does_all(&matrix(["ok", "ok"]));
    let some = group.to_string();
    let other = |gid: &str| by(group, gid, "tcp:4:77");
    actor.does_all(&[(other(&some), "EPERM")]);
    configure(settings(rules(PortHolder::Group(group), &[77]), 7778));
    actor.does_all(&matrix(["EPERM", "EPERM"]));
    actor.does_all(&[
        (by(user, &some, "tcp:4:77"), "ok"),
        (by(user, &some, "udp:6:77"), "ok"),
        (by(user, &format!("9+{some}"), "tcp:6:77"), "ok"),
        (by(user, &format!("9+{some}"), "udp:4:77"), "ok"),
        (by(user, &format!("9+{some}"), "udp:4:7777"), "EPERM"),
        (by(user, "9+8", "udp:4:77"), "EPERM"),
    ]);
    // One protocol is not the other; MPTCP has the ports of TCP, UDP-Lite rules of UDP.
    let mut one = rules(PortHolder::User(user), &[77]);
    one.truncate(1);
    configure(settings(one, 1023));
    actor.does_all(&[
        (by(user, "9", "tcp:4:77"), "ok"),
        (by(user, "9", "mptcp:4:77"), "ok"),
        (by(user, "9", "udp:4:77"), "EPERM"),
        (by(user, "9", "lite:4:77"), "EPERM"),
        (by(user, "9", "mptcp:6:78"), "EPERM"),
        (by(user, "9", "lite:4:7777"), "ok"),
        // Root is exempt, and everybody asks for a port that the kernel chooses.
        (by(0, "0", "tcp:4:77"), "ok"),
        (by(0, "0", "udp:6:1023"), "ok"),
        (by(user, "9", "tcp:4:0"), "ok"),
    ]);
    configure(PortSettings {
        suser_exempt: false,
        autoport_exempt: false,
        ..settings(rules(PortHolder::User(user), &[77, 0]), 1023)
    });
    actor.does_all(&[
        (by(0, "0", "tcp:4:77"), "EPERM"),
        (by(0, "0", "udp:6:1023"), "EPERM"),
        (by(0, "0", "tcp:4:1024"), "ok"),
        (by(0, "0", "tcp:4:0"), "EPERM"),
        (by(user, "9", "udp:4:0"), "ok"),
        (by(user, "9", "tcp:6:77"), "ok"),
    ]);
    let refusals = world.framework().modules().unwrap()[0].refusals.clone();
    assert_eq!(refusals[0].0, EntryPoint::SocketBind, "{refusals:?}");
    world.framework().unload("portacl").unwrap();
    actor.does_all(&[(by(group, &some, "tcp:4:77"), "ok")]);
}
