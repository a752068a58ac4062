//! Bytes through the proxy and through `usher connect`: how connections end, and that none waits for
//! ever.

mod reading;

use reading::Outcome;
use usher_lab::{Lab, Mail, Output, PATIENCE, Role, Running, Signal, eventually};

/// Handles each connection as its first line says, and records how it ended.
const SERVER: &str = r#"#!/usr/bin/python3
import os, socket, struct, threading
def note(text):
    with open(os.environ["HOME"] + "/outcomes", "a") as outcomes:
        outcomes.write(text + "\n")
def serve(connection):
    word, count = connection.makefile("r", newline="\n").readline().split()
    try:
        while word == "flood":
            connection.sendall(bytes(65536))
        connection.sendall(bytes(int(count)))
        if word == "abort":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif word == "urgent":
            connection.sendall(b"before")
            connection.send(b"!", socket.MSG_OOB)
            connection.sendall(b"after")
        elif word == "hold":
            connection.sendall(b"held\n")
            connection.recv(1)
            note("end")
    except OSError as error:
        note(type(error).__name__)
    connection.close()
listener = socket.socket(fileno=3)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

const SERVICE: &str = "service pour { program \"/var/lib/pour\"; listen 7300; style user; \
    users mail; hosts laptop; }\n";
const CLIENT: &str = "client pour { users mail; service pour at mailhost port 7300; }\n";

/// Sends the proxy a line, and reports how many bytes came and how they ended.
const THROUGH_PROXY: &str = r#"
import socket, sys
count = 0
try:
    connection = socket.create_connection(("127.0.1.1", 7300))
    connection.sendall(sys.argv[1].encode() + b"\n")
    while piece := connection.recv(65536):
        if not count:
            print("begun", flush=True)
        count += len(piece)
    print(count, "end")
except ConnectionResetError:
    print(count, "reset")
"#;

fn mail() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    mail.mailhost.write_program("/var/lib/pour", SERVER)?;
    mail.add_policies("pour", SERVICE, CLIENT)?;
    Ok(mail)
}

fn through_proxy(
    mail: &Mail,
    user: &str,
    line: &str,
) -> Result<Running, Box<dyn std::error::Error>> {
    let command = mail.laptop.command(["python3", "-c", THROUGH_PROXY, line]);
    Ok(command.user(user).spawn()?)
}

fn by_connect(mail: &Mail, line: &str) -> Result<Output, Box<dyn std::error::Error>> {
    let command = mail.laptop.command(["usher", "connect", "mailhost:pour"]);
    Ok(command.user("alice").input(format!("{line}\n")).run()?)
}

/// How alice's connections ended on the server.
fn outcomes(mail: &Mail) -> String {
    mail.mailhost
        .read("/home/alice/outcomes")
        .unwrap_or_default()
}

// Threat model: A65
#[test]
fn an_aborted_transfer_does_not_look_whole() -> Outcome {
    let mail = mail()?;
    // An abort loses unsent bytes, in the server's kernel and in the proxy's alike.
    for (word, end) in [("abort", " reset\n"), ("whole", "5000000 end\n")] {
        through_proxy(&mail, "alice", &format!("{word} 5000000"))?.read_past(end, PATIENCE)?;
    }
    let whole = by_connect(&mail, "whole 5000000")?;
    assert!(whole.status.success(), "{:?}", whole.stderr);
    assert_eq!(whole.stdout.len(), 5_000_000);
    let broken = by_connect(&mail, "abort 5000000")?;
    assert_eq!(broken.status.code(), Some(1), "{:?}", broken.stderr);
    assert!(
        broken
            .stderr
            .contains("the connection broke before its end"),
        "{:?}",
        broken.stderr
    );
    Ok(())
}

// Threat model: A65
#[test]
fn a_revoked_transfer_is_reset_and_another_users_is_not() -> Outcome {
    let mail = mail()?;
    let mut alice = through_proxy(&mail, "alice", "hold 1000")?;
    let mut bob = through_proxy(&mail, "bob", "hold 1000")?;
    for user in [&mut alice, &mut bob] {
        user.read_past("begun", PATIENCE)?;
    }
    let connect = mail.laptop.command(["usher", "connect", "mailhost:pour"]);
    let mut connect = connect.user("alice").spawn()?;
    connect.write("hold 1000\n")?;
    connect.read_past("held", PATIENCE)?;

    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    alice.read_past("1005 reset\n", PATIENCE)?;
    let status = connect.wait(PATIENCE)?.ok_or("usher connect goes on")?;
    assert_eq!(status.code(), Some(1), "{}", connect.stderr()?);
    assert!(!bob.has_ended()?);
    Ok(())
}

