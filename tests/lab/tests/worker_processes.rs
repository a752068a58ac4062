//! What runs as the user: who it is, when it starts, when it ends, and what its crash costs.

use std::time::{Duration, Instant};

use serde_json::Value;
use usher_lab::{Lab, Mail, PATIENCE, Role, Running, eventual, eventually};

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
    mail.mailhost.write("/var/lib/reveal.py", REVEAL)?;
    mail.mailhost.run(["chmod", "755", "/var/lib/reveal.py"])?;
    mail.mailhost
        .run(["groupadd", "--gid", "3000", "beekeepers"])?;
    mail.mailhost
        .run(["usermod", "--append", "--groups", "beekeepers", "alice"])?;
    mail.mailhost
        .write("/etc/usher/policy.d/more.policy", SERVER)?;
    mail.laptop
        .write("/etc/usher/policy.d/more.policy", CLIENT)?;
    mail.apply()?;
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
    let reason = "executing the program in the new process: No such file";
    assert!(
        mail.keeper.wait_log(reason, PATIENCE)?,
        "{}",
        mail.keeper.log()?
    );
    reveal(&mail, "alice", "each")?;
    Ok(())
}

/// The starter of the mailhost's keeper.
fn starter(mail: &Mail) -> Result<u32, Box<dyn std::error::Error>> {
    let mut found = None;
    eventually("there is a starter", || {
        let processes = mail.mailhost.processes()?;
        // A child is called so, too, until it executes its program. While its starter is ending, it may
        // be the only one, still root's, and serve a connection before the caller kills it.
        let is_keeper = |pid: u32| {
            processes
                .iter()
                .any(|process| process.pid == pid && process.command.contains("usherd keeper"))
        };
        let starter = processes
            .iter()
            .find(|process| process.command == "usherd starter" && is_keeper(process.parent));
        found = starter.map(|process| process.pid);
        Ok(found.is_some())
    })?;
    Ok(found.ok_or("no starter")?)
}

#[test]
fn the_starter_holds_three_capabilities_and_no_queue() -> Outcome {
    let mail = mail()?;
    let mut connections = Vec::new();
    let descriptors = |pid: u32| -> Result<usize, Box<dyn std::error::Error>> {
        let listed = mail.mailhost.run(["ls", &format!("/proc/{pid}/fd")])?;
        Ok(listed.stdout.lines().count())
    };
    let starter = starter(&mail)?;
    connections.push(reveal(&mail, "alice", "each")?);
    let before = descriptors(starter)?;
    for (user, service) in [("alice", "one"), ("bob", "each"), ("bob", "one")] {
        connections.push(reveal(&mail, user, service)?);
    }
    eventually(
        "all births are over",
        || Ok(descriptors(starter)? <= before),
    )?;
    let status = mail.mailhost.read(format!("/proc/{starter}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim().to_owned())
    };
    // CAP_KILL, CAP_SETGID, CAP_SETUID.
    let three = Some("00000000000000e0".to_owned());
    let none = Some("0000000000000000".to_owned());
    assert_eq!(field("CapPrm:"), three);
    assert_eq!(field("CapEff:"), three);
    assert_eq!(field("CapBnd:"), none);
    assert_eq!(field("CapInh:"), none);
    assert_eq!(field("Threads:"), Some("1".to_owned()));
    let environment = mail.mailhost.read(format!("/proc/{starter}/environ"))?;
    assert!(!environment.contains("NOTIFY_SOCKET"), "{environment}");
    Ok(())
}

#[test]
fn workers_outlive_the_starter_and_another_starts_more() -> Outcome {
    let mut mail = mail()?;
    let (first, said) = reveal(&mail, "alice", "each")?;
    let pid = number(&said, "pid");
    let dead = starter(&mail)?;
    mail.mailhost.run(["kill", "-KILL", &dead.to_string()])?;
    let (_second, said) = reveal(&mail, "alice", "each")?;
    assert_ne!(number(&said, "pid"), pid);
    assert_ne!(starter(&mail)?, dead);
    let lives = |mail: &Mail| -> Result<bool, Box<dyn std::error::Error>> {
        let processes = mail.mailhost.processes()?;
        Ok(processes
            .iter()
            .any(|process| process.pid.to_string() == pid))
    };
    assert!(lives(&mail)?, "the worker has ended with its starter");
    // It still counts, and its end is noticed: the policy permits two.
    let mut third = open(&mail, "alice", "each")?;
    drop(first);
    assert!(third.read_past("\n", PATIENCE)?.contains("\"uid\": [2001"));
    assert!(!lives(&mail)?);
    assert!(mail.keeper.is_running()?);
    // The starter ends with its keeper, and the workers do not.
    let last = starter(&mail)?;
    mail.keeper.crash()?;
    assert_ne!(starter(&mail)?, last);
    Ok(())
}

/// The numbers of a user's workers at a service, by `usher who`.
fn workers(mail: &Mail, service: &str) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
    let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let who: Value = serde_json::from_str(&who)?;
    let workers = who["workers"].as_array().ok_or("no list")?;
    let of_service = workers.iter().filter(|worker| worker["service"] == service);
    Ok(of_service
        .filter_map(|worker| worker["pid"].as_u64())
        .collect())
}

