//! The client interfaces: the C call, IPv6, the proxy's LOGIN; and their reports of refusals.

use std::time::Duration;

use usher_lab::{LIBRARY_PATH, Lab, Mail, PATIENCE, Signal, eventually};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const C_CLIENT: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <usher.h>

int main(int count, char **arguments)
{
	char greeting[4096];
	int connection = connect_by_user(arguments[1], arguments[2]);
	ssize_t length;

	if (connection < 0) {
		printf("errno %d: %s\n", errno, usher_last_error());
		return 1;
	}
	length = read(connection, greeting, sizeof(greeting) - 1);
	greeting[length > 0 ? length : 0] = 0;
	printf("%s", greeting);
	return count != 3;
}
"#;

#[test]
fn the_c_call_connects_as_the_user_and_says_why_it_does_not() -> Outcome {
    let mail = Lab::mail()?;
    mail.laptop.compile_c(C_CLIENT, "/var/lib/c-client")?;
    let call = |user: &str, host: &str, service: &str| {
        mail.laptop
            .command(["/var/lib/c-client", host, service])
            .environment("LD_LIBRARY_PATH", LIBRARY_PATH)
            .user(user)
            .run()
    };
    let alice = call("alice", "mailhost", "imap")?;
    assert!(alice.stdout.contains("Logged in as alice"), "{alice:?}");
    // EACCES, EHOSTUNREACH, EINVAL.
    let carol = call("carol", "mailhost", "imap")?;
    assert!(carol.stdout.starts_with("errno 13: refused: "), "{carol:?}");
    let nowhere = call("alice", "nowhere", "imap")?;
    assert!(
        nowhere.stdout.starts_with("errno 113: refused: "),
        "{nowhere:?}"
    );
    let nothing = call("alice", "no such name", "imap")?;
    assert!(nothing.stdout.starts_with("errno 22: "), "{nothing:?}");
    Ok(())
}

#[test]
fn everything_goes_over_ipv6_as_well() -> Outcome {
    let mail = Lab::mail()?;
    let path = "/etc/usher/policy.d/host-mailhost.policy";
    let policy = mail.laptop.read(path)?;
    let both = format!(
        "address {}, {};",
        mail.mailhost.ipv4(),
        mail.mailhost.ipv6()
    );
    assert!(policy.contains(&both), "{policy}");
    let only = format!("address {};", mail.mailhost.ipv6());
    mail.laptop.write(path, policy.replace(&both, &only))?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let mut connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    assert!(
        connection
            .read_past("\n", PATIENCE)?
            .contains("Logged in as alice")
    );
    let who = mail.mailhost.run(["usher", "who"])?.stdout;
    assert!(
        who.contains(&format!("[{}]:143", mail.mailhost.ipv6())),
        "{who}"
    );
    assert!(!who.contains(&mail.mailhost.ipv4().to_string()), "{who}");
    let verifier = mail.verifier.log()?;
    assert!(
        verifier.contains(&format!("address={}", mail.laptop.ipv6())),
        "{verifier}"
    );
    Ok(())
}

/// A server that keeps everything it receives.
const RECORDER: &str =
    "#!/bin/sh\nprintf '* PREAUTH ready\\r\\n'\nexec tee -a \"$HOME/received\"\n";

// Threat model: A59
#[test]
fn a_password_reaches_neither_the_server_nor_a_log() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost.write_program("/var/lib/recorder", RECORDER)?;
    let server = "service record { program \"/var/lib/recorder\"; listen 1143; \
        style connection; users mail; hosts laptop; }\n";
    let client = "client record { users mail; service record at mailhost port 1143; \
        protocol imap; }\n";
    mail.add_policies("record", server, client)?;
    let mut program = mail
        .laptop
        .command(["socat", "STDIO", "TCP:127.0.1.1:1143"])
        .user("alice")
        .spawn()?;
    program.read_past("\n", PATIENCE)?;
    program.write("a LOGIN alice correct-horse\r\n")?;
    let answer = program.read_past("\n", PATIENCE)?;
    assert!(answer.starts_with("a OK"), "{answer:?}");
    program.write("b APPEND battery-staple\r\n")?;
    program.read_past("battery-staple", PATIENCE)?;
    // tee(1) answers first and writes then.
    let mut received = String::new();
    eventually("what was said is written down", || {
        received = mail.mailhost.read("/home/alice/received")?;
        Ok(received.contains("battery-staple"))
    })?;
    assert!(!received.contains("correct-horse"), "{received}");
    for daemon in [
        &mail.proxy,
        &mail.signer,
        &mail.courier,
        &mail.verifier,
        &mail.keeper,
    ] {
        let log = daemon.log()?;
        assert!(!log.contains("correct-horse"), "{}: {log}", daemon.name());
    }
    Ok(())
}

