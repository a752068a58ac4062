//! The output of daemons and workers: priorities, fields, the owner of each line, and the limit per user.
#![forbid(unsafe_code)]

use usher_lab::{Host, Lab, Mail, PATIENCE, Running, eventually};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Writes to standard error a line that forges the keeper's journal, and then to its connection.
const FORGER: &str = "#!/bin/sh\n\
    echo '<0>session opened session=0 user=bob' >&2\n\
    echo done\n";

const SERVER: &str = r#"
service forge {
  program "/var/lib/forger";
  listen 7101; style connection; users mail; hosts laptop;
}
users few { member alice; }
service few {
  program "/var/lib/forger";
  listen 7102; style connection; users few; hosts laptop;
}
"#;

const CLIENT: &str = "client more { users mail; service forge at mailhost port 7101; \
    service few at mailhost port 7102; }\n";

/// Events of usherd(8), MESSAGES.
const SESSION_OPENED: &str = "MESSAGE_ID=d9cc7ea4ecf4c5743a6b1d3a44bfe351";
const SESSION_REFUSED: &str = "MESSAGE_ID=57168470b3ba61dffddbe8c74002ff29";

/// Executes a daemon so that its standard error counts as a stream of the journal.
const AS_STREAM: [&str; 4] = [
    "sh",
    "-c",
    "export JOURNAL_STREAM=$(stat --dereference --format=%d:%i /proc/self/fd/2); exec \"$@\"",
    "sh",
];

fn mail() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = Lab::mail()?;
    mail.mailhost.write_program("/var/lib/forger", FORGER)?;
    mail.add_policies("more", SERVER, CLIENT)?;
    Ok(mail)
}

/// Has a worker write its line.
fn forge(mail: &Mail, user: &str) -> Outcome {
    let connect = ["usher", "connect", "mailhost:forge"];
    let said = mail.laptop.command(connect).user(user).succeed()?;
    assert_eq!(said.stdout, "done\n");
    Ok(())
}

/// Starts systemd's journal on a host.
fn journal(host: &Host) -> Result<Running, Box<dyn std::error::Error>> {
    let settings = "[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n";
    host.write("/etc/systemd/journald.conf", settings)?;
    host.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")?;
    let running = host.spawn(["/lib/systemd/systemd-journald"])?;
    // The sockets of a former one are still there. This is the last that it opens.
    eventually("the journal takes streams", || {
        let taken = host.command(["systemd-cat", "true"]).run()?;
        Ok(taken.status.success())
    })?;
    Ok(running)
}

/// Entries of a host's journal, from `journalctl --output=json`.
fn entries(host: &Host, matches: &[&str]) -> Result<Vec<serde_json::Value>, usher_lab::LabError> {
    let command = ["journalctl", "--quiet", "--output=json", "--no-pager"];
    let told = host.run([&command, matches].concat())?.stdout;
    let entries = told.lines().map(serde_json::from_str::<serde_json::Value>);
    Ok(entries.flatten().collect())
}

// Threat model: A96
#[test]
fn a_worker_writes_under_its_own_name_and_user() -> Outcome {
    let mail = mail()?;
    let _journal = journal(&mail.mailhost)?;
    for (user, uid) in [("alice", "2001"), ("bob", "2002")] {
        forge(&mail, user)?;
        let of_user = ["SYSLOG_IDENTIFIER=usher-forge", &format!("_UID={uid}")];
        eventually("the worker's line is in the journal", || {
            Ok(entries(&mail.mailhost, &of_user)?.len() == 1)
        })?;
        let entry = &entries(&mail.mailhost, &of_user)?[0];
        // A worker must not set the priority: the highest goes to all terminals.
        assert_eq!(entry["PRIORITY"], "6", "{entry}");
        assert_eq!(entry["MESSAGE"], "<0>session opened session=0 user=bob");
        assert_ne!(entry["_PID"], mail_keeper(&mail)?, "{entry}");
    }
    assert!(!mail.keeper.log()?.contains("session=0 "));
    Ok(())
}

/// The keeper's process id, as its host sees it.
fn mail_keeper(mail: &Mail) -> Result<String, Box<dyn std::error::Error>> {
    let processes = mail.mailhost.processes()?;
    let keeper = processes
        .iter()
        .find(|process| process.command.contains("usherd keeper"));
    Ok(keeper.ok_or("no keeper")?.pid.to_string())
}

#[test]
fn without_a_journal_a_workers_lines_are_lost() -> Outcome {
    let mail = mail()?;
    forge(&mail, "alice")?;
    // The keeper's own lines are in the same place as before.
    assert!(mail.keeper.wait_log("worker ended", PATIENCE)?);
    let log = mail.keeper.log()?;
    assert!(!log.contains("session=0 "), "{log}");
    assert_eq!(log.matches("there is no journal").count(), 1, "{log}");
    Ok(())
}

