//! Processes that run as the user: their identity, their start, their end, and the cost of a crash.

mod records;
mod starters;
mod troubled;

use usher_lab::{Lab, Mail, PATIENCE, Running, eventually};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Says on its connection what the process is, by the kernel's word.
const REVEAL: &str = r#"#!/usr/bin/python3
import json, os, signal, socket, sys
def reveal():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return (json.dumps({
        "pid": os.getpid(), "uid": os.getresuid(), "gid": os.getresgid(),
        "groups": sorted(os.getgroups()), "cwd": os.getcwd(), "environment": dict(os.environ),
        "capabilities": [status[f"Cap{name}"].strip() for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")],
        "cgroup": open("/proc/self/cgroup").read(),
        "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
    }) + "\n").encode()
if sys.argv[1] == "helped":
    for leads in (False, True):
        if os.fork() == 0:
            if leads:
                os.setsid()
            os.close(0), os.close(1)
            signal.pause()
if sys.argv[1] != "user":
    os.write(1, reveal())
    sys.stdin.read()
else:
    listener = socket.socket(fileno=3)
    while True:
        with listener.accept()[0] as connection:
            connection.sendall(reveal())
            if connection.recv(16) == b"die\n":
                os._exit(3)
"#;

const SERVER: &str = r#"
service each {
  program "/var/lib/reveal.py" "connection";
  listen 7101; style connection; connections 2; users mail; hosts laptop;
  environment "GREETING=hello world";
}
service one {
  program "/var/lib/reveal.py" "user";
  listen 7102; style user; idle 1s; users mail; hosts laptop;
}
service missing {
  program "/var/lib/not-there";
  listen 7103; style connection; users mail; hosts laptop;
}
"#;

const CLIENT: &str = "client more { users mail; service each at mailhost port 7101; \
    service one at mailhost port 7102; service missing at mailhost port 7103; }\n";

fn mail() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    mail.mailhost.write_program("/var/lib/reveal.py", REVEAL)?;
    mail.mailhost
        .run(["groupadd", "--gid", "3000", "beekeepers"])?;
    mail.mailhost
        .run(["usermod", "--append", "--groups", "beekeepers", "alice"])?;
    mail.add_policies("more", SERVER, CLIENT)?;
    Ok(mail)
}

fn open(mail: &Mail, user: &str, service: &str) -> Result<Running, Box<dyn std::error::Error>> {
    let destination = format!("mailhost:{service}");
    Ok(mail
        .laptop
        .command(["usher", "connect", &destination])
        .user(user)
        .spawn()?)
}

/// Opens a connection and reads what the process says of itself.
fn reveal(
    mail: &Mail,
    user: &str,
    service: &str,
) -> Result<(Running, String), Box<dyn std::error::Error>> {
    let mut connection = open(mail, user, service)?;
    let said = connection.read_past("\n", PATIENCE)?;
    Ok((connection, said))
}

