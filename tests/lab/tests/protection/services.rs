//! Services that demand protection, and `client` blocks that have it.

use usher_lab::protected::start_charon;
use usher_lab::{Daemon, Lab, Mail, eventual};

use super::*;

/// Two services of mailhost that say whom they serve: one that demands encryption, and one that does
/// not.
const PROTECTED_PORT: &str = "7001";
const PLAIN_PORT: &str = "7002";

/// The mail topology with these services in place of its own.
fn protected_service() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    write_services(&mail, "protection encryption;")?;
    write_clients(&mail, "protection encryption;")?;
    Ok(mail)
}

fn write_services(mail: &Mail, protection: &str) -> Outcome {
    let common = "program \"/usr/bin/id\" \"-un\"; style connection; users mail; hosts laptop;";
    let policy = format!(
        "users mail {{ member alice, bob; }}\nservice protected {{ {common} listen {PROTECTED_PORT}; \
         {protection} }}\nservice plain {{ {common} listen {PLAIN_PORT}; }}\n"
    );
    mail.mailhost
        .write("/etc/usher/policy.d/mail.policy", policy)?;
    Ok(())
}

fn write_clients(mail: &Mail, protection: &str) -> Outcome {
    let policy = format!(
        "users mail {{ member alice, bob; }}\nclient protected {{ users mail; service protected at \
         mailhost port {PROTECTED_PORT}; {protection} }}\nclient plain {{ users mail; service plain at \
         mailhost port {PLAIN_PORT}; }}\n"
    );
    mail.laptop
        .write("/etc/usher/policy.d/mail.policy", policy)?;
    Ok(())
}

fn connecting(mail: &Mail, service: &str) -> Result<Running, Box<dyn std::error::Error>> {
    let target = format!("mailhost:{service}");
    let command = mail.laptop.command(["usher", "connect", &target]);
    Ok(command.user("alice").spawn()?)
}

/// Has alice connect, and returns what the service says.
fn connect(mail: &Mail, service: &str) -> Result<String, Box<dyn std::error::Error>> {
    let target = format!("mailhost:{service}");
    let command = mail.laptop.command(["usher", "connect", &target]);
    Ok(command.user("alice").succeed()?.stdout)
}

/// A plaintext SYN is dropped at the server, and leaves the announcement as it was. A client with
/// `protection` sends none.
// Threat model: P52, P53
#[test]
fn a_protected_service_is_not_reached_in_the_clear() -> Outcome {
    let mut mail = protected_service()?;
    let refused = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(refused.stderr.contains("protector"), "{}", refused.stderr);
    let mut protector = mail.mailhost.start_daemon(Role::Protector)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let works = |name: &str| -> Result<bool, Box<dyn std::error::Error>> {
        let probed = mail.mailhost.run(["usherd", "probe", name])?.stdout;
        let probed: serde_json::Value = serde_json::from_str(&probed)?;
        Ok(probed[0]["works"] == true)
    };
    if !works("protected services")? {
        let doctor = mail.mailhost.command(["usher", "doctor"]).run()?.stdout;
        assert!(
            doctor.contains("sessions with protected are refused"),
            "{doctor}"
        );
        println!("skipped: this kernel has no programs for netfilter");
        return Ok(());
    }
    let number = |name: &str| mail.mailhost.number(Role::Keeper, name);
    // The client's policy does not protect it yet.
    write_clients(&mail, "")?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let mut plain = connecting(&mail, "protected")?;
    eventually("its SYN is dropped", || Ok(number("packets_refused")? > 0))?;
    assert_eq!(number("admitted")?, 0, "no announcement is used");
    plain.end()?;
    assert_eq!(connect(&mail, "plain")?, "alice\n", "the service beside it");
    // The client's does: without SAs nothing leaves.
    write_clients(&mail, "protection encryption;")?;
    let refused = mail.laptop.command(["usher", "policy", "apply"]).run()?;
    assert!(refused.stderr.contains("protector"), "{}", refused.stderr);
    let _other = mail.laptop.start_daemon(Role::Protector)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let mut capture = watch_packets(&mail.mailhost)?;
    let mut waiting = connecting(&mail, "protected")?;
    eventually("the kernel asks for SAs", || {
        Ok(!mail.laptop.run(["ip", "xfrm", "state"])?.stdout.is_empty())
    })?;
    assert_eq!(connect(&mail, "plain")?, "alice\n");
    let end = format!("tcp {} {PLAIN_PORT}\n", mail.laptop.ipv4());
    let seen = capture.read_past(&end, PATIENCE)?;
    let tcp = format!("tcp {} {PROTECTED_PORT}", mail.laptop.ipv4());
    assert!(!seen.lines().any(|line| line == tcp), "{seen}");
    waiting.end()?;
    // Without the demand everyone is served again.
    write_services(&mail, "")?;
    write_clients(&mail, "")?;
    mail.apply()?;
    assert_eq!(connect(&mail, "protected")?, "alice\n");
    // The demand is the kernel's, until it is released.
    write_services(&mail, "protection authentication;")?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    mail.keeper.stop()?;
    let server = format!(
        "TCP:{}:{PROTECTED_PORT},connect-timeout=2",
        mail.mailhost.ipv4()
    );
    let answer = || mail.stranger.command(["socat", "-", &server]).run();
    assert!(answer()?.stderr.contains("timed out"));
    mail.mailhost.run(["usherd", "release"])?;
    // The protector's programs drop the answers.
    assert!(answer()?.stderr.contains("timed out"));
    protector.stop()?;
    mail.mailhost.run(["usherd", "release"])?;
    eventually("the port is closed and no more", || {
        Ok(answer()?.stderr.contains("refused"))
    })?;
    Ok(())
}