/// What Python's imaplib, which asks for capabilities before the login only, thinks the server can do; and
/// the server's own list after the login.
const CAPABILITIES: &str = r#"
import imaplib
mail = imaplib.IMAP4("127.0.1.1", 143)
before = set(mail.capabilities)
typ, answer = mail.login("alice", "any")
mail.enable("CONDSTORE")
mail.select("INBOX")
typ, data = mail.capability()
after = set(data[-1].decode().upper().split())
print(sorted(before - after), sorted(after - before))
print("IDLE" in before, answer[-1].decode().split("]")[0])
print(mail.untagged_responses.get("ENABLED"))
mail.logout()
"#;

#[test]
fn imaplib_uses_what_the_server_offers() -> Outcome {
    let mail = Lab::mail()?;
    let script = ["python3", "-c", CAPABILITIES];
    let output = mail.laptop.run_as("alice", script)?.stdout;
    let lines: Vec<&str> = output.lines().collect();
    // Logging in is the proxy's part; the rest is dovecot's.
    assert_eq!(lines[0], "['AUTH=PLAIN'] []", "{output}");
    assert!(
        lines[1].starts_with("True [CAPABILITY IMAP4rev1 "),
        "{output}"
    );
    assert!(lines[1].contains(" ENABLE IDLE "), "{output}");
    Ok(())
}

#[test]
fn each_refusal_has_its_own_reason() -> Outcome {
    let mail = Lab::mail()?;
    mail.laptop
        .replace("/etc/usher/policy.d/mail.policy", "carol;", "carol, dave;")?;
    for host in [&mail.laptop, &mail.mailhost] {
        host.add_account("dave", 1500)?;
        host.add_account("erin", 1501)?;
    }
    mail.laptop.run(["usher", "policy", "apply"])?;
    let refused = |user: &str, destination: &str, reason: &str| -> Outcome {
        let output = mail
            .laptop
            .command(["usher", "connect", destination])
            .user(user)
            .run()?;
        assert_eq!(
            output.status.code(),
            Some(1),
            "{user} {destination}: {output:?}"
        );
        let log = mail.signer.log()?;
        assert!(
            log.contains(&format!("reason=\"{reason}\"")),
            "{reason} is not in\n{log}"
        );
        Ok(())
    };
    refused("carol", "mailhost:imap", "user_not_permitted")?;
    refused("dave", "mailhost:imap", "no_private_key")?;
    refused("erin", "mailhost:imap", "client_policy")?;
    refused("alice", "mailhost:smtp", "client_policy")?;
    refused("alice", "nowhere:imap", "unknown_host")?;
    let permitted = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .input("a LOGOUT\r\n")
        .succeed()?;
    assert!(permitted.stdout.contains("Logged in as alice"));
    Ok(())
}

/// Accepts and counts every connection at its listener, and at the service's port if it can get it.
const EAGER: &str = r#"#!/usr/bin/python3
import os, socket
listener = socket.socket(fileno=3)
while True:
    connection, _ = listener.accept()
    with open(os.environ["HOME"] + "/accepted", "a") as count:
        count.write("one\n")
    connection.sendall(b"welcome\n")
    connection.close()
"#;

// Threat model: A1
#[test]
fn a_stranger_never_reaches_a_service_that_accepts_anybody() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost.write_program("/var/lib/eager", EAGER)?;
    let server = "service eager { program \"/var/lib/eager\"; listen 7200; style user; \
        users mail; hosts laptop; }\n";
    let client = "client eager { users mail; service eager at mailhost port 7200; }\n";
    mail.add_policies("eager", server, client)?;
    let welcome = mail
        .laptop
        .run_as("alice", ["usher", "connect", "mailhost:eager"])?;
    assert_eq!(welcome.stdout, "welcome\n");
    let listening =
        mail.mailhost
            .run(["ss", "--listening", "--tcp", "--numeric", "--no-header"])?;
    let backing: Vec<String> = listening
        .stdout
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("[::ffff:")?.strip_suffix("]:7200"))
        .map(str::to_owned)
        .collect();
    assert_eq!(backing.len(), 1, "{}", listening.stdout);
    let mut addresses = vec![
        mail.mailhost.ipv4().to_string(),
        mail.mailhost.ipv6().to_string(),
    ];
    addresses.extend(backing);
    addresses.extend(["127.0.0.1".into(), "::1".into(), "127.0.0.6".into()]);
    for address in &addresses {
        let connect = format!("import socket; socket.create_connection(('{address}', 7200), 3)");
        for (host, user) in [
            (&mail.stranger, "root"),
            (&mail.laptop, "alice"),
            (&mail.mailhost, "alice"),
            (&mail.mailhost, "root"),
        ] {
            let output = host.command(["python3", "-c", &connect]).user(user).run()?;
            assert!(
                !output.status.success(),
                "{user}@{} at {address}",
                host.name()
            );
        }
    }
    let accepted = mail.mailhost.read("/home/alice/accepted")?;
    assert_eq!(accepted, "one\n", "a stranger was accepted");
    assert_eq!(mail_service_still_works(&mail)?, "welcome\n");
    Ok(())
}

fn mail_service_still_works(mail: &Mail) -> Result<String, Box<dyn std::error::Error>> {
    Ok(mail
        .laptop
        .run_as("alice", ["usher", "connect", "mailhost:eager"])?
        .stdout)
}

