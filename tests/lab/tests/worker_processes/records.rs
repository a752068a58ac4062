//! Workers whose sessions have no record when a keeper starts: nobody is served without one, and the
//! user's next connection has a worker at once.

use serde_json::Value;
use usher_lab::Role;
use usher_lab::hostile::{Channel, Identity};
use usher_proto::SessionId;
use usher_proto::refusal::Refusal;

use super::*;

/// One worker for all connections of a user, which is not idle in the time of a test.
const LASTING: &str = r#"
service lasting {
  program "/var/lib/reveal.py" "user";
  listen 7110; style user; idle 1h; users mail; hosts laptop;
}
"#;

fn lasting() -> Result<Mail, Box<dyn std::error::Error>> {
    let mail = mail()?;
    let client = "client lasting { users mail; service lasting at mailhost port 7110; }\n";
    mail.add_policies("lasting", LASTING, client)?;
    Ok(mail)
}

/// Whether root's processes cannot touch the tables, so that no record is lost there.
fn is_guarded(mail: &Mail) -> Result<bool, Box<dyn std::error::Error>> {
    let guarded = mail.mailhost.number(Role::Keeper, "fence")? == 1;
    if guarded {
        println!("skipped: the guard keeps the tables from root");
    }
    Ok(guarded)
}

const TABLE: &str = "/sys/fs/bpf/usher/sessions";

/// What happens to a record.
#[derive(Debug, Clone, Copy)]
enum Loss {
    /// It is gone.
    Deleted,
    /// The user's name is overwritten.
    Spoilt,
    /// The session has ended, as a keeper notes before it cuts the connections.
    Ended,
}

/// Loses the records of all sessions of a user's number; returns how many.
fn lose(mail: &Mail, uid: u32, loss: Loss) -> Result<usize, Box<dyn std::error::Error>> {
    let dump = ["bpftool", "--json", "map", "dump", "pinned", TABLE];
    let rows: Value = serde_json::from_str(&mail.mailhost.run(dump)?.stdout)?;
    let mut lost = 0;
    for row in rows.as_array().ok_or("no list")? {
        let bytes = |field: &str| -> Option<Vec<String>> {
            let bytes = row[field].as_array()?.iter();
            bytes.map(|byte| Some(byte.as_str()?.to_owned())).collect()
        };
        let (key, mut value) = (
            bytes("key").ok_or("no key")?,
            bytes("value").ok_or("no value")?,
        );
        let uid = uid.to_le_bytes().map(|byte| format!("0x{byte:02x}"));
        if value[..4] != uid {
            continue;
        }
        let what = match loss {
            Loss::Deleted => "delete",
            Loss::Spoilt | Loss::Ended => "update",
        };
        let mut command: Vec<String> = ["bpftool", "map", what, "pinned", TABLE, "key"]
            .map(Into::into)
            .into();
        command.extend(key);
        // struct usher_session: `user`; `ended` and `reason`.
        match loss {
            Loss::Deleted => {}
            Loss::Spoilt => value[96..100].fill("0xff".into()),
            Loss::Ended => {
                value[192] = "0x01".into();
                value[200] = format!("{:#04x}", Refusal::RevokedKey as u16);
            }
        }
        if !matches!(loss, Loss::Deleted) {
            command.push("value".into());
            command.extend(value);
        }
        mail.mailhost.run(&command)?;
        lost += 1;
    }
    Ok(lost)
}

fn lives(mail: &Mail, pid: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let processes = mail.mailhost.processes()?;
    Ok(processes
        .iter()
        .any(|process| process.pid.to_string() == pid))
}

/// Alice's connections end with her workers, whose sessions have no record any more, and she is served
/// anew. The log says this of each session or worker.
fn alice_is_served_anew(mail: &Mail, lost: Vec<(Running, String)>, told: &[&str]) -> Outcome {
    for (mut connection, said) in lost {
        let ended = connection.wait(PATIENCE)?;
        assert!(ended.is_some(), "a connection without a record lasts");
        let pid = number(&said, "pid");
        eventually("her worker has ended", || Ok(!lives(mail, &pid)?))?;
    }
    for service in ["lasting", "each"] {
        let (_fresh, said) = reveal(mail, "alice", service)?;
        assert!(said.contains("\"uid\": [2001, 2001, 2001]"), "{said}");
    }
    let log = mail.keeper.log()?;
    for told in told {
        assert!(log.contains(told), "{told} is not in {log}");
    }
    Ok(())
}

const WORKERS_END: &str = "workers without a session on record are ended";
const CUT: &str = "connections of a session that has ended or has no record are cut";
const UNREADABLE: &str = "the record of a session cannot be read and is removed";

