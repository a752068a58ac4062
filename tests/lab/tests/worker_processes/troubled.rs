//! Services that fail, and limits of processes.

use serde_json::Value;
use usher_lab::{Role, eventual};

use super::*;

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
service wrong {
  program "/bin/sh" "-c" "exit 89";
  listen 7110; style connection; users mail; hosts laptop;
}
service brief {
  program "/bin/true";
  listen 7111; style connection; users mail; hosts laptop;
}
service wrongs {
  program "/bin/sh" "-c" "exit 89";
  listen 7112; style user; users mail; hosts laptop;
}
service killed {
  program "/bin/sh" "-c" "kill -KILL $$";
  listen 7113; style connection; users mail; hosts laptop;
}
service says {
  program "/bin/sh" "-c" "echo served; exit 89";
  listen 7114; style connection; users mail; hosts laptop;
}
service takes {
  program "/bin/sh" "-c" "read taken; exit 89";
  listen 7115; style connection; users mail; hosts laptop;
}
service waits {
  program "/bin/sh" "-c" "until test -e /var/lib/go; do sleep 0.1; done; exit 89";
  listen 7116; style connection; users mail; hosts laptop;
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

pub fn troubled() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = mail()?;
    mail.mailhost.write_program("/var/lib/family.py", FAMILY)?;
    let client = "client troubled { users mail; service later at mailhost port 7104; \
        service quits at mailhost port 7105; service crowded at mailhost port 7106; \
        service single at mailhost port 7107; service family at mailhost port 7108; \
        service helped at mailhost port 7109; service wrong at mailhost port 7110; \
        service brief at mailhost port 7111; service wrongs at mailhost port 7112; \
        service killed at mailhost port 7113; service says at mailhost port 7114; \
        service takes at mailhost port 7115; service waits at mailhost port 7116; }\n";
    mail.add_policies("troubled", TROUBLED, client)?;
    Ok(mail)
}

/// The trouble that `usher who` reports for a failing service, if any.
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
fn the_status_of_a_program_that_ends_at_once_is_shown() -> Outcome {
    let mail = troubled()?;
    for (service, reason) in [
        (
            "wrong",
            "the service's program ended at once with status 89",
        ),
        (
            "wrongs",
            "it ends with status 89 without accepting the connections that wait",
        ),
    ] {
        let mut refused = open(&mail, "alice", service)?;
        assert!(refused.wait(PATIENCE)?.is_some(), "{service} waits");
        let shown = eventual("its end is shown", || trouble(&mail, service))?;
        let said = shown["reason"].as_str().unwrap_or_default();
        assert!(said.contains(reason), "{shown}");
    }
    // The twin, whose connection is as short.
    let mut served = open(&mail, "alice", "brief")?;
    assert!(served.wait(PATIENCE)?.is_some(), "brief waits");
    let ended = "worker ended service=brief";
    assert!(mail.keeper.wait_log(ended, PATIENCE)?);
    assert_eq!(trouble(&mail, "brief")?, None);
    Ok(())
}

// Threat model: A25
#[test]
fn a_client_learns_how_its_program_has_ended_at_once() -> Outcome {
    let mail = troubled()?;
    let connect = |user: &str, service: &str| {
        let destination = format!("mailhost:{service}");
        let connect = mail.laptop.command(["usher", "connect", &destination]);
        connect.user(user).run()
    };
    // Announced, and by a token; orderly ends, and resets of connections that wait.
    for (service, ended) in [
        ("wrong", "with status 89"),
        ("wrong", "with status 89"),
        ("killed", "by signal 9"),
        ("wrongs", "with status 89"),
    ] {
        for user in ["alice", "bob"] {
            let failed = connect(user, service)?;
            assert_eq!(failed.status.code(), Some(1), "{failed:?}");
            let said = format!("the service's program ended {ended} at once");
            assert!(failed.stderr.contains(&said), "{failed:?}");
            let logged = format!("service={service} user={user}");
            assert!(mail.signer.wait_log(&logged, PATIENCE)?, "{logged}");
        }
    }
    // The twins: one that succeeds without a word, and one that fails after having served.
    for (service, stdout) in [("brief", ""), ("says", "served\n")] {
        let served = connect("alice", service)?;
        let found = (served.status.code(), &*served.stdout, &*served.stderr);
        assert_eq!(found, (Some(0), stdout, ""), "{service}");
    }
    let who = mail
        .laptop
        .command(["usher", "--json", "who", "--user", "bob"])
        .run()?;
    let who: Value = serde_json::from_str(&who.stdout)?;
    let failures = who["failures"].as_array().ok_or("no list")?;
    let shown: Vec<_> = failures
        .iter()
        .map(|one| (one["service"].as_str(), one["ended"].as_str()))
        .collect();
    let expected = [
        ("wrong", "with status 89"),
        ("killed", "by signal 9"),
        ("wrongs", "with status 89"),
    ]
    .map(|(service, ended)| (Some(service), Some(ended)));
    assert_eq!(shown, expected);
    let doctor = mail.laptop.command(["usher", "doctor"]).run()?.stdout;
    let said = "wrong of mailhost for bob: its program ended with status 89 at once";
    assert!(doctor.contains(said), "{doctor}");
    assert!(!doctor.contains("brief of mailhost"), "{doctor}");
    Ok(())
}

