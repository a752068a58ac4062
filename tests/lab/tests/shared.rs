//! Services with one process for all users (`style shared`), which runs as an account of its own.

mod reading;

use std::fs;
use std::path::Path;

use reading::{Outcome, is_cut};
use serde_json::Value;
use usher_lab::{ALICE, BOB, LIBRARY_PATH, Lab, Mail, PATIENCE, Running, eventually};

const LIBRARY: &str = "/var/lib/notes";
/// The account of the service, and another one.
const NOTES: (&str, u32) = ("notes", 3001);
const OTHER: (&str, u32) = ("other", 3002);

/// Greets each connection with what `usher_connection_info` says of it, and answers each line with its own
/// process and user number.
const SERVER: &str = r#"
import os, socket, threading, usher
listener = socket.socket(fileno=3)
listener.setblocking(True)
print("variables:", os.environ.get("USHER_SERVICE"), os.environ.get("USHER_USER"), os.environ["HOME"],
      file=open(os.path.expanduser("~/variables"), "w"))
def serve(connection):
    info = usher.connection_info(connection)
    connection.sendall(f"hello {info.user} from {info.host}\n".encode())
    for line in connection.makefile("r"):
        connection.sendall(f"{os.getpid()} {os.getuid()}\n".encode())
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

fn service() -> String {
    format!(
        "service notes {{ program \"/usr/bin/python3\" \"-P\" \"{LIBRARY}/server\"; account notes; \
         listen 7100; style shared; users mail; hosts laptop; \
         environment \"PYTHONPATH={LIBRARY}\", \"LD_LIBRARY_PATH={LIBRARY_PATH}\"; }}\n"
    )
}

const CLIENT: &str = "client notes { users mail; service notes at mailhost port 7100; }\n";

fn topology() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    for (name, uid) in [NOTES, OTHER] {
        mail.mailhost.add_account(name, uid)?;
    }
    mail.mailhost.write(format!("{LIBRARY}/server"), SERVER)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for module in ["__init__.py", "_calls.py", "_library.py"] {
        let text = fs::read_to_string(root.join("python/usher/usher").join(module))?;
        mail.mailhost
            .write(format!("{LIBRARY}/usher/{module}"), text)?;
    }
    mail.add_policies("notes", service(), CLIENT)?;
    Ok(mail)
}

/// A connection that stays open, to the server that knows its user.
fn connect(mail: &Mail, user: &str) -> Result<Running, Box<dyn std::error::Error>> {
    let mut connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:notes"])
        .user(user)
        .spawn()?;
    let greeting = connection.read_past("\n", PATIENCE)?;
    assert_eq!(greeting, format!("hello {user} from laptop\n"));
    Ok(connection)
}

/// The process and the user number that serve a connection.
fn server_of(connection: &mut Running) -> Result<(u32, u32), Box<dyn std::error::Error>> {
    connection.write("\n")?;
    let answer = connection.read_past("\n", PATIENCE)?;
    let (pid, uid) = answer.trim().split_once(' ').ok_or("no answer")?;
    Ok((pid.parse()?, uid.parse()?))
}

fn is_refused(mail: &Mail, user: &str) -> Outcome {
    let connect = mail.laptop.command(["usher", "connect", "mailhost:notes"]);
    let refused = connect.user(user).input("").run()?;
    assert!(refused.stderr.contains("refused: "), "{refused:?}");
    Ok(())
}

/// A user, and the client's ends of the connections of one session.
type Session = (String, Vec<String>);

fn sessions(mail: &Mail) -> Result<Vec<Session>, Box<dyn std::error::Error>> {
    let view: Value = serde_json::from_str(&reading::who(mail)?)?;
    let sessions = view["sessions"].as_array().ok_or("no sessions")?;
    let sessions = sessions.iter().map(|session| {
        let user = session["user"].as_str().unwrap_or_default().to_owned();
        let connections = session["connections"].as_array();
        let clients = connections.into_iter().flatten();
        let clients = clients.map(|one| one["client"].as_str().unwrap_or_default().to_owned());
        (user, clients.collect())
    });
    Ok(sessions.collect())
}