// Threat model: A93
#[test]
fn a_user_whose_record_is_lost_gets_another_worker_at_once() -> Outcome {
    // A worker may end by itself when its connection is cut, before the keeper ends it.
    for (loss, told) in [
        (Loss::Deleted, &[CUT][..]),
        (Loss::Spoilt, &[CUT, UNREADABLE]),
        (Loss::Ended, &[CUT]),
    ] {
        let mut mail = lasting()?;
        if is_guarded(&mail)? {
            return Ok(());
        }
        let services = ["lasting", "each"];
        let lost = services.map(|service| reveal(&mail, "alice", service));
        let kept = services.map(|service| reveal(&mail, "bob", service));
        mail.keeper.end()?;
        assert_eq!(lose(&mail, 2001, loss)?, 2);
        mail.keeper.start()?;

        let lost: Result<Vec<_>, _> = lost.into_iter().collect();
        alice_is_served_anew(&mail, lost?, told)?;
        // Bob's records are there: the same worker serves him on.
        let [lasting, each] = kept;
        let ((lasting, said), (mut each, _)) = (lasting?, each?);
        assert!(!each.has_ended()?, "{loss:?}: bob's connection has ended");
        let mut next = open(&mail, "bob", "lasting")?;
        drop(lasting);
        let again = next.read_past("\n", PATIENCE)?;
        assert_eq!(number(&again, "pid"), number(&said, "pid"), "{loss:?}");
        let log = mail.keeper.log()?;
        let of_bob = |line: &str| line.contains(WORKERS_END) && line.contains("uid=2002");
        assert!(!log.lines().any(of_bob), "{log}");
    }
    Ok(())
}

/// Among the records that a running keeper looks through is one that it cannot read: that of another user, or
/// the disabled user's own.
// Threat model: A85, A93
#[test]
fn an_unreadable_record_hides_no_session_from_a_disable() -> Outcome {
    for spoilt in [2001, 2002] {
        let mail = lasting()?;
        if is_guarded(&mail)? {
            return Ok(());
        }
        let served = ["alice", "bob"].map(|user| reveal(&mail, user, "lasting"));
        let [(mut alice, _), (mut bob, of_bob)] = {
            let [alice, bob] = served;
            [alice?, bob?]
        };
        assert_eq!(lose(&mail, spoilt, Loss::Spoilt)?, 1);
        mail.mailhost.run(["usher", "user", "disable", "bob"])?;
        assert!(bob.wait(PATIENCE)?.is_some(), "bob's connection lasts");
        let pid = number(&of_bob, "pid");
        eventually("bob's worker has ended", || Ok(!lives(&mail, &pid)?))?;
        if spoilt == 2001 {
            // Nobody knows any more that her session is permitted.
            assert!(alice.wait(PATIENCE)?.is_some(), "alice's connection lasts");
        } else {
            assert!(!alice.has_ended()?, "alice's connection has ended");
        }
        let log = mail.keeper.log()?;
        assert!(log.contains(UNREADABLE), "{log}");
        let refused = open(&mail, "bob", "lasting")?.wait(PATIENCE)?;
        assert!(refused.is_some_and(|status| !status.success()));
        let (_fresh, said) = reveal(&mail, "alice", "each")?;
        assert!(said.contains("\"uid\": [2001, 2001, 2001]"), "{said}");
    }
    Ok(())
}

const CONNECTIONS: &str = "/sys/fs/bpf/usher/admissions";
const UNREADABLE_ROW: &str = "the entry of a connection cannot be read and is removed";

/// Makes the entries of all connections of a user's number unreadable; returns how many.
fn spoil_connections(mail: &Mail, uid: u32) -> Result<usize, Box<dyn std::error::Error>> {
    let dump = ["bpftool", "--json", "map", "dump", "pinned", CONNECTIONS];
    let rows: Value = serde_json::from_str(&mail.mailhost.run(dump)?.stdout)?;
    let uid = uid.to_le_bytes().map(|byte| format!("0x{byte:02x}"));
    let mut spoilt = 0;
    for row in rows.as_array().ok_or("no list")? {
        let bytes = |field: &str| -> Option<Vec<String>> {
            let bytes = row[field].as_array()?.iter();
            bytes.map(|byte| Some(byte.as_str()?.to_owned())).collect()
        };
        let key = bytes("key").ok_or("no key")?;
        let mut value = bytes("value").ok_or("no value")?;
        // struct usher_admission: `target.uid`, and the state in `mark`.
        if value[28..32] != uid {
            continue;
        }
        value[0] = "0x7f".into();
        let update = ["bpftool", "map", "update", "pinned", CONNECTIONS, "key"];
        let mut command: Vec<String> = update.map(Into::into).into();
        command.extend(key);
        command.push("value".into());
        command.extend(value);
        mail.mailhost.run(&command)?;
        spoilt += 1;
    }
    Ok(spoilt)
}