#[test]
fn an_abort_of_the_client_reaches_the_server() -> Outcome {
    let mail = mail()?;
    let abort = "import socket, struct; c = socket.create_connection(('127.0.1.1', 7300)); \
        c.sendall(b'hold 1\\n'); c.recv(6, socket.MSG_WAITALL); \
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', HOW, 0))";
    for (linger, outcome) in [("1", "ConnectionResetError\n"), ("0", "end\n")] {
        let program = abort.replace("HOW", linger);
        mail.laptop.run_as("alice", ["python3", "-c", &program])?;
        eventually("the server has seen it", || {
            Ok(outcomes(&mail).ends_with(outcome))
        })?;
    }
    Ok(())
}

#[test]
fn a_reader_may_leave_and_the_server_learns_it() -> Outcome {
    let mail = mail()?;
    let pipe = "set -o pipefail; echo flood 0 | usher connect mailhost:pour | head --bytes 10";
    let left = mail
        .laptop
        .command(["bash", "-c", pipe])
        .user("alice")
        .run()?;
    assert!(left.status.success(), "{left:?}");
    assert_eq!(left.stderr, "");
    eventually("the server has seen it", || {
        let seen = outcomes(&mail);
        Ok(seen == "ConnectionResetError\n" || seen == "BrokenPipeError\n")
    })?;
    // Also for an idle connection.
    let leave = "import subprocess; p = subprocess.Popen(['usher', 'connect', 'mailhost:pour'], \
        stdin=-1, stdout=-1); p.stdin.write(b'hold 10\\n'); p.stdin.flush(); p.stdout.read(10); \
        p.stdout.close(); print(p.wait())";
    let left = mail.laptop.run_as("alice", ["python3", "-c", leave])?;
    assert_eq!(left.stdout, "0\n", "{left:?}");
    eventually("the server has seen this one, too", || {
        Ok(outcomes(&mail).lines().count() == 2)
    })
}

#[test]
fn urgent_bytes_arrive() -> Outcome {
    let mail = mail()?;
    let urgent = "import select, socket; c = socket.create_connection(('127.0.1.1', 7300)); \
        c.sendall(b'urgent 0\\n'); select.select([], [], [c]); print(c.recv(6), \
        c.recv(1, socket.MSG_OOB), c.recv(5))";
    let told = mail.laptop.run_as("alice", ["python3", "-c", urgent])?;
    assert_eq!(told.stdout, "b'before' b'!' b'after'\n");
    // A pipe has no urgent data: the byte stays in its place.
    assert_eq!(by_connect(&mail, "urgent 0")?.stdout, "before!after");
    Ok(())
}

/// The proxy's answer to alice: for IMAP a line, else a reset.
fn is_refused(mail: &Mail, reason: &str) -> Outcome {
    let mut imap = mail
        .laptop
        .command(["socat", "STDIO", "TCP:127.0.1.1:143"])
        .user("alice")
        .spawn()?;
    let mut raw = through_proxy(mail, "alice", "whole 1")?;
    let said = imap.read_past("\n", PATIENCE)?;
    assert!(said.starts_with("* BYE Usher: "), "{said}");
    assert!(said.contains(reason), "{said}");
    raw.read_past("0 reset\n", PATIENCE)?;
    Ok(())
}

/// The permitted twin.
fn is_served(mail: &Mail) -> Outcome {
    through_proxy(mail, "alice", "whole 1")?.read_past("1 end\n", PATIENCE)?;
    Ok(())
}

#[test]
fn a_client_is_answered_when_the_host_is_down() -> Outcome {
    let mail = mail()?;
    is_served(&mail)?;
    mail.mailhost.run(["ip", "link", "set", "eth0", "down"])?;
    is_refused(&mail, "")?;
    mail.mailhost.run(["ip", "link", "set", "eth0", "up"])?;
    eventually("the host is there again", || {
        Ok(by_connect(&mail, "whole 1").is_ok_and(|said| said.status.success()))
    })?;
    is_served(&mail)
}

#[test]
fn a_client_is_answered_when_the_signer_is_away() -> Outcome {
    let mut mail = mail()?;
    is_served(&mail)?;
    mail.signer.stop()?;
    is_refused(&mail, "the signer of this host does not answer")?;
    mail.signer.restart()?;
    eventually("the proxy serves again", || {
        let said = mail
            .laptop
            .command(["python3", "-c", THROUGH_PROXY, "whole 1"])
            .user("alice")
            .run()?;
        Ok(said.stdout.ends_with("1 end\n"))
    })
}

/// The number of one user's connections that may be under way at once.
const OPENING_OF_USER: usize = 112;