#[test]
fn a_workers_helpers_are_no_workers_after_a_death() -> Outcome {
    let mut mail = troubled()?;
    let (first, said) = reveal(&mail, "alice", "helped")?;
    // The order for the next connection goes to a starter that is replaced before it has answered.
    let stuck = starter(&mail)?;
    mail.mailhost.run(["kill", "-STOP", &stuck.to_string()])?;
    let (second, again) = reveal(&mail, "alice", "helped")?;
    let mut expected = [said, again].map(|said| number(&said, "pid").parse().unwrap_or(0));
    expected.sort_unstable();
    eventually("both workers are known", || {
        Ok(workers(&mail, "helped")? == expected)
    })?;
    mail.keeper.crash()?;
    assert_eq!(workers(&mail, "helped")?, expected);
    drop((first, second));
    eventually("the helpers have ended", || {
        let processes = mail.mailhost.processes()?;
        Ok(!processes
            .iter()
            .any(|process| process.command.contains("reveal.py helped")))
    })
}

#[test]
fn a_stuck_starter_is_replaced_and_another_is_not() -> Outcome {
    let mail = mail()?;
    let present = starter(&mail)?;
    let (_first, _) = reveal(&mail, "alice", "each")?;
    let (_second, _) = reveal(&mail, "bob", "one")?;
    assert_eq!(starter(&mail)?, present, "a starter that serves");
    mail.mailhost.run(["kill", "-STOP", &present.to_string()])?;
    let (_third, said) = reveal(&mail, "bob", "each")?;
    assert!(said.contains("\"uid\": [2002, 2002, 2002]"), "{said}");
    assert_ne!(starter(&mail)?, present);
    assert!(mail.keeper.log()?.contains("it has not answered"));
    Ok(())
}

#[test]
fn no_connection_is_lost_while_starters_are_killed() -> Outcome {
    const ROUNDS: usize = 20;
    // Longer than connections wait when starters end without having served.
    let until = Instant::now() + Duration::from_secs(17);
    let mail = mail()?;
    reveal(&mail, "alice", "each")?;
    std::thread::scope(|scope| {
        let users = [("alice", 2001), ("bob", 2002)].map(|(user, uid)| {
            let mail = &mail;
            scope.spawn(move || {
                let mut rounds = 0;
                while rounds < ROUNDS || Instant::now() < until {
                    let (_connection, said) =
                        reveal(mail, user, "each").map_err(|error| error.to_string())?;
                    let own = format!("\"uid\": [{uid}, {uid}, {uid}]");
                    if !said.contains(&own) {
                        return Err(said);
                    }
                    rounds += 1;
                }
                Ok(())
            })
        });
        let mut killed = 0;
        while users.iter().any(|user| !user.is_finished()) {
            let starter = starter(&mail)?.to_string();
            // It may have ended by itself: its keeper has not, so another one comes.
            killed += usize::from(mail.mailhost.run(["kill", "-KILL", &starter]).is_ok());
        }
        for user in users {
            user.join().map_err(|_| "a thread failed")??;
        }
        assert!(killed > 0);
        Ok(())
    })
}
/// Services that fail, and one program that serves while another process of its own goes on.
const TROUBLED: &str = r#"
service later {
  program "/var/lib/later.py" "user";
  listen 7104; style user; idle 1h; users mail; hosts laptop;
}
service quits {
  program "/bin/true";
  listen 7105; style user; users mail; hosts laptop;
}
service crowded {
  program "/var/lib/reveal.py" "connection";
  listen 7106; style connection; connections 2; processes 1; users mail; hosts laptop;
}
service helped {
  program "/var/lib/reveal.py" "helped";
  listen 7109; style connection; connections 2; users mail; hosts laptop;
}
service single {
  program "/var/lib/reveal.py" "connection";
  listen 7107; style connection; connections 1; users mail; hosts laptop;
}
service family {
  program "/var/lib/family.py";
  listen 7108; style user; idle 1s; users mail; hosts laptop;
}
"#;

/// Ends at once when it is asked to. Its child takes its time and writes down that it had it, but for
/// bob's, which does not listen.
const FAMILY: &str = r#"#!/usr/bin/python3
import os, signal, socket, time
listener = socket.socket(fileno=3)
def asked(*_):
    time.sleep(2)
    with open(os.path.expanduser("~/family"), "a") as file:
        file.write("the child had time\n")
    os._exit(0)