/// A running keeper, and one that starts, find the entry of a connection that they cannot read.
// Threat model: A85, A93
#[test]
fn an_unreadable_connection_hides_no_other_from_a_disable() -> Outcome {
    for is_restarted in [false, true] {
        let mut mail = lasting()?;
        if is_guarded(&mail)? {
            return Ok(());
        }
        let [alice, bob] = ["alice", "bob"].map(|user| reveal(&mail, user, "lasting"));
        let ((mut alice, _), (mut bob, of_bob)) = (alice?, bob?);
        if is_restarted {
            mail.keeper.end()?;
        }
        assert_eq!(spoil_connections(&mail, 2001)?, 1);
        if is_restarted {
            mail.keeper.start()?;
        }
        mail.mailhost.run(["usher", "user", "disable", "bob"])?;
        assert!(bob.wait(PATIENCE)?.is_some(), "bob's connection lasts");
        let pid = number(&of_bob, "pid");
        eventually("bob's worker has ended", || Ok(!lives(&mail, &pid)?))?;
        assert!(alice.wait(PATIENCE)?.is_some(), "alice's connection lasts");
        let log = mail.keeper.log()?;
        assert!(log.contains(UNREADABLE_ROW), "{log}");
        let (doctor, who) = (json(&mail, "doctor")?, json(&mail, "who")?);
        assert!(!doctor.contains("is not in force here"), "{doctor}");
        assert!(who.contains("alice"), "her session goes on: {who}");
        // Her next connection is served by it.
        let (_fresh, said) = reveal(&mail, "alice", "each")?;
        assert!(said.contains("\"uid\": [2001, 2001, 2001]"), "{said}");
    }
    Ok(())
}

fn json(mail: &Mail, command: &str) -> Result<String, Box<dyn std::error::Error>> {
    let asked = mail.mailhost.command(["usher", "--json", command]).run()?;
    Ok(asked.stdout)
}

// Threat model: A93
#[test]
fn workers_end_with_the_tables_that_knew_their_sessions() -> Outcome {
    let mut mail = lasting()?;
    if is_guarded(&mail)? {
        return Ok(());
    }
    let lost = ["lasting", "each"].map(|service| reveal(&mail, "alice", service));
    mail.keeper.end()?;
    // As after an update whose tables have another form.
    mail.mailhost.run(["rm", "-r", "/sys/fs/bpf/usher"])?;
    mail.keeper.start()?;
    let lost: Result<Vec<_>, _> = lost.into_iter().collect();
    alice_is_served_anew(&mail, lost?, &[WORKERS_END])
}

/// Closes all of alice's sessions, as her host does; their connections continue.
fn close_sessions(mail: &Mail) -> Outcome {
    let sessions = || -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let who = mail.mailhost.run(["usher", "--json", "who"])?.stdout;
        let who: Value = serde_json::from_str(&who)?;
        let sessions = who["sessions"].as_array().ok_or("no list")?.iter();
        let of_alice = sessions.filter(|session| session["user"] == "alice");
        Ok(of_alice
            .filter_map(|session| Some(session["session"].as_str()?.to_owned()))
            .collect())
    };
    let key = Identity::of(&mail.laptop)?;
    let mut channel = Channel::connect(&mail.laptop, &mail.mailhost, &key)?;
    for session in sessions()? {
        let session: SessionId = session.parse()?;
        assert_eq!(channel.close(session)?, Ok(()));
    }
    Ok(())
}

// Threat model: A93
#[test]
fn a_closed_sessions_worker_serves_its_user_after_a_restart() -> Outcome {
    let mut mail = lasting()?;
    let (mut first, said) = reveal(&mail, "alice", "lasting")?;
    close_sessions(&mail)?;
    mail.keeper.restart()?;
    // Its connection continues, and the user's next one, in another session, waits at the same worker.
    let mut second = open(&mail, "alice", "lasting")?;
    eventually("the second connection is established", || {
        let who = mail.mailhost.run(["usher", "who"])?.stdout;
        Ok(who.matches("established").count() == 2)
    })?;
    assert!(!first.has_ended()?, "the closed session's connection ended");
    drop(first);
    let again = second.read_past("\n", PATIENCE)?;
    assert_eq!(number(&again, "pid"), number(&said, "pid"));
    assert!(!mail.keeper.log()?.contains(WORKERS_END));
    Ok(())
}

#[test]
fn a_worker_that_only_waits_for_its_user_ends_with_the_keeper() -> Outcome {
    let mut mail = lasting()?;
    let (first, said) = reveal(&mail, "alice", "lasting")?;
    drop(first);
    close_sessions(&mail)?;
    eventually("the connection is gone", || {
        let who = mail.mailhost.run(["usher", "who"])?.stdout;
        Ok(!who.contains("established"))
    })?;
    let pid = number(&said, "pid");
    assert!(lives(&mail, &pid)?, "the worker did not wait for its user");
    mail.keeper.restart()?;
    eventually("the worker has ended", || Ok(!lives(&mail, &pid)?))?;
    let (_fresh, said) = reveal(&mail, "alice", "lasting")?;
    assert_ne!(number(&said, "pid"), pid);
    assert!(mail.keeper.log()?.contains(WORKERS_END));
    Ok(())
}