/// No `application` block names `usher`. After the first connection tokens are used.
// Threat model: A15, P52
#[test]
fn users_of_a_protected_service_come_by_esp() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let mail = protected_service()?;
    let hosts = [&mail.laptop, &mail.mailhost];
    let _charons: Vec<Daemon> = hosts
        .map(start_charon)
        .into_iter()
        .collect::<Result<_, _>>()?;
    let _protectors = hosts.map(|host| host.start_daemon(Role::Protector));
    let applied = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(applied.status.success(), "{}", applied.stderr);
    mail.laptop.run(["usher", "policy", "apply"])?;
    eventually("SAs are there", || {
        let peers = json(&mail.laptop, &["protection", "peers"])?;
        Ok(peers["peers"][0]["classes"][0]["protected"] == true)
    })?;
    let number = |name: &str| mail.mailhost.number(Role::Keeper, name);
    if number("packets_refused").is_err() {
        println!("skipped: this kernel has no programs for netfilter");
        return Ok(());
    }
    let mut capture = watch_packets(&mail.mailhost)?;
    // A loaded host takes longer to open the control channel than an announcement waits for it.
    let announced = eventual("alice is served", || Ok(connect(&mail, "protected").ok()))?;
    assert_eq!(announced, "alice\n");
    eventually("alice has a ticket", || {
        Ok(mail.laptop.number(Role::Signer, "tickets")? == 1)
    })?;
    for tokens in 1..=2 {
        assert_eq!(connect(&mail, "protected")?, "alice\n");
        assert_eq!(number("token_accepted")?, tokens, "read in ESP");
    }
    // A plain connection without a ticket: its SYN is held, and sent again.
    write_clients(&mail, "protection encryption; programs any;")?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let announced = mail.laptop.number(Role::Signer, "plain_announced")?;
    let server = format!("TCP:{}:{PROTECTED_PORT}", mail.mailhost.ipv4());
    let bobs = mail
        .laptop
        .command(["socat", "-t500", "-", &server])
        .user("bob");
    assert_eq!(bobs.succeed()?.stdout, "bob\n");
    assert!(mail.laptop.number(Role::Signer, "plain_announced")? > announced);
    assert_eq!(connect(&mail, "plain")?, "alice\n");
    let end = format!("tcp {} {PLAIN_PORT}\n", mail.laptop.ipv4());
    let seen = capture.read_past(&end, PATIENCE)?;
    let laptop = mail.laptop.ipv4();
    let saw = |line: String| seen.lines().any(|seen| seen == line);
    assert!(saw(format!("esp {laptop}")), "{seen}");
    assert!(
        !saw(format!("tcp {laptop} {PROTECTED_PORT}")),
        "from the SYN on: {seen}"
    );
    assert_eq!(number("packets_refused")?, 0);
    let shown = json(&mail.mailhost, &["protection", "show"])?;
    assert!(
        shown["services"]
            .to_string()
            .contains("protected at port 7001"),
        "{shown}"
    );
    // Another host has no SAs, and the same host in the clear has none either.
    let server = format!(
        "TCP:{}:{PROTECTED_PORT},connect-timeout=2",
        mail.mailhost.ipv4()
    );
    let stranger = mail.stranger.command(["socat", "-", &server]).run()?;
    assert!(!stranger.status.success());
    let before = number("packets_refused")?;
    assert!(before > 0);
    let admitted = number("admitted")?;
    write_clients(&mail, "")?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let mut plain = connecting(&mail, "protected")?;
    eventually("its SYN is dropped", || {
        Ok(number("packets_refused")? > before)
    })?;
    assert_eq!(number("admitted")?, admitted, "no announcement is used");
    assert_eq!(number("token_accepted")?, 2, "no token is spent");
    plain.end()?;
    // Its kernel has the demand again.
    write_clients(&mail, "protection encryption;")?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    assert_eq!(connect(&mail, "protected")?, "alice\n");
    Ok(())
}
