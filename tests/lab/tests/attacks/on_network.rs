//! Attempts from the network and at the service's port, by attackers without a connection of their
//! own. These tests need no LSM programs and run on every kernel.

use crate::attackers::{run_as, says};
use crate::service::{Result, reads_mail, shared};
use usher_lab::{Host, Mail, PATIENCE, Running, eventually};

const NETWORK: &str = include_str!("../../programs/network.py");

fn attacker(host: &Host, user: &str, script: &str) -> Result<Running> {
    run_as(host, user, &format!("{NETWORK}\n{script}"))
}

/// Alice's connection to a service that needs no fence.
fn plainly(mail: &Mail) -> Result<Running> {
    Ok(mail
        .laptop
        .command(["usher", "connect", "mailhost:plain"])
        .user("alice")
        .spawn()?)
}

// Threat model: A1
#[test]
fn a_forged_syn_is_reset_only_at_a_services_port() -> Result {
    let mail = shared()?;
    let mut open = attacker(
        &mail.mailhost,
        "root",
        "kept = listen('::', 7100)\ntell('ready')\nhear()",
    )?;
    says(&mut open, &["ready"])?;
    for host in [&mail.stranger, &mail.laptop] {
        let (own, server) = (host.ipv4(), mail.mailhost.ipv4());
        let script = format!(
            "for port in (143, 7000, 7001, 7100):
    tell(forge('{own}', '{server}', port, 2))"
        );
        let mut forger = attacker(host, "root", &script)?;
        says(&mut forger, &["RST+ACK", "RST+ACK", "RST+ACK", "SYN+ACK"])?;
    }
    reads_mail(&mail, "alice")
}

// Threat model: A1
#[test]
fn a_forged_ack_opens_nothing() -> Result {
    let mail = shared()?;
    let (own, server) = (mail.stranger.ipv4(), mail.mailhost.ipv4());
    // ACK, as for a SYN cookie; ACK and data; SYN and ACK; FIN.
    let script = format!(
        "for flags in (16, 24, 18, 17):
    tell(forge('{own}', '{server}', 143, flags))"
    );
    let mut forger = attacker(&mail.stranger, "root", &script)?;
    says(&mut forger, &["RST"; 4])?;
    reads_mail(&mail, "alice")
}

// Threat model: A52
#[test]
fn a_user_opens_no_socket_that_forges_packets_and_root_does() -> Result {
    let mail = shared()?;
    let script = "for family, kind, protocol in [
    (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
    (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_TCP),
    (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
    (socket.AF_PACKET, socket.SOCK_RAW, 0),
    (socket.AF_PACKET, socket.SOCK_DGRAM, 0),
]:
    tell(attempt(socket.socket, family, kind, protocol))";
    for host in [&mail.laptop, &mail.mailhost] {
        says(&mut attacker(host, "bob", script)?, &["EPERM"; 5])?;
        says(&mut attacker(host, "root", script)?, &["done"; 5])?;
    }
    Ok(())
}

// Threat model: A1
#[test]
fn the_queues_behind_a_service_cannot_be_connected_to() -> Result {
    let mail = shared()?;
    let mut alice = plainly(&mail)?;
    let queues = || -> Result<Vec<(String, String)>> {
        let listing = mail.mailhost.run(["ss", "-Htnl"])?.stdout;
        let local = listing
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3));
        let queue = local.filter_map(|address| address.rsplit_once(':'));
        Ok(queue
            .map(|(address, port)| (address.replace(['[', ']'], ""), port.to_owned()))
            .map(|(address, port)| (address.replace("::ffff:", ""), port))
            .filter(|(address, _)| {
                let first = address.split('.').next().and_then(|byte| byte.parse().ok());
                first.is_some_and(|byte: u8| byte >= 240)
            })
            .collect())
    };
    eventually("alice has a queue", || Ok(!queues()?.is_empty()))?;
    for (address, port) in queues()? {
        let script = format!(
            "tell(connect('{address}', {port}), connect('::ffff:{address}', {port}))
tell(connect('{}', {port}))",
            mail.mailhost.ipv4()
        );
        for (host, user) in [
            (&mail.mailhost, "bob"),
            (&mail.mailhost, "root"),
            (&mail.stranger, "root"),
            (&mail.laptop, "alice"),
        ] {
            let mut attempt = attacker(host, user, &script)?;
            let said = attempt.read_past("\n", PATIENCE)?;
            assert!(!said.contains("done"), "{user} on {}: {said}", host.name());
            says(&mut attempt, &["ECONNREFUSED"])?;
        }
    }
    alice.end()?;
    reads_mail(&mail, "alice")
}