def child():
    signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ["USER"] == "bob" else asked)
    listener.close()
    while True:
        signal.pause()
if os.fork() == 0:
    child()
while True:
    with listener.accept()[0] as connection:
        connection.sendall(b"%d\n" % os.getpid())
        connection.recv(16)
"#;

fn troubled() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = mail()?;
    mail.mailhost.write("/var/lib/family.py", FAMILY)?;
    mail.mailhost.run(["chmod", "755", "/var/lib/family.py"])?;
    mail.mailhost
        .write("/etc/usher/policy.d/troubled.policy", TROUBLED)?;
    let client = "client troubled { users mail; service later at mailhost port 7104; \
        service quits at mailhost port 7105; service crowded at mailhost port 7106; \
        service single at mailhost port 7107; service family at mailhost port 7108; \
        service helped at mailhost port 7109; }\n";
    mail.laptop
        .write("/etc/usher/policy.d/troubled.policy", client)?;
    mail.apply()?;
    Ok(mail)
}

/// What `usher who` tells of a service that fails, if anything.
fn trouble(mail: &Mail, service: &str) -> Result<Option<Value>, Box<dyn std::error::Error>> {
    let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
    let who: Value = serde_json::from_str(&who)?;
    let troubles = who["troubles"].as_array().ok_or("no list")?;
    let found = troubles
        .iter()
        .find(|trouble| trouble["service"] == service);
    Ok(found.cloned())
}

#[test]
fn a_program_that_cannot_start_resets_its_clients_and_is_shown() -> Outcome {
    let mail = troubled()?;
    for (service, reason) in [
        (
            "later",
            "executing the program in the new process: No such file",
        ),
        (
            "quits",
            "it ends without accepting the connections that wait",
        ),
    ] {
        for user in ["alice", "bob"] {
            let mut refused = open(&mail, user, service)?;
            let ended = refused.wait(PATIENCE)?;
            assert!(ended.is_some(), "{user}'s connection to {service} waits");
        }
        let shown = trouble(&mail, service)?.ok_or("nothing is shown")?;
        assert_eq!(shown["over"], false, "{shown}");
        assert!(shown["refused_connections"].as_u64() >= Some(2), "{shown}");
        let said = shown["reason"].as_str().unwrap_or_default();
        assert!(said.contains(reason), "{shown}");
        let doctor = mail.mailhost.command(["usher", "doctor"]).run()?.stdout;
        assert!(doctor.contains(&format!("{service}: ")), "{doctor}");
    }
    // Nothing is started for nobody.
    let before = trouble(&mail, "quits")?;
    reveal(&mail, "alice", "each")?;
    assert_eq!(trouble(&mail, "quits")?, before);
    assert_eq!(trouble(&mail, "each")?, None);

    mail.mailhost
        .run(["cp", "-p", "/var/lib/reveal.py", "/var/lib/later.py"])?;
    eventual("the service is served", || {
        let mut connection = open(&mail, "alice", "later")?;
        Ok(connection.read_past("\n", PATIENCE).ok())
    })?;
    eventually("it is shown to serve", || {
        Ok(trouble(&mail, "later")?.is_some_and(|shown| shown["over"] == true))
    })
}

#[test]
fn a_user_without_room_for_a_process_is_refused_until_there_is() -> Outcome {
    let mail = troubled()?;
    if mail
        .keeper
        .log()?
        .contains("`processes` of users cannot be limited")
    {
        println!("skipped: no process controller");
        return Ok(());
    }
    let (first, _) = reveal(&mail, "alice", "crowded")?;
    let mut second = open(&mail, "alice", "crowded")?;
    assert!(second.wait(PATIENCE)?.is_some(), "the second waits");
    let shown = trouble(&mail, "crowded")?.ok_or("nothing is shown")?;
    let said = shown["reason"].as_str().unwrap_or_default();
    assert!(said.contains("making a process: "), "{shown}");
    reveal(&mail, "bob", "crowded")?;
    drop(first);
    eventual("there is room again", || {
        let mut connection = open(&mail, "alice", "crowded")?;
        Ok(connection.read_past("\n", PATIENCE).ok())
    })?;
    Ok(())
}

#[test]
fn a_connection_beyond_the_limit_is_refused_in_the_end() -> Outcome {
    let mail = troubled()?;
    let (mut first, _) = reveal(&mail, "alice", "single")?;
    let mut second = open(&mail, "alice", "single")?;
    assert!(second.wait(PATIENCE)?.is_some(), "the second waits");
    assert!(!first.has_ended()?);
    let shown = trouble(&mail, "single")?.ok_or("nothing is shown")?;
    let said = shown["reason"].as_str().unwrap_or_default();
    assert!(said.contains("all 1 processes"), "{shown}");
    assert_eq!(shown["failed_starts"], 0, "{shown}");
    // In time it is served.
    let mut third = open(&mail, "alice", "single")?;
    drop(first);
    assert!(third.read_past("\n", PATIENCE)?.contains("\"uid\": [2001"));
    Ok(())
}

