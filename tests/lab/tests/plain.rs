//! Plain connect() of programs that know nothing of Usher, to a service's real address.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use usher_lab::{ALICE, Command, Host, Lab, Mail};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(60);

/// A service that greets every connection with its user's number and goes on.
const GREETER: &str = "
import os, socket
listener = socket.socket(fileno=3)
listener.setblocking(True)
while True:
    connection, _ = listener.accept()
    connection.sendall(f'{os.getuid()}\\n'.encode())
    connection.close()
";

/// Connects to ADDRESS COUNT times and prints what it is greeted with, or the error.
const CLIENT: &str = "
import errno, socket, sys
for _ in range(int(sys.argv[2])):
    try:
        connection = socket.create_connection((sys.argv[1], 7000))
        print(connection.makefile().readline(), end='', flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
";

const CLIENTS_POLICY: &str =
    "client greeter { users mail; service greeter at mailhost port 7000; programs any; }\n";

/// What a daemon counts, by `usher doctor`.
fn number(host: &Host, role: &str, name: &str) -> Result<u64> {
    let doctor = host.command(["usher", "doctor"]).run()?.stdout;
    let line = doctor
        .lines()
        .find(|line| line.contains(&format!("daemon {role}")))
        .ok_or_else(|| format!("doctor says nothing of the {role}:\n{doctor}"))?;
    let mut words = line.split([' ', ',']).filter(|word| !word.is_empty());
    words
        .find(|word| *word == name)
        .and_then(|_| words.next())
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("the {role} does not count {name}: {line}").into())
}

fn eventually(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result {
    let begun = Instant::now();
    while !done()? {
        assert!(begun.elapsed() < LONG, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The mail topology with the greeter at port 7000.
fn topology() -> Result<Mail> {
    let mail = Lab::mail()?;
    mail.mailhost.write("/var/lib/greeter.py", GREETER)?;
    mail.mailhost.write(
        "/etc/usher/policy.d/greeter.policy",
        "service greeter { program \"/usr/bin/python3\" \"/var/lib/greeter.py\"; listen 7000; \
         style user; users mail; hosts laptop; }\n",
    )?;
    mail.laptop
        .write("/etc/usher/policy.d/greeter.policy", CLIENTS_POLICY)?;
    for host in [&mail.laptop, &mail.mailhost] {
        host.run(["usher", "policy", "apply"])?;
    }
    mail.laptop.write("/var/lib/client.py", CLIENT)?;
    Ok(mail)
}

/// The client to the greeter at mailhost's IPv4 address.
fn client(mail: &Mail, user: &str, count: u32) -> Command {
    let (address, count) = (mail.mailhost.ipv4().to_string(), count.to_string());
    mail.laptop
        .command(["python3", "/var/lib/client.py", &address, &count])
        .user(user)
        .limit(LONG)
}

fn has_ticket(mail: &Mail, count: u64) -> Result {
    eventually("the signer has the ticket", || {
        Ok(number(&mail.laptop, "signer", "tickets")? == count)
    })
}

#[test]
fn a_plain_connect_is_the_users_and_the_next_ones_carry_tokens() -> Result {
    let mail = topology()?;
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    has_ticket(&mail, 1)?;
    assert_eq!(number(&mail.laptop, "signer", "plain_held")?, 1);
    assert_eq!(client(&mail, "alice", 3).run()?.stdout, greeting.repeat(3));
    assert_eq!(number(&mail.laptop, "signer", "plain_held")?, 1);
    assert_eq!(number(&mail.mailhost, "keeper", "token_accepted")?, 3);
    Ok(())
}

#[test]
fn who_is_not_permitted_is_refused_at_once() -> Result {
    let mail = topology()?;
    mail.laptop.add_account("dave", 1004)?;
    // carol is not permitted by mailhost, dave and root not by laptop.
    for user in ["carol", "dave", "root"] {
        let refused = client(&mail, user, 2).run()?;
        assert_eq!(refused.stdout, "ECONNREFUSED\nECONNREFUSED\n", "{user}");
    }
    assert_eq!(number(&mail.laptop, "signer", "plain_refused")?, 6);
    assert_eq!(number(&mail.laptop, "signer", "plain_announced")?, 0);
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    Ok(())
}

#[test]
fn without_the_statement_a_plain_connect_is_nobodys() -> Result {
    let mail = topology()?;
    let greeting = format!("{}\n", ALICE.mailhost_uid);
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    has_ticket(&mail, 1)?;
    // The ticket stays, for programs that ask.
    let asking = CLIENTS_POLICY.replace("programs any; ", "");
    mail.laptop
        .write("/etc/usher/policy.d/greeter.policy", asking)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, "ECONNREFUSED\n");
    let asked = ["usher", "connect", "mailhost:greeter"];
    assert_eq!(mail.laptop.run_as("alice", asked)?.stdout, greeting);
    mail.laptop
        .write("/etc/usher/policy.d/greeter.policy", CLIENTS_POLICY)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    assert_eq!(client(&mail, "alice", 1).run()?.stdout, greeting);
    Ok(())
}