// Threat model: A63
#[test]
fn one_user_does_not_keep_the_others_from_the_proxy() -> Outcome {
    let mut mail = mail()?;
    is_served(&mail)?;
    // A stopped signer decides nothing meanwhile.
    mail.signer.kill(Signal::STOP)?;
    let many = format!(
        "import socket, sys\n\
         many = [socket.create_connection(('127.0.1.1', 7300)) for _ in range({OPENING_OF_USER})]\n\
         print('open', flush=True)\n\
         sys.stdin.readline()\n\
         for one in many: one.sendall(b'whole 3\\n')\n\
         print(sum(len(one.makefile('rb').read()) for one in many))"
    );
    let mut many = mail
        .laptop
        .command(["python3", "-c", &many])
        .user("alice")
        .spawn()?;
    many.read_past("open", PATIENCE)?;
    eventually("the proxy has all of them", || {
        let connections = mail.laptop.number(Role::Proxy, "connections")?;
        Ok(connections == OPENING_OF_USER as u64)
    })?;
    is_refused(&mail, "you have too many connections")?;
    let mut bob = through_proxy(&mail, "bob", "whole 1")?;
    mail.signer.kill(Signal::CONT)?;
    bob.read_past("1 end\n", PATIENCE)?;
    many.write("\n")?;
    many.read_past(&format!("{}\n", 3 * OPENING_OF_USER), PATIENCE)?;
    is_served(&mail)
}

/// Greets, and keeps what it receives.
const COLLECTOR: &str = "#!/bin/sh\necho welcome\nexec cat >>\"$HOME/collected\"\n";

#[test]
fn programs_that_send_and_close_at_once_are_served() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost.write_program("/var/lib/collect", COLLECTOR)?;
    let server = "service collect { program \"/var/lib/collect\"; listen 7400; \
        style connection; users mail; hosts laptop; }\n";
    let client = "client collect { users mail; service collect at mailhost port 7400; }\n";
    mail.add_policies("collect", server, client)?;
    let send = "for i in 1 2 3 4 5 6 7 8 9 10 11; do
            echo $USER echo $i >/dev/tcp/127.0.1.1/7400
        done
        logger --tcp --server 127.0.1.1 --port 7400 --rfc3164 \"$USER logger\"";
    for user in ["alice", "bob", "carol"] {
        let send = format!("USER={user}\n{send}");
        mail.laptop.run_as(user, ["bash", "-c", &send])?;
    }
    for (user, other) in [("alice", "bob"), ("bob", "alice")] {
        let mut collected = String::new();
        let outcome = eventually("all of a user's lines arrive", || {
            let path = format!("/home/{user}/collected");
            collected = mail.mailhost.read(&path).unwrap_or_default();
            let count = |what| collected.matches(&format!("{user} {what}")).count();
            Ok((count("echo"), count("logger")) == (11, 1))
        });
        assert!(outcome.is_ok(), "{user}: {collected}");
        assert!(!collected.contains(other), "{collected}");
        // The server does not permit carol.
        assert!(!collected.contains("carol"), "{collected}");
    }
    let mut proxy = String::new();
    let outcome = eventually("each of carol's connections is refused", || {
        proxy = mail.proxy.log()?;
        let refused = proxy
            .lines()
            .filter(|line| line.contains("refused") && line.contains("user=carol"));
        Ok(refused.count() == 12)
    });
    assert!(outcome.is_ok(), "{proxy}");
    Ok(())
}

/// What the proxy says first at the mail service's address.
fn greeting(mail: &Mail) -> Result<String, Box<dyn std::error::Error>> {
    let client = ["socat", "STDIO", "TCP:127.0.1.1:143"];
    let mut client = mail.laptop.command(client).user("alice").spawn()?;
    Ok(client.read_past("\n", PATIENCE)?)
}

#[test]
fn other_names_and_protocols_come_in_force_at_an_address() -> Outcome {
    let mail = mail()?;
    for name in ["flow", "pour", "flow"] {
        let server = SERVICE.replace("service pour", &format!("service {name}"));
        let client = CLIENT.replace("service pour", &format!("service {name}"));
        mail.add_policies("pour", server, client)?;
        is_served(&mail)?;
    }
    let policy = "/etc/usher/policy.d/mail.policy";
    let imap = "  protocol imap;\n";
    for (statement, other, greets) in [(imap, "", "* PREAUTH"), ("", imap, "* OK")] {
        let port = "port 143;\n";
        let (part, with) = (format!("{port}{statement}"), format!("{port}{other}"));
        mail.laptop.replace(policy, &part, &with)?;
        mail.laptop.run(["usher", "policy", "apply"])?;
        let said = greeting(&mail)?;
        assert!(said.starts_with(greets), "{said}");
    }
    let rename = ["usher", "host", "rename", "mailhost", "post"];
    mail.laptop.run(rename)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    is_served(&mail)
}