#[test]
fn an_idle_workers_processes_get_time_to_end() -> Outcome {
    let mail = troubled()?;
    for user in ["alice", "bob"] {
        let mut connection = open(&mail, user, "family")?;
        connection.read_past("\n", PATIENCE)?;
    }
    eventually("nothing of theirs is left", || {
        let processes = mail.mailhost.processes()?;
        Ok(!processes.iter().any(|p| p.command.contains("family.py")))
    })?;
    let written = mail.mailhost.read("/home/alice/family")?;
    assert_eq!(written, "the child had time\n");
    let killed = "processes that did not end when asked are killed";
    let log = mail.keeper.log()?;
    let killed: Vec<&str> = log.lines().filter(|line| line.contains(killed)).collect();
    assert!(
        matches!(killed[..], [line] if line.contains("user=bob")),
        "{killed:?}"
    );
    // The next connection has a worker of its own.
    let mut connection = open(&mail, "alice", "family")?;
    connection.read_past("\n", PATIENCE)?;
    Ok(())
}

#[test]
fn workers_started_side_by_side_are_no_more_than_policy_permits() -> Outcome {
    let mail = mail()?;
    std::thread::scope(|scope| {
        let connections: Vec<_> = (0..12)
            .map(|_| scope.spawn(|| reveal(&mail, "alice", "each").map_err(|e| e.to_string())))
            .collect();
        // What has said who it is stays until its connection is dropped, which is later.
        let mut most = 0;
        let mut rest = connections;
        while !rest.is_empty() {
            let processes = mail.mailhost.processes()?;
            let reveals = processes.iter().filter(|process| {
                process.uid == 2001 && process.command.contains("reveal.py connection")
            });
            most = most.max(reveals.count());
            let (done, going): (Vec<_>, Vec<_>) = rest
                .into_iter()
                .partition(|connection| connection.is_finished());
            for connection in done {
                let (_connection, said) = connection.join().map_err(|_| "a thread failed")??;
                assert!(said.contains("\"uid\": [2001, 2001, 2001]"), "{said}");
            }
            rest = going;
        }
        assert_eq!(most, 2);
        Ok(())
    })
}

#[test]
fn a_setgid_program_gains_its_group_where_policy_permits() -> Outcome {
    let mail = mail()?;
    let host = &mail.mailhost;
    // Of the group beekeepers, in which bob is not; and of root.
    for (program, copy, owner, mode) in [
        (
            "/usr/bin/id",
            "/var/lib/of-group",
            "root:beekeepers",
            "2755",
        ),
        ("/usr/bin/grep", "/var/lib/of-root", "root:root", "4755"),
    ] {
        host.run(["cp", program, copy])?;
        host.run(["chown", owner, copy])?;
        host.run(["chmod", mode, copy])?;
    }
    let policy = |settings: &str| {
        format!(
            "service posts {{ program \"/bin/sh\" \"-c\" \"umask; /var/lib/of-group -g; \
             /var/lib/of-root -E '^(Uid|CapEff)' /proc/self/status | cat; \
             /var/lib/of-root -o ^Pid /proc/self/status || echo not mine\";
             listen 7104; style connection; users mail; hosts laptop; {settings} }}\n"
        )
    };
    let path = "/etc/usher/policy.d/posts.policy";
    let client = "client posts { users mail; service posts at mailhost port 7104; }\n";
    mail.laptop.write(path, client)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let said = |settings: &str| -> Result<String, Box<dyn std::error::Error>> {
        host.write(path, policy(settings))?;
        host.run(["usher", "policy", "apply"])?;
        let connect = mail.laptop.command(["usher", "connect", "mailhost:posts"]);
        Ok(connect.user("bob").succeed()?.stdout)
    };
    let own = host.run(["id", "-g", "bob"])?.stdout;
    let none = "CapEff:\t0000000000000000\n";
    let bob = format!("{own}Uid:\t2002\t2002\t2002\t2002\n{none}Pid\n");
    assert_eq!(said("")?, format!("0077\n{bob}"));
    assert_eq!(said("umask 027;")?, format!("0027\n{bob}"));
    // Where connections have owners, the program of root's cannot write on bob's itself.
    let owned = mail.mailhost.number(Role::Keeper, "fence")? == 1;
    let written = if owned { "not mine" } else { "Pid" };
    let others = format!("0077\n3000\nUid:\t2002\t0\t0\t0\n{none}{written}\n");
    assert_eq!(said("setuid permit;")?, others);
    host.write(path, policy("setuid permit; files \"/usr\" read;"))?;
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let reason = "`setuid permit` stands beside `files`";
    assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    Ok(())
}