/// Nothing is waited for where the server has taken what was sent: a program that only takes has served by then.
#[test]
fn a_connection_that_only_sends_asks_for_no_reason() -> Outcome {
    let mail = troubled()?;
    let connect = |input: &str| {
        let connect = mail.laptop.command(["usher", "connect", "mailhost:takes"]);
        connect.user("alice").input(input).run()
    };
    let taken = connect("a line\n")?;
    let found = (taken.status.code(), &*taken.stdout, &*taken.stderr);
    assert_eq!(found, (Some(0), "", ""));
    // The twin, which sends nothing.
    let failed = connect("")?;
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let said = "the service's program ended with status 89 at once";
    assert!(failed.stderr.contains(said), "{failed:?}");
    Ok(())
}

/// What a client sends is on its way while its program dies: nothing says that it was taken.
// Threat model: A25
#[test]
fn an_end_that_crosses_what_was_sent_is_no_success() -> Outcome {
    let mail = troubled()?;
    mail.laptop.use_ipv4_only()?;
    let mailhost = format!("{}/32", mail.mailhost.ipv4());
    let route = |what| {
        mail.laptop
            .run(["ip", "route", what, "blackhole", &mailhost])
    };
    let is_reported = || -> Result<bool, Box<dyn std::error::Error>> {
        let doctor = mail.laptop.command(["usher", "doctor"]).run()?;
        Ok(doctor.stdout.contains("waits of mailhost for alice"))
    };
    // A slow machine's program has not ended at once, and is not reported: then once more.
    let ended = eventual("the server reports its end", || {
        mail.mailhost.run(["rm", "-f", "/var/lib/go"])?;
        let mut failing = open(&mail, "alice", "waits")?;
        eventually("the program runs", || {
            Ok(mail
                .mailhost
                .run(["usher", "who"])?
                .stdout
                .contains("waits"))
        })?;
        // Nothing of laptop reaches mailhost any more, and all of mailhost reaches laptop.
        route("add")?;
        failing.write("a line\n")?;
        eventually("the line is on its way", || {
            let sockets = mail.laptop.run(["ss", "-Htn", "dport", "=", ":7116"])?;
            let mut words = sockets.stdout.split_whitespace();
            Ok(words.nth(2).is_some_and(|bytes| bytes != "0"))
        })?;
        mail.mailhost.run(["touch", "/var/lib/go"])?;
        let ended = failing.wait(PATIENCE)?;
        let said = failing.stderr()?;
        route("del")?;
        Ok(is_reported()?.then_some((ended, said)))
    })?;
    let (status, said) = ended;
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{said}");
    let expected = "the service's program ended with status 89 at once";
    assert!(said.contains(expected), "{said}");
    // The twin: a program that takes it.
    let taken = mail.laptop.command(["usher", "connect", "mailhost:takes"]);
    let taken = taken.user("alice").input("a line\n").run()?;
    assert_eq!(taken.status.code(), Some(0), "{taken:?}");
    Ok(())
}

// Threat model: A87
#[test]
fn a_program_that_cannot_start_resets_its_clients_and_is_shown() -> Outcome {
    let mail = troubled()?;
    for (service, reason) in [
        (
            "later",
            "cannot execute the program in the new process: No such file",
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
    // Without users no worker is started.
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

// Threat model: A87
#[test]
fn a_user_without_room_for_a_process_is_refused_until_there_is() -> Outcome {
    let mail = troubled()?;
    if mail
        .keeper
        .log()?
        .contains("cannot limit `processes` of users")
    {
        println!("skipped: no process controller");
        return Ok(());
    }
    let (first, _) = reveal(&mail, "alice", "crowded")?;
    let mut second = open(&mail, "alice", "crowded")?;
    assert!(second.wait(PATIENCE)?.is_some(), "the second waits");
    let shown = trouble(&mail, "crowded")?.ok_or("nothing is shown")?;
    let said = shown["reason"].as_str().unwrap_or_default();
    assert!(said.contains("cannot make a process: "), "{shown}");
    reveal(&mail, "bob", "crowded")?;
    drop(first);
    eventual("there is room again", || {
        let mut connection = open(&mail, "alice", "crowded")?;
        Ok(connection.read_past("\n", PATIENCE).ok())
    })?;
    Ok(())
}

// Threat model: A87
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
        let connections: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| reveal(&mail, "alice", "each").map_err(|e| e.to_string())))
            .collect();
        // A process that has reported its user stays until its connection is dropped, which is
        // later.
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

// Threat model: A68
#[test]
fn a_setgid_program_gains_its_group_where_policy_permits() -> Outcome {
    let mail = mail()?;
    let host = &mail.mailhost;
    // Programs of the group beekeepers, in which bob is not, and of root.
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
    // If connections have owners, root's program cannot write to bob's itself.
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

// Threat model: A83
#[test]
fn a_worker_that_does_not_begin_in_time_is_ended_and_shown() -> Outcome {
    let mail = mail()?;
    // The holder of a write lease has 45 seconds before others may open the file.
    let lease = "import fcntl, signal; signal.signal(signal.SIGIO, signal.SIG_IGN); \
        program = open('/var/lib/reveal.py', 'r+'); \
        fcntl.fcntl(program, fcntl.F_SETLEASE, fcntl.F_WRLCK); print('held', flush=True); \
        signal.sigwait([signal.SIGTERM])";
    let mut holder = mail.mailhost.spawn(["python3", "-c", lease])?;
    holder.read_past("held\n", PATIENCE)?;
    let mut waiting = open(&mail, "alice", "each")?;
    eventually("the late worker is shown", || {
        let reason = trouble(&mail, "each")?;
        Ok(reason.is_some_and(|found| found.to_string().contains("longer than 30 seconds")))
    })?;
    waiting.wait(PATIENCE)?;
    holder.end()?;
    eventual("the service is served again", || {
        let mut connection = open(&mail, "alice", "each")?;
        Ok(connection.read_past("\n", PATIENCE).ok())
    })?;
    Ok(())
}