/// The client's end of a user's only connection.
fn client_of(mail: &Mail, user: &str) -> Result<String, Box<dyn std::error::Error>> {
    let sessions = sessions(mail)?;
    let (_, clients) = sessions
        .iter()
        .find(|(of, clients)| of == user && !clients.is_empty())
        .ok_or("no connection")?;
    Ok(clients[0].clone())
}

// Threat model: A176
#[test]
fn one_process_serves_all_users_knows_each_and_outlives_a_revocation() -> Outcome {
    let mail = topology()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let server = server_of(&mut alice)?;
    assert_eq!(server.1, NOTES.1);
    assert_eq!(server_of(&mut bob)?, server);
    is_refused(&mail, "carol")?;
    let variables = mail.mailhost.read("/home/notes/variables")?;
    assert_eq!(variables, "variables: notes None /home/notes\n");

    let listed = mail.mailhost.run(["usher", "service", "list"])?.stdout;
    assert!(listed.contains("/usr/bin/python3 as notes"), "{listed}");

    let disabled = mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    let told = "ended: alice from laptop at notes, 1 connection(s): the user is disabled";
    assert!(disabled.stdout.contains(told), "{disabled:?}");
    is_cut(&mut alice)?;
    is_refused(&mail, "alice")?;
    assert_eq!(server_of(&mut bob)?, server);
    assert_eq!(server_of(&mut connect(&mail, "bob")?)?, server);

    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    assert_eq!(server_of(&mut connect(&mail, "alice")?)?, server);
    Ok(())
}

// Threat model: A176
#[test]
fn connections_without_a_user_do_not_arrive() -> Outcome {
    let mail = topology()?;
    let mut alice = connect(&mail, "alice")?;
    let address = mail.mailhost.ipv4().to_string();
    let plain = "import socket, sys; socket.create_connection((sys.argv[1], 7100), 5)";
    for host in [&mail.laptop, &mail.stranger, &mail.mailhost] {
        let refused = host.command(["python3", "-c", plain, &address]).run()?;
        assert!(
            refused.stderr.contains("ConnectionRefusedError"),
            "{}: {refused:?}",
            host.name()
        );
    }
    server_of(&mut alice)?;
    Ok(())
}

