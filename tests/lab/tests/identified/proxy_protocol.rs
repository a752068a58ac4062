//! The PROXY protocol, version 2.

use usher_lab::{Mail, PATIENCE, Running, eventually};

use crate::reading::{Outcome, is_cut};
use crate::{SOCKET, http, start};

const HAPROXY: &str = include_str!("../../../../examples/identify/haproxy.cfg");

/// Reads the header, and answers each line with the user and its own process.
const SERVER: &str = r#"
import os, socket, struct, sys, threading
path = sys.argv[1]
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, 0o600)
listener.listen(64)
def note(text):
    with open("/run/app/notes", "a") as notes:
        notes.write(text + "\n")
def serve(connection):
    stream = connection.makefile("rb")
    signature, command, family, length = struct.unpack("!12sBBH", stream.read(16))
    assert (signature, command) == (b"\r\n\r\n\0\r\nQUIT\n", 0x21), signature
    rest = stream.read(length)[{0x11: 12, 0x21: 36}[family]:]
    values = {}
    while rest:
        kind, length = struct.unpack("!BH", rest[:3])
        values[kind], rest = rest[3:3 + length], rest[3 + length:]
    user = values[0x02].decode()
    assert values[0xe0].decode() == user and values[0x20][8:].decode() == user
    connection.sendall(f"hello {user}\n".encode())
    try:
        for line in stream:
            if line.startswith(b"length "):
                connection.sendall(bytes(int(line.split()[1])) + b"\n")
            else:
                connection.sendall(f"{user} {os.getpid()}\n".encode())
    except OSError:
        pass
    note(f"end of {user}")
    connection.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

fn topology() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = crate::topology(&format!("proxy-protocol \"{SOCKET}\""))?;
    let config = HAPROXY
        .replace("/run/site/", "/run/app/")
        .replace("user site", "user app");
    mail.mailhost.write("/var/lib/app/haproxy.cfg", config)?;
    mail.mailhost
        .write("/var/lib/app/application", http::SERVER)?;
    mail.mailhost.write("/var/lib/app/server", SERVER)?;
    Ok(mail)
}

fn python(mail: &Mail) -> Result<Running, Box<dyn std::error::Error>> {
    start(mail, &["python3", "/var/lib/app/server", SOCKET])
}

fn connect(mail: &Mail, user: &str) -> Result<Running, Box<dyn std::error::Error>> {
    let mut connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:app"])
        .user(user)
        .spawn()?;
    let greeting = connection.read_past("\n", PATIENCE)?;
    assert_eq!(greeting, format!("hello {user}\n"));
    Ok(connection)
}

fn lives(connection: &mut Running, user: &str) -> Outcome {
    connection.write("\n")?;
    let answer = connection.read_past("\n", PATIENCE)?;
    assert!(answer.starts_with(&format!("{user} ")), "{answer}");
    Ok(())
}

// Threat model: A179
#[test]
fn haproxy_knows_each_user_and_a_forged_header_changes_nothing() -> Outcome {
    let mail = topology()?;
    let config = ["/usr/sbin/haproxy", "-db", "-f", "/var/lib/app/haproxy.cfg"];
    let _haproxy = start(&mail, &config)?;
    let application = [
        "python3",
        "/var/lib/app/application",
        "/run/app/application.sock",
    ];
    let application = mail.mailhost.command(application).user("app");
    let _application = application.spawn()?;
    eventually("the application answers", || {
        Ok(http::get(&mail, "alice", &[]).is_ok())
    })?;
    let address = mail.laptop.ipv4().to_string();
    for user in ["alice", "bob"] {
        let request = http::get(&mail, user, &["-H", "X-Remote-User: carol"])?;
        assert_eq!(http::claims(&request), [user], "{request}");
        let forged = [
            "-H",
            "x_remote.user: carol",
            "-H",
            "X-Forwarded-For: 10.9.9.9",
        ];
        let request = http::get(&mail, user, &forged)?;
        assert_eq!(http::claims(&request), [user], "{request}");
        let client = http::header(&request, "X-Forwarded-For");
        assert_eq!(client, Some(address.as_str()));
    }
    let listed = mail.mailhost.run(["usher", "service", "list"])?.stdout;
    assert!(listed.contains(&format!("{SOCKET} of app")), "{listed}");

    let ask = |user: &str, text: &[u8]| {
        let connect = mail.laptop.command(["usher", "connect", "mailhost:app"]);
        connect.user(user).input(text).run()
    };
    let request = b"GET / HTTP/1.0\r\n\r\n";
    let told = ask("alice", request)?.stdout;
    assert!(told.contains("\"alice\""), "{told}");
    // alice claims to be bob, in the form of either version.
    let first = [&b"PROXY TCP4 10.9.9.9 10.9.9.8 1 2\r\n"[..], request].concat();
    let second = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x12\x0a\x09\x09\x09\x0a\x09\x09\x08\0\x01\0\x02\x02\0\x03bob";
    for forged in [first, [&second[..], request].concat()] {
        let told = ask("alice", &forged)?;
        assert!(!told.stdout.contains("bob"), "{told:?}");
        assert!(!told.stdout.contains("10.9.9.9"), "{told:?}");
    }
    let carol = ask("carol", request)?;
    assert!(carol.stderr.contains("refused: "), "{carol:?}");
    Ok(())
}

#[test]
fn a_revocation_cuts_one_user_and_bytes_pass_both_ways() -> Outcome {
    let mail = topology()?;
    let _server = python(&mail)?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    lives(&mut alice, "alice")?;
    lives(&mut bob, "bob")?;

    let get = mail.laptop.command(["usher", "connect", "mailhost:app"]);
    let got = get.user("bob").input("length 5000000\n").run()?;
    assert_eq!(got.stdout.len(), "hello bob\n".len() + 5_000_001);

    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    is_cut(&mut alice)?;
    lives(&mut bob, "bob")?;
    eventually("the server sees the end", || {
        let notes = mail.mailhost.read("/run/app/notes")?;
        Ok(notes.lines().any(|line| line == "end of alice"))
    })?;
    // Nobody else reaches the server's socket.
    let reach = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
    let other = mail.mailhost.command(["python3", "-c", reach, SOCKET]);
    let other = other.user("bob").run()?;
    assert!(other.stderr.contains("PermissionError"), "{other:?}");
    Ok(())
}

#[test]
fn a_server_that_is_restarted_is_waited_for_and_a_missing_one_refuses() -> Outcome {
    let mail = topology()?;
    let connect_raw = || mail.laptop.command(["usher", "connect", "mailhost:app"]);
    let refused = connect_raw().user("alice").input("\n").run()?;
    assert_eq!(refused.stdout, "", "{refused:?}");
    assert!(!refused.status.success(), "{refused:?}");

    let mut waiting = connect_raw().user("alice").spawn()?;
    let _server = python(&mail)?;
    let greeting = waiting.read_past("\n", PATIENCE)?;
    assert_eq!(greeting, "hello alice\n");
    lives(&mut waiting, "alice")
}