// Threat model: A78
#[test]
fn a_services_port_is_not_bound_by_a_user() -> Result {
    let mail = shared()?;
    let address = mail.mailhost.ipv4();
    let script = format!(
        "for host in ('{address}', '::1', '127.0.0.1', '::ffff:{address}'):
    tell(attempt(listen, host, 7003), attempt(listen, host, 7000), attempt(listen, host, 7100))"
    );
    let said = ["EACCES EACCES done"; 4];
    says(&mut attacker(&mail.mailhost, "bob", &script)?, &said)?;
    // Another host's services do not concern this host's ports.
    let script = format!("tell(attempt(listen, '{}', 7003))", mail.laptop.ipv4());
    says(&mut attacker(&mail.laptop, "bob", &script)?, &["done"])
}

// Threat model: A78
#[test]
fn root_gets_no_connection_by_binding_a_services_port_first() -> Result {
    let mail = shared()?;
    // Port 7003 belongs to a service, 7100 to none. All addresses can be bound unless a queue of the
    // service has the port already; this host's own addresses can always be bound.
    let address = mail.mailhost.ipv4();
    let script = format!(
        "listeners = [listen('{address}', 7003), listen('{address}', 7003), listen('::1', 7003)]
try:
    listeners.append(listen('::', 7003))
except OSError as error:
    assert error.errno == errno.EADDRINUSE, error
free = listen('{address}', 7100)
tell('ready')
hear()
tell(*sorted({{waits(listener) for listener in listeners}}), waits(free))
tell(connect('{address}', 7003), connect('::1', 7003), connect('{address}', 7100))
hear()"
    );
    let mut root = attacker(&mail.mailhost, "root", &script)?;
    says(&mut root, &["ready"])?;
    let mut alice = plainly(&mail)?;
    eventually("alice's connection is established", || {
        let who = mail.mailhost.run(["usher", "who"])?.stdout;
        let mut lines = who.lines();
        Ok(lines.any(|line| {
            line.contains("alice") && line.contains(":7003 ") && line.contains("established")
        }))
    })?;
    for host in [&mail.stranger, &mail.laptop] {
        let script = format!("tell(connect('{address}', 7003))");
        says(&mut attacker(host, "root", &script)?, &["ECONNREFUSED"])?;
    }
    let script = format!("tell(connect('{address}', 7100))");
    says(&mut attacker(&mail.stranger, "root", &script)?, &["done"])?;
    root.write("\n")?;
    says(
        &mut root,
        &["nothing stolen", "ECONNREFUSED ECONNREFUSED done"],
    )?;
    alice.end()?;
    Ok(())
}

// Threat model: A129
#[test]
fn a_foreign_listener_at_a_services_port_gets_nothing() -> Result {
    let mail = shared()?;
    let address = mail.mailhost.ipv4();
    let script = format!(
        "listeners = [listen('{address}', 143), listen('{address}', 143), listen('{address}', 7101)]
tell('ready')
hear()
for listener in listeners:
    tell(waits(listener))"
    );
    let mut root = attacker(&mail.mailhost, "root", &script)?;
    says(&mut root, &["ready"])?;
    reads_mail(&mail, "alice")?;
    let script = format!("tell(connect('{address}', 7101))");
    says(&mut attacker(&mail.stranger, "root", &script)?, &["done"])?;
    root.write("\n")?;
    says(&mut root, &["nothing", "nothing", "stolen"])
}