// Threat model: A177
#[test]
fn whois_says_to_each_what_is_theirs() -> Outcome {
    let mut mail = topology()?;
    let (_alice, _bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let (alice, bob) = (client_of(&mail, "alice")?, client_of(&mail, "bob")?);
    let ask = |account: Option<&str>, client: &str| {
        let command = mail.mailhost.command(["usher", "--json", "whois", client]);
        let command = match account {
            Some(account) => command.user(account),
            None => command,
        };
        command.run()
    };
    // root, the service's account, and the user.
    for account in [None, Some(NOTES.0), Some("alice")] {
        let told = ask(account, &alice)?;
        assert!(told.status.success(), "{account:?}: {told:?}");
        let told: Value = serde_json::from_str(&told.stdout)?;
        assert_eq!(told.as_array().map(Vec::len), Some(1), "{told}");
        assert_eq!(told[0]["user"], ALICE.name, "{told}");
        assert_eq!(told[0]["uid"], ALICE.mailhost_uid, "{told}");
        assert_eq!(told[0]["host"], "laptop", "{told}");
        assert_eq!(told[0]["service"], "notes", "{told}");
        assert_eq!(told[0]["client"], alice, "{told}");
    }
    let (address, port) = alice.rsplit_once(':').ok_or("no port")?;
    let mapped = ask(None, &format!("[::ffff:{address}]:{port}"))?;
    assert!(mapped.status.success(), "{mapped:?}");
    let told: Value = serde_json::from_str(&ask(Some(NOTES.0), &bob)?.stdout)?;
    assert_eq!(told[0]["user"], BOB.name, "{told}");
    // Another user, another account, and a connection that is none.
    for (account, client) in [
        (Some("bob"), alice.as_str()),
        (Some("alice"), bob.as_str()),
        (Some(OTHER.0), alice.as_str()),
        (None, "10.99.99.99:7"),
    ] {
        let refused = ask(account, client)?;
        assert_eq!(refused.status.code(), Some(1), "{account:?}: {refused:?}");
        assert_eq!(refused.stdout, "", "{account:?}: {refused:?}");
    }
    // The account of one service does not learn of another's connections.
    let _mail_reader = reading::connect(&mail, "alice")?;
    let sessions = sessions(&mail)?;
    let clients = sessions.iter().flat_map(|(_, clients)| clients);
    let mut told = Vec::new();
    for client in clients {
        told.push(ask(Some(NOTES.0), client)?.status.success());
    }
    told.sort_unstable();
    assert_eq!(told, [false, true, true]);
    // A keeper that does not run.
    mail.keeper.stop()?;
    let unanswered = ask(None, &alice)?;
    assert_eq!(unanswered.status.code(), Some(3), "{unanswered:?}");
    assert!(
        unanswered
            .stderr
            .contains("is usher-keeper.service running?"),
        "{unanswered:?}"
    );
    Ok(())
}

#[test]
fn a_process_that_ends_is_replaced_and_a_keeper_that_ends_is_not_missed() -> Outcome {
    let mut mail = topology()?;
    let mut alice = connect(&mail, "alice")?;
    let (pid, _) = server_of(&mut alice)?;
    mail.mailhost.run(["kill", "-9", &pid.to_string()])?;
    is_cut(&mut alice)?;
    let mut alice = connect(&mail, "alice")?;
    let second = server_of(&mut alice)?;
    assert_ne!(second.0, pid);

    mail.keeper.crash()?;
    assert_eq!(server_of(&mut alice)?, second);
    assert_eq!(server_of(&mut alice)?, second);
    let mut bob = connect(&mail, "bob")?;
    assert_eq!(server_of(&mut bob)?, second);
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    is_cut(&mut alice)?;
    assert_eq!(server_of(&mut bob)?, second);

    // Not even without a session.
    mail.mailhost.run(["usher", "user", "disable", "bob"])?;
    is_cut(&mut bob)?;
    assert_eq!(sessions(&mail)?, []);
    mail.keeper.crash()?;
    mail.mailhost.run(["usher", "user", "enable", "bob"])?;
    assert_eq!(server_of(&mut connect(&mail, "bob")?)?, second);
    Ok(())
}

#[test]
fn another_style_or_account_ends_the_sessions() -> Outcome {
    let mail = topology()?;
    let apply = |text: &str| {
        mail.mailhost
            .write("/etc/usher/policy.d/notes.policy", text)?;
        mail.mailhost.run(["usher", "policy", "apply"])
    };
    let has_no_process = |uid: u32| {
        eventually("its processes have ended", || {
            let processes = mail.mailhost.processes()?;
            Ok(!processes.iter().any(|process| process.uid == uid))
        })
    };
    let mut alice = connect(&mail, "alice")?;
    assert_eq!(server_of(&mut alice)?.1, NOTES.1);

    let of_other = service().replace("account notes", "account other");
    let applied = apply(&of_other)?;
    let told = "ended: alice from laptop at notes, 1 connection(s): the server's policy has other";
    assert!(applied.stdout.contains(told), "{applied:?}");
    is_cut(&mut alice)?;
    has_no_process(NOTES.1)?;
    let mut alice = connect(&mail, "alice")?;
    assert_eq!(server_of(&mut alice)?.1, OTHER.1);

    let of_users = service()
        .replace("account notes; ", "")
        .replace("style shared", "style user");
    apply(&of_users)?;
    is_cut(&mut alice)?;
    has_no_process(OTHER.1)?;
    let mut alice = connect(&mail, "alice")?;
    assert_eq!(server_of(&mut alice)?.1, ALICE.mailhost_uid);

    // A process without a session does not serve another style either.
    drop(alice);
    let client = "/etc/usher/policy.d/notes.policy";
    mail.laptop.run(["rm", client])?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    eventually("the session is closed", || Ok(sessions(&mail)?.is_empty()))?;
    apply(&service())?;
    has_no_process(ALICE.mailhost_uid)?;
    mail.laptop.write(client, CLIENT)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let mut alice = connect(&mail, "alice")?;
    assert_eq!(server_of(&mut alice)?.1, NOTES.1);

    mail.mailhost
        .run(["rm", "/etc/usher/policy.d/notes.policy"])?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    is_cut(&mut alice)?;
    has_no_process(NOTES.1)
}

/// By real PAM, when a session is opened.
#[test]
fn a_user_whose_account_is_closed_is_refused_and_others_are_served() -> Outcome {
    let mail = topology()?;
    mail.mailhost.run(["chage", "--expiredate", "1", "alice"])?;
    is_refused(&mail, "alice")?;
    server_of(&mut connect(&mail, "bob")?)?;
    mail.mailhost
        .run(["chage", "--expiredate", "-1", "alice"])?;
    eventually("she is served", || {
        let connect = mail.laptop.command(["usher", "connect", "mailhost:notes"]);
        let answer = connect.user("alice").input("\n").run()?;
        Ok(answer.stdout.starts_with("hello alice from laptop\n"))
    })
}

#[test]
fn accounts_that_do_not_fit_are_refused() -> Outcome {
    let mail = topology()?;
    let check = |text: &str| {
        mail.mailhost
            .write("/etc/usher/policy.d/notes.policy", text)?;
        mail.mailhost.command(["usher", "policy", "check"]).run()
    };
    for (part, with, mistake) in [
        (
            "account notes",
            "account root",
            "root cannot be the account",
        ),
        (
            "account notes",
            "account bob",
            "`bob` is a user of this service",
        ),
        ("account notes; ", "", "`style shared` needs an `account`"),
        ("style shared", "style user", "stands beside"),
    ] {
        let checked = check(&service().replace(part, with))?;
        assert!(checked.stderr.contains(mistake), "{with}: {checked:?}");
    }
    let without =
        "service notes { account notes; listen 7100; style shared; users mail; hosts laptop; }";
    let checked = check(without)?;
    let mistake = "`style shared` needs a `program`";
    assert!(checked.stderr.contains(mistake), "{checked:?}");

    // An account that is missing is a warning, and nobody is served until it is there.
    mail.mailhost.write(
        "/etc/usher/policy.d/notes.policy",
        service().replace("account notes", "account later"),
    )?;
    let applied = mail.mailhost.run(["usher", "policy", "apply"])?;
    let warning = "there is no account later on this host yet";
    assert!(applied.stderr.contains(warning), "{applied:?}");
    is_refused(&mail, "alice")?;
    let doctor = mail.mailhost.command(["usher", "doctor"]).run()?.stdout;
    let trouble = "sessions with notes are refused: its account later: ";
    assert!(doctor.contains(trouble), "{doctor}");
    mail.mailhost.add_account("later", 3003)?;
    eventually("it serves", || {
        let connect = mail.laptop.command(["usher", "connect", "mailhost:notes"]);
        let answer = connect.user("alice").input("\n").run()?;
        Ok(answer.stdout.ends_with(" 3003\n"))
    })?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    // By another name, but for the kernel the same as alice.
    let rename = "sed -i 's/^later:x:3003:/later:x:2001:/' /etc/passwd; chown -R later /home/later";
    mail.mailhost.run(["sh", "-e", "-c", rename])?;
    is_cut(&mut alice)?;
    is_cut(&mut bob)?;
    let recent = mail.mailhost.run(["usher", "who", "--recent"])?.stdout;
    let ends = recent
        .lines()
        .filter(|line| line.contains(" no_local_account: "));
    assert!(ends.count() >= 2, "{recent}");
    let serves = |user: &'static str, uid: &'static str| {
        eventually("it serves", || {
            let connect = mail.laptop.command(["usher", "connect", "mailhost:notes"]);
            let answer = connect.user(user).input("\n").run()?;
            Ok(answer.stdout.ends_with(uid))
        })
    };
    serves("bob", " 2001\n")?;
    is_refused(&mail, "alice")?;
    serves("bob", " 2001\n")?;
    // An account with another number than before.
    let rename = "sed -i 's/^later:x:2001:/later:x:3004:/' /etc/passwd; chown -R later /home/later";
    mail.mailhost.run(["sh", "-e", "-c", rename])?;
    serves("alice", " 3004\n")
}
