//! The module `portacl` in a kernel, by the scenarios of FreeBSD's tests of mac_portacl(4).

use super::attacks::Actor;
use super::*;

/// The first port that needs no capability, as it was before a test set another one.
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

/// Statements that permit a user or a group all of these ports.
fn permits(account: &str, ports: &[u16]) -> String {
    let protocols = ["tcp", "udp"].into_iter();
    let permits = protocols.flat_map(|protocol| {
        let permit = move |port| format!("permit {account} {protocol} {port}; ");
        ports.iter().map(permit)
    });
    permits.collect()
}

// Threat model: M29
#[test]
fn ports_are_bound_by_those_whom_rules_permit_them() {
    let Some(mut world) = World::new("portacl", 70) else {
        return;
    };
    let (user, group) = (world.user, world.twin);
    let mut actor = Actor::start(0);
    let settings = |statements: &str, port_high: u16| {
        let statements = format!("{statements} port_high {port_high};");
        let ModuleSettings::Portacl(ports) = block("portacl", &statements) else {
            panic!("{statements}");
        };
        Settings::Portacl(ports, Names::default())
    };
    let (of_user, of_group) = (format!("user {user}"), format!("group {group}"));
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
        let permitted = settings(&permits(&of_user, &[77, 7777]), 77);
        world.framework().load(&Module::with(permitted)).unwrap();
        actor.does_all(&matrix(["EACCES", "ok"]));
        // With the capability the kernel lets the user through, and the rule decides.
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
    let mut configure = |settings: Settings| {
        world.framework().configure("portacl", &settings).unwrap();
    };
    // Without a rule, and with one: for the user, the group, and a supplementary group.
    configure(settings("", 77));
    actor.does_all(&matrix(["EPERM", "ok"]));
    configure(settings("", 7778));
    actor.does_all(&matrix(["EPERM", "EPERM"]));
    configure(settings(&permits(&of_user, &[77, 7777]), 7778));
    actor.does_all(&matrix(["ok", "ok"]));
    let some = group.to_string();
    let other = |gid: &str| by(group, gid, "tcp:4:77");
    actor.does_all(&[(other(&some), "EPERM")]);
    configure(settings(&permits(&of_group, &[77]), 7778));
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
    configure(settings(&format!("permit {of_user} tcp 77;"), 1023));
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
    let all = permits(&of_user, &[77, 0]);
    let all = format!("{all} suser_exempt no; autoport_exempt no;");
    configure(settings(&all, 1023));
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