/// A verifier keeps one channel of a host: two that were opened at once would end each other, and what the first
/// one has announced.
#[test]
fn a_slow_host_gets_one_channel() -> Outcome {
    let mut mail = Lab::mail()?;
    // Its kernel takes connections at both addresses meanwhile.
    mail.verifier.kill(Signal::STOP)?;
    let mut connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    mail.wait_until_courier_connects()?;
    // Ample for the next address to be tried, and then for the verifier's answers.
    let pause = Duration::from_secs(1);
    std::thread::sleep(pause);
    mail.courier.kill(Signal::STOP)?;
    mail.verifier.kill(Signal::CONT)?;
    std::thread::sleep(pause);
    mail.courier.kill(Signal::CONT)?;
    connection.read_past("Logged in as alice", PATIENCE)?;
    let log = mail.verifier.log()?;
    assert_eq!(log.matches("control channel open").count(), 1, "{log}");
    let recent = mail.mailhost.run(["usher", "who", "--recent"])?.stdout;
    assert!(!recent.contains("alice"), "{recent}");
    Ok(())
}

const OLD: &str = "10.77.0.99";

/// Gives mailhost these addresses in both hosts' policies.
fn set_addresses(mail: &Mail, addresses: &str) -> Outcome {
    let path = "/etc/usher/policy.d/host-mailhost.policy";
    for host in [&mail.laptop, &mail.mailhost] {
        let policy = host.read(path)?;
        let line = policy.lines().find(|line| line.contains("address "));
        let line = line.ok_or("no address")?;
        host.write(
            path,
            policy.replace(line, &format!("  address {addresses};")),
        )?;
    }
    mail.apply()?;
    Ok(())
}

/// By `usher connect`, and through the proxy.
fn is_served_both_ways(mail: &Mail, user: &str) -> Outcome {
    let connect = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
    let proxy = mail
        .laptop
        .command(["socat", "-t", "60", "STDIO", "TCP:127.0.1.1:143"]);
    for (command, greets) in [(connect, "* PREAUTH"), (proxy, "* OK")] {
        let output = command.user(user).input("a LOGOUT\r\n").succeed()?;
        assert!(output.stdout.starts_with(greets), "{output:?}");
    }
    Ok(())
}

#[test]
fn a_host_is_reached_before_and_after_its_move() -> Outcome {
    let mail = Lab::mail()?;
    let new = mail.mailhost.ipv4().to_string();
    // A machine that takes what is sent to it and never answers.
    let silent = [
        "ip",
        "neigh",
        "add",
        OLD,
        "lladdr",
        "02:00:00:00:00:99",
        "dev",
        "eth0",
    ];
    mail.laptop
        .run(silent.into_iter().chain(["nud", "permanent"]))?;
    for addresses in [format!("{OLD}, {new}"), format!("{new}, {OLD}")] {
        set_addresses(&mail, &addresses)?;
        is_served_both_ways(&mail, "alice")?;
    }
    // No machine has it: the kernel says EHOSTUNREACH.
    mail.laptop
        .run(["ip", "neigh", "del", OLD, "dev", "eth0"])?;
    set_addresses(&mail, &format!("{OLD}, {new}"))?;
    is_served_both_ways(&mail, "bob")?;
    // It moves while it is in use.
    // With an address goes every other one of its network.
    for (what, address) in [("del", new.as_str()), ("add", OLD)] {
        let address = format!("{address}/24");
        mail.mailhost
            .run(["ip", "address", what, &address, "dev", "eth0"])?;
    }
    is_served_both_ways(&mail, "alice")?;
    set_addresses(&mail, OLD)?;
    is_served_both_ways(&mail, "alice")
}

#[test]
fn a_service_that_one_address_does_not_offer_is_reached_at_the_other() -> Outcome {
    let mail = Lab::mail()?;
    let mailhost = &mail.mailhost;
    let new = mailhost.ipv4().to_string();
    mailhost.run(["ip", "address", "add", &format!("{OLD}/24"), "dev", "eth0"])?;
    set_addresses(&mail, &format!("{OLD}, {new}"))?;
    is_served_both_ways(&mail, "alice")?;
    let rule = format!("rule add to {OLD} ipproto tcp dport 143 unreachable");
    mail.laptop.run(["ip"].into_iter().chain(rule.split(' ')))?;
    is_served_both_ways(&mail, "bob")
}

#[test]
fn a_connect_that_takes_long_says_so() -> Outcome {
    let mut mail = Lab::mail()?;
    mail.courier.kill(Signal::STOP)?;
    let connect = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
    let mut connect = connect.user("alice").spawn()?;
    eventually("it says so", || {
        Ok(connect
            .stderr()?
            .contains("still connecting to mailhost:imap"))
    })?;
    mail.courier.kill(Signal::CONT)?;
    let greeting = connect.read_past("\n", PATIENCE)?;
    assert!(greeting.starts_with("* PREAUTH"), "{greeting}");
    Ok(())
}