/// The number after `"name": ` in what was said.
fn number(said: &str, name: &str) -> String {
    let start = said
        .find(&format!("\"{name}\": "))
        .map_or(0, |place| place + name.len() + 4);
    said[start..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect()
}

// Threat model: A67
#[test]
fn a_worker_is_its_user_and_nothing_more() -> Outcome {
    let mail = mail()?;
    for (service, descriptors) in [("each", "[0, 1, 2]"), ("one", "[0, 1, 2, 3")] {
        let (_connection, said) = reveal(&mail, "alice", service)?;
        for expected in [
            "\"uid\": [2001, 2001, 2001]",
            "\"gid\": [2001, 2001, 2001]",
            "\"groups\": [2001, 3000]",
            "\"cwd\": \"/home/alice\"",
            "\"HOME\": \"/home/alice\"",
            "\"USER\": \"alice\"",
            "\"LOGNAME\": \"alice\"",
            &format!("\"USHER_SERVICE\": \"{service}\""),
            &format!("workers/user-2001/service-{service}"),
            &format!("\"descriptors\": {descriptors}"),
        ] {
            assert!(said.contains(expected), "{expected} is not in {said}");
        }
        let none = "\"0000000000000000\"";
        let sets = format!("\"capabilities\": [{none}, {none}, {none}, {none}, {none}]");
        assert!(said.contains(&sets), "{said}");
        assert!(!said.contains("NOTIFY_SOCKET"), "{said}");
    }
    let (_connection, said) = reveal(&mail, "bob", "each")?;
    assert!(said.contains("\"groups\": [2002]"), "{said}");
    assert!(said.contains("\"GREETING\": \"hello world\""), "{said}");
    Ok(())
}

// Threat model: A66
#[test]
fn fifty_connections_at_once_each_reach_their_own_user() -> Outcome {
    let mail = mail()?;
    std::thread::scope(|scope| {
        let connections: Vec<_> = (0..50)
            .map(|number| {
                let (user, uid) = if number % 2 == 0 {
                    ("alice", 2001)
                } else {
                    ("bob", 2002)
                };
                let mail = &mail;
                scope.spawn(move || {
                    // The worker serves one after the other: each makes room for the next.
                    let (_connection, said) =
                        reveal(mail, user, "one").map_err(|error| error.to_string())?;
                    let own = format!("\"uid\": [{uid}, {uid}, {uid}]");
                    if said.contains(&own) {
                        Ok(())
                    } else {
                        Err(said)
                    }
                })
            })
            .collect();
        for connection in connections {
            connection.join().map_err(|_| "a thread failed")??;
        }
        Ok(())
    })
}

#[test]
fn a_users_worker_serves_on_ends_when_idle_and_comes_back() -> Outcome {
    let mail = mail()?;
    let (first, said) = reveal(&mail, "alice", "one")?;
    let pid = number(&said, "pid");
    // One after the other: this one waits in the queue, and the worker is not idle in between.
    let mut second = open(&mail, "alice", "one")?;
    eventually("the second connection waits", || {
        let who = mail.mailhost.run(["usher", "who"])?.stdout;
        Ok(who.matches("established").count() == 2)
    })?;
    drop(first);
    let said = second.read_past("\n", PATIENCE)?;
    assert_eq!(
        number(&said, "pid"),
        pid,
        "another process served the second connection"
    );
    drop(second);
    eventually("the idle worker has ended", || {
        let processes = mail.mailhost.processes()?;
        Ok(!processes.iter().any(|p| p.pid.to_string() == pid))
    })?;
    let (_third, said) = reveal(&mail, "alice", "one")?;
    assert_ne!(number(&said, "pid"), pid);
    Ok(())
}

#[test]
fn what_waits_when_a_worker_crashes_is_served_by_the_next() -> Outcome {
    let mail = mail()?;
    let (mut first, said) = reveal(&mail, "alice", "one")?;
    let pid = number(&said, "pid");
    // One after the other: this one waits in the queue.
    let mut waiting = open(&mail, "alice", "one")?;
    first.write("die\n")?;
    let said = waiting.read_past("\n", PATIENCE)?;
    assert_ne!(number(&said, "pid"), pid);
    assert!(said.contains("\"uid\": [2001, 2001, 2001]"), "{said}");
    Ok(())
}

// Threat model: A95
#[test]
fn a_user_at_the_limit_of_processes_waits_and_another_does_not() -> Outcome {
    let mail = mail()?;
    let (first, _) = reveal(&mail, "alice", "each")?;
    let (_second, _) = reveal(&mail, "alice", "each")?;
    let mut third = open(&mail, "alice", "each")?;
    // Bob is served while alice's third waits.
    let (_bob, said) = reveal(&mail, "bob", "each")?;
    assert!(said.contains("\"uid\": [2002"), "{said}");
    let alices = mail.mailhost.processes()?;
    let alices = alices
        .iter()
        .filter(|process| process.command.contains("reveal.py connection"));
    assert_eq!(alices.filter(|process| process.uid == 2001).count(), 2);
    drop(first);
    assert!(third.read_past("\n", PATIENCE)?.contains("\"uid\": [2001"));
    Ok(())
}

#[test]
fn the_first_connection_after_an_apply_is_served_by_it() -> Outcome {
    let mail = mail()?;
    // Her session stays, and with it what waits for her connections.
    let (connection, said) = reveal(&mail, "alice", "each")?;
    assert!(said.contains("\"GREETING\": \"hello world\""), "{said}");
    drop(connection);
    for greeting in ["later", "later still"] {
        let changed = SERVER.replace("hello world", greeting);
        mail.mailhost
            .write("/etc/usher/policy.d/more.policy", changed)?;
        mail.mailhost.run(["usher", "policy", "apply"])?;
        let (_connection, said) = reveal(&mail, "alice", "each")?;
        let expected = format!("\"GREETING\": \"{greeting}\"");
        assert!(said.contains(&expected), "{said}");
    }
    Ok(())
}

#[test]
fn a_missing_program_is_told_and_disturbs_nobody() -> Outcome {
    let mail = mail()?;
    let mut missing = open(&mail, "alice", "missing")?;
    assert!(
        missing.wait(PATIENCE)?.is_some(),
        "a connection that nobody serves stays open"
    );
    // The child ends before the keeper has read why.
    let reason = "cannot execute the program in the new process: No such file";
    assert!(
        mail.keeper.wait_log(reason, PATIENCE)?,
        "{}",
        mail.keeper.log()?
    );
    reveal(&mail, "alice", "each")?;
    Ok(())
}