// Threat model: A96, A116, M19
#[test]
fn one_users_lines_end_with_the_quota_and_others_go_on() -> Outcome {
    let mail = mail()?;
    let connect = "for i in $(seq 130); do usher connect mailhost:forge </dev/null; done";
    let alice = mail.laptop.command(["sh", "-c", connect]).user("alice");
    assert_eq!(alice.succeed()?.stdout.matches("done").count(), 130);
    forge(&mail, "bob")?;
    assert!(
        mail.keeper
            .wait_log("worker started service=forge user=bob", PATIENCE)?
    );
    let log = mail.keeper.log()?;
    let started = "worker started service=forge user=alice";
    assert_eq!(log.matches(started).count(), 100, "{log}");
    let last = log.lines().rfind(|line| line.contains(started));
    assert!(
        last.is_some_and(|line| line.contains("further lines like this one")),
        "{log}"
    );
    Ok(())
}

#[test]
fn a_line_for_the_journal_has_a_priority_and_no_time() -> Outcome {
    let lab = Lab::new()?;
    let host = lab.host("laptop")?;
    // It has no accounts and no key: it reports that and ends.
    let to_journal = "exec 2>/root/said; \
        export JOURNAL_STREAM=$(stat --dereference --format=%d:%i /proc/self/fd/2); \
        exec usherd courier";
    let elsewhere = "exec 2>/root/said; export JOURNAL_STREAM=1:2; exec usherd courier";
    host.command(["sh", "-c", to_journal]).run()?;
    let said = host.read("/root/said")?;
    assert!(said.starts_with("<3>there is no account"), "{said}");
    host.command(["sh", "-c", elsewhere]).run()?;
    let said = host.read("/root/said")?;
    assert!(said.contains(" ERROR there is no account"), "{said}");
    assert!(said.starts_with("20"), "{said}");
    Ok(())
}

// Threat model: A96
#[test]
fn messages_have_fields_in_the_journal_and_are_lines_without_one() -> Outcome {
    let mut mail = mail()?;
    for daemon in [&mut mail.keeper, &mut mail.verifier] {
        daemon.set_launcher(AS_STREAM);
        daemon.restart()?;
    }
    let connect = |user: &str, target: &str| {
        let connect = ["usher", "connect", target];
        mail.laptop.command(connect).user(user).run()
    };
    let lines_of = |user: &str, service: &str| -> Result<usize, usher_lab::LabError> {
        let log = mail.keeper.log()?;
        let opened = log
            .lines()
            .filter(|line| line.starts_with("<6>session opened"));
        let of_both = opened.filter(|line| {
            line.contains(&format!(" user={user} "))
                && line.contains(&format!(" service={service} "))
        });
        Ok(of_both.count())
    };
    connect("alice", "mailhost:forge")?;
    eventually("without a journal it is a line", || {
        Ok(lines_of("alice", "forge")? == 1)
    })?;

    let first = journal(&mail.mailhost)?;
    connect("bob", "mailhost:forge")?;
    let matches = [SESSION_OPENED, "USHER_USER=bob"];
    eventually("the session is found by its event and user", || {
        Ok(entries(&mail.mailhost, &matches)?.len() == 1)
    })?;
    let entry = &entries(&mail.mailhost, &matches)?[0];
    for (field, value) in [
        ("SYSLOG_IDENTIFIER", "usher-keeper"),
        ("PRIORITY", "6"),
        ("SYSLOG_FACILITY", "3"),
        ("USHER_HOST", "laptop"),
        ("USHER_SERVICE", "forge"),
        ("_TRANSPORT", "journal"),
        ("_PID", &mail_keeper(&mail)?),
    ] {
        assert_eq!(entry[field], value, "{entry}");
    }
    assert_eq!(lines_of("bob", "forge")?, 0);

    drop(first);
    connect("alice", "mailhost:few")?;
    eventually("after its end it is a line", || {
        Ok(lines_of("alice", "few")? == 1)
    })?;

    let _second = journal(&mail.mailhost)?;
    assert!(!connect("bob", "mailhost:few")?.status.success());
    let matches = [SESSION_REFUSED, "USHER_REASON=user_not_permitted"];
    eventually(
        "another journal has the refusal, from a confined daemon",
        || Ok(entries(&mail.mailhost, &matches)?.len() == 1),
    )?;
    let entry = &entries(&mail.mailhost, &matches)?[0];
    assert_eq!(entry["SYSLOG_IDENTIFIER"], "usher-verifier", "{entry}");
    assert_eq!(entry["USHER_CLAIMED_USER"], "bob", "{entry}");
    // Nothing has shown that it was bob.
    assert!(entry["USHER_USER"].is_null(), "{entry}");
    Ok(())
}
