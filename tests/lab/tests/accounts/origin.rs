//! What PAM decides by the host at the other end: real pam_access, and a session for each host.

use std::error::Error;

use usher_lab::{Daemon, Host, Lab, Mail, PATIENCE, Role, Running, eventually};

use super::reading::Outcome;
use super::{SESSIONS, SESSIONS_CLIENT, TELL, add_modules, gets_in, noted};

/// A second host of alice, with her key.
struct Tablet {
    host: Host,
    _signer: Daemon,
    _courier: Daemon,
}

const TABLET_POLICY: &str = "users mail { member alice; }\n\
    client mail { users mail; service imap at mailhost port 143; }\n";

fn tablet(mail: &Mail) -> Result<Tablet, Box<dyn Error>> {
    let host = mail.lab.host("tablet")?;
    host.run(["usher", "init", "--name", "tablet"])?;
    host.add_account("alice", 1001)?;
    let key = mail.laptop.read("/home/alice/.ssh/id_ed25519")?;
    host.write("/root/alice", key)?;
    host.run(["chmod", "600", "/root/alice"])?;
    host.run([
        "usher",
        "user",
        "add",
        "alice",
        "--private-key",
        "/root/alice",
    ])?;
    host.know(&host)?;
    host.know(&mail.mailhost)?;
    mail.mailhost.know(&host)?;
    host.write("/etc/usher/policy.d/mail.policy", TABLET_POLICY)?;
    let policy = "/etc/usher/policy.d/mail.policy";
    mail.mailhost
        .replace(policy, "hosts laptop;", "hosts laptop, tablet;")?;
    host.run(["usher", "policy", "apply"])?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    Ok(Tablet {
        _signer: host.start_daemon(Role::Signer)?,
        _courier: host.start_daemon(Role::Courier)?,
        host,
    })
}

fn is_served_at(host: &Host) -> Result<bool, Box<dyn Error>> {
    let connection = host
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .input("x LOGOUT\r\n")
        .run()?;
    let greeted = connection.stdout.contains("Logged in as alice");
    assert_eq!(greeted, connection.status.success(), "{connection:?}");
    Ok(greeted)
}

/// Has pam_access decide by these lines, each with the addresses of one host.
fn access(mail: &Mail, lines: &str) -> Outcome {
    mail.mailhost.write("/etc/security/access.conf", lines)?;
    Ok(())
}

fn only(host: &Host) -> String {
    let (ipv4, ipv6) = (host.ipv4(), host.ipv6());
    format!("+:alice:{ipv4}/32 {ipv6}/128\n-:alice:ALL\n")
}

// Threat model: A90
#[test]
fn pam_access_decides_by_the_clients_host() -> Outcome {
    let mail = Lab::mail()?;
    let started = tablet(&mail)?;
    let tablet = &started.host;
    mail.laptop.use_ipv4_only()?;
    tablet.use_ipv4_only()?;
    let laptop = &mail.laptop;
    add_modules(&mail, "account required pam_access.so\n")?;
    // (a rule, whether laptop is served, and whether tablet is). Before any session is open, and again
    // for sessions that the rules before have permitted. The answers of the first are fresh when the second asks.
    let rules = [
        (only(laptop), true, false),
        (only(tablet), false, true),
        ("+:alice:LOCAL\n-:alice:ALL\n".to_owned(), false, false),
        ("+:alice:ALL\n".to_owned(), true, true),
    ];
    for round in 0..2 {
        for (rule, at_laptop, at_tablet) in &rules {
            access(&mail, rule)?;
            assert_eq!(is_served_at(laptop)?, *at_laptop, "{round} laptop: {rule}");
            assert_eq!(is_served_at(tablet)?, *at_tablet, "{round} tablet: {rule}");
            assert!(gets_in(&mail, "bob")?, "{rule}");
        }
    }
    access(&mail, &only(laptop))?;
    let refused = tablet
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .run()?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let reason = format!("client={}", tablet.ipv4());
    assert!(
        mail.keeper.wait_log(&reason, PATIENCE)?,
        "{}",
        mail.keeper.log()?
    );
    Ok(())
}

/// A module that notes each opening, and waits there until the test lets it go on.
const WAIT: &str = "#!/bin/sh\necho \"$PAM_TYPE $PAM_RHOST $PAM_TTY$PAM_RUSER\" >>/var/lib/noted\n\
    while [ ! -e /var/lib/go ]; do sleep 0.01; done\n";

/// The addresses of the worker's client, as its session has it and as its connection does.
const PEER: &str = "import socket; told[\"peer\"] = \
    socket.socket(fileno=os.dup(0)).getpeername()[0].removeprefix(\"::ffff:\")\n";

fn open_at(host: &Host) -> Result<Running, Box<dyn Error>> {
    let command = host.command(["usher", "connect", "mailhost:inside"]);
    Ok(command.user("alice").spawn()?)
}

/// The client's address by the session and by the connection, of a worker.
fn told_by(connection: &mut Running) -> Result<(String, String), Box<dyn Error>> {
    let text = connection.read_past("all\n", PATIENCE)?;
    let value = |name: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
        values.next().map(str::to_owned).ok_or(text.clone())
    };
    Ok((value("FROM_RHOST=")?, value("peer=")?))
}

// Threat model: A90
#[test]
fn a_session_is_opened_for_one_clients_host() -> Outcome {
    let mail = Lab::mail()?;
    let started = tablet(&mail)?;
    let tablet = &started.host;
    mail.laptop.use_ipv4_only()?;
    tablet.use_ipv4_only()?;
    let tell = TELL.replace("for name, value", &format!("{PEER}for name, value"));
    mail.mailhost.write_program("/var/lib/tell", tell)?;
    mail.mailhost.write_program("/var/lib/wait", WAIT)?;
    mail.mailhost.write("/var/lib/noted", "")?;
    mail.mailhost.write(
        "/etc/security/pam_env.conf",
        "FROM_RHOST DEFAULT=@{PAM_RHOST}\n",
    )?;
    let hosts = SESSIONS.replace("hosts laptop;", "hosts laptop, tablet;");
    mail.add_policies("sessions", hosts, SESSIONS_CLIENT)?;
    tablet.write("/etc/usher/policy.d/sessions.policy", SESSIONS_CLIENT)?;
    tablet.run(["usher", "policy", "apply"])?;
    let module = "session required pam_exec.so type=open_session /var/lib/wait\n";
    add_modules(&mail, module)?;
    // While the first session opens, the other host's connection comes into the same queue.
    let mut laptop = open_at(&mail.laptop)?;
    let first = mail.laptop.ipv4();
    noted(&mail, &format!("open_session {first} usher\n"))?;
    let mut other = open_at(tablet)?;
    let ss = ["ss", "-Htn", "state", "established", "sport", "= :7101"];
    eventually("both connections wait", || {
        Ok(mail.mailhost.run(ss)?.stdout.lines().count() == 2)
    })?;
    mail.mailhost.write("/var/lib/go", "")?;
    for connection in [&mut laptop, &mut other] {
        let (session, peer) = told_by(connection)?;
        assert_eq!(session, peer);
    }
    let second = tablet.ipv4();
    noted(
        &mail,
        &format!("open_session {first} usher\nopen_session {second} usher\n"),
    )
}
