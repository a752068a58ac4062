//! Every session is on record: what clients signed, in a log that reveals changes to its history.

#[path = "../attack/mod.rs"]
mod attack;
mod key;
#[path = "../reading/mod.rs"]
mod reading;
#[path = "../users/mod.rs"]
mod users;

use attack::{Attack, still_works};
use reading::{connect, is_cut, lives};
use serde_json::Value;
use usher_lab::hostile::id_of;
use usher_lab::{ALICE, Lab, Mail, PATIENCE, Role, Signal, eventually};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Makes the user sign again, because the signer keeps sessions in memory only.
fn forget_sessions(mail: &mut Mail) -> Result {
    Ok(mail.signer.crash()?)
}

/// The log's records of a kind, each with these members, in order.
fn shown(mail: &Mail, kind: &str, members: &[&str]) -> Result<Vec<Vec<String>>> {
    let show = ["log", "show", "--count", "1000"];
    let shown = users::json(&mail.mailhost, &show)?;
    let records = shown["records"].as_array().ok_or("no records")?.iter();
    Ok(records
        .filter(|record| record["kind"] == kind)
        .map(|record| {
            let text = |member: &&str| match &record[*member] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            members.iter().map(text).collect()
        })
        .collect())
}

/// The users who have authenticated, in the order of the records.
fn recorded(mail: &Mail) -> Result<Vec<String>> {
    Ok(shown(mail, "authentication", &["user"])?.concat())
}

/// The ends of sessions: user, service and reason, and the session.
fn ends(mail: &Mail) -> Result<Vec<Vec<String>>> {
    shown(
        mail,
        "session_end",
        &["user", "service", "reason", "session"],
    )
}

/// The output of `usher log verify` for the log, against a kept checkpoint.
fn verify(mail: &Mail, kept: &str) -> Result<(bool, String)> {
    let output = mail
        .mailhost
        .command(["usher", "log", "verify", "--checkpoint", kept])
        .run()?;
    Ok((output.status.success(), output.stdout + &output.stderr))
}

#[test]
fn a_sessions_record_verifies_with_ssh_keygen() -> Result {
    let mail = Lab::mail()?;
    let _alice = connect(&mail, "alice")?;
    // In the same session: no record of its own.
    let _again = connect(&mail, "alice")?;
    let _bob = connect(&mail, "bob")?;
    assert_eq!(recorded(&mail)?, ["alice", "bob"]);
    mail.mailhost
        .run(["usher", "log", "export", "0", "--directory", "/root/record"])?;
    let check = |statement: &str| {
        let line = format!(
            "cd /root/record && ssh-keygen -Y verify -f allowed_signers -I alice \
             -n authenticator@usher -s statement.sig < {statement}"
        );
        mail.mailhost.command(["sh", "-c", &line]).run()
    };
    let output = check("statement")?;
    assert!(output.status.success(), "{output:?}");
    mail.mailhost.run([
        "sh",
        "-c",
        "cd /root/record && sed s/mail/nail/ statement | tr a b > other",
    ])?;
    assert!(!check("other")?.status.success());
    // The key is the one that alice has.
    let known = mail
        .laptop
        .run(["cat", "/home/alice/.ssh/id_ed25519.pub"])?
        .stdout;
    let recorded = mail.mailhost.run(["cat", "/root/record/key.pub"])?.stdout;
    let body = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    assert!(body(&known).is_some());
    assert_eq!(body(&recorded), body(&known));
    // Only root and the recorder can read it or its key.
    for path in ["/etc/usher/log_key", "/var/lib/usher/log/checkpoint"] {
        let read = |user: &str| mail.mailhost.command(["cat", path]).user(user).run();
        assert!(!read("alice")?.status.success(), "{path}");
        assert!(read("usher-recorder")?.status.success(), "{path}");
    }
    Ok(())
}

// Threat model: A134, A144
#[test]
fn a_kept_checkpoint_reveals_removed_or_changed_records() -> Result {
    let mut mail = Lab::mail()?;
    let kept = "/root/kept";
    for _ in 0..3 {
        drop(connect(&mail, "alice")?);
        forget_sessions(&mut mail)?;
    }
    mail.mailhost
        .run(["usher", "log", "verify", "--keep", kept])?;
    drop(connect(&mail, "bob")?);
    let (sound, said) = verify(&mail, kept)?;
    assert!(sound, "{said}");
    mail.recorder.kill(Signal::KILL)?;
    mail.recorder.wait(PATIENCE)?;
    let log = "/var/lib/usher/log";
    mail.mailhost
        .run(["cp", "-a", log, "/var/lib/usher/log.whole"])?;
    let restore = || -> Result {
        mail.mailhost.run(["rm", "-r", log])?;
        mail.mailhost
            .run(["cp", "-a", "/var/lib/usher/log.whole", log])?;
        Ok(())
    };
    let bundle = mail
        .mailhost
        .run(["find", log, "-path", "*entries*", "-type", "f"])?
        .stdout;
    let bundle = bundle.trim();
    for (damage, kind) in [
        (format!("truncate -s -100 {bundle}"), "truncated"),
        (
            // The byte may be an x already.
            format!(
                "b=$(dd if={bundle} bs=1 skip=60 count=1); [ \"$b\" = x ] && b=y || b=x; \
                 printf $b | dd of={bundle} bs=1 seek=60 conv=notrunc"
            ),
            "record 0",
        ),
        (format!("rm -r {log}/*"), "no log here"),
    ] {
        mail.mailhost.run(["sh", "-c", &damage])?;
        let (sound, said) = verify(&mail, kept)?;
        assert!(!sound && said.contains(kind), "{damage}: {said}");
        restore()?;
    }
    // Another history, with the log's own key.
    mail.mailhost.run(["sh", "-c", &format!("rm -r {log}/*")])?;
    mail.recorder.start()?;
    forget_sessions(&mut mail)?;
    drop(connect(&mail, "alice")?);
    let (sound, said) = verify(&mail, kept)?;
    assert!(!sound, "{said}");
    Ok(())
}

// Threat model: A134
#[test]
fn without_the_recorder_only_open_sessions_continue() -> Result {
    let mut mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    mail.recorder.kill(Signal::KILL)?;
    mail.recorder.wait(PATIENCE)?;
    let said = users::refused(&mail, "bob", "mailhost:imap")?;
    assert!(said.contains("cannot keep a record"), "{said}");
    // Alice's session is on record.
    drop(connect(&mail, "alice")?);
    lives(&mut alice)?;
    let who = mail.mailhost.run(["usher", "who"])?.stdout;
    assert!(!who.contains("bob"), "{who}");
    mail.recorder.start()?;
    drop(connect(&mail, "bob")?);
    assert_eq!(recorded(&mail)?, ["alice", "bob"]);
    Ok(())
}

#[test]
fn a_killed_recorder_loses_no_session_that_was_opened() -> Result {
    let mut mail = Lab::mail()?;
    let mut opened = 0;
    for _ in 0..6 {
        let mut client = mail
            .laptop
            .command(["usher", "connect", "mailhost:imap"])
            .user("alice")
            .spawn()?;
        mail.recorder.crash()?;
        match client.read_past("\n", PATIENCE) {
            Ok(greeting) if greeting.starts_with("* PREAUTH") => opened += 1,
            Ok(other) => return Err(other.into()),
            // Refused, because the record was not acknowledged.
            Err(_) => assert!(
                client
                    .wait(PATIENCE)?
                    .is_some_and(|status| !status.success())
            ),
        }
        drop(client);
        forget_sessions(&mut mail)?;
    }
    drop(connect(&mail, "bob")?);
    let users = recorded(&mail)?;
    let alices = users.iter().filter(|user| *user == ALICE.name).count();
    // Records cut off before they were acknowledged may be there as well.
    assert!(alices >= opened, "{opened} opened: {users:?}");
    assert_eq!(users.last().map(String::as_str), Some("bob"));
    let output = mail.mailhost.run(["usher", "log", "verify"])?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

const FILLER: &str = "/var/lib/usher/log/filler";

fn put_on_a_small_disk(mail: &mut Mail) -> Result {
    mail.recorder.kill(Signal::KILL)?;
    mail.recorder.wait(PATIENCE)?;
    let mount = "mount -t tmpfs -o size=256k tmpfs /var/lib/usher/log";
    mail.mailhost.run(["sh", "-c", mount])?;
    Ok(mail.recorder.start()?)
}

fn fill_the_disk(mail: &Mail) -> Result {
    let fill = format!("head -c 1M /dev/zero > {FILLER} 2>/dev/null || true");
    mail.mailhost.run(["sh", "-c", &fill])?;
    Ok(())
}

#[test]
fn a_full_disk_refuses_new_sessions_and_loses_nothing() -> Result {
    let mut mail = Lab::mail()?;
    put_on_a_small_disk(&mut mail)?;
    let mut alice = connect(&mail, "alice")?;
    fill_the_disk(&mail)?;
    let said = users::refused(&mail, "bob", "mailhost:imap")?;
    assert!(said.contains("cannot keep a record"), "{said}");
    lives(&mut alice)?;
    let doctor = || mail.mailhost.command(["usher", "doctor"]).run();
    let told = doctor()?;
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    for part in [
        "MISSING  room for the log: the file system of /var/lib/usher/log is full (0 bytes left)",
        "the last record could not be kept, and without a record no session is opened: ",
        "this host offers imap: LACKS daemon recorder, room for the log\n",
    ] {
        assert!(told.stdout.contains(part), "{part}: {told:?}");
    }
    mail.mailhost.run(["rm", FILLER])?;
    drop(connect(&mail, "bob")?);
    assert_eq!(recorded(&mail)?, ["alice", "bob"]);
    let told = doctor()?;
    assert_eq!(told.status.code(), Some(0), "{told:?}");
    Ok(())
}

#[test]
fn only_a_log_that_went_missing_is_a_warning() -> Result {
    let mut mail = Lab::mail()?;
    let log = mail.recorder.log()?;
    assert!(
        log.contains("the log is begun") && !log.contains("WARN"),
        "{log}"
    );
    mail.recorder.stop()?;
    mail.mailhost.run(["mv", "/var/lib/usher/log", "/root"])?;
    mail.recorder.start()?;
    let log = mail.recorder.log()?;
    assert!(
        log.contains("the log that was in /var/lib/usher/log is not there"),
        "{log}"
    );
    Ok(())
}

/// The sessions that a user has authenticated for.
fn sessions_of(mail: &Mail, user: &str) -> Result<Vec<String>> {
    let sessions = shown(mail, "authentication", &["user", "session"])?;
    let of_user = sessions.into_iter().filter(|record| record[0] == user);
    Ok(of_user.map(|record| record[1].clone()).collect())
}

#[test]
fn why_a_session_ended_is_on_record_and_ssh_keygen_verifies_it() -> Result {
    let mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    let _bob = connect(&mail, "bob")?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    is_cut(&mut alice)?;
    eventually("the end is recorded", || Ok(!ends(&mail)?.is_empty()))?;
    let sessions = sessions_of(&mail, "alice")?;
    assert_eq!(sessions.len(), 1);
    assert_eq!(
        ends(&mail)?,
        [["alice", "imap", "disabled_user", sessions[0].as_str()]]
    );
    mail.mailhost
        .run(["usher", "log", "export", "2", "--directory", "/root/end"])?;
    // Signed by the host's log key, and by no other.
    let check = |key: &str, statement: &str| {
        let line = format!(
            "cd /root/end && echo \"log@usher $({key})\" > allowed_signers && ssh-keygen -Y verify \
             -f allowed_signers -I log@usher -n session-end@usher -s statement.sig < {statement}"
        );
        mail.mailhost.command(["sh", "-c", &line]).run()
    };
    let key = "ssh-keygen -y -f /etc/usher/log_key";
    let output = check(key, "statement")?;
    assert!(output.status.success(), "{output:?}");
    mail.mailhost.run([
        "sh",
        "-c",
        "cd /root/end && sed s/alice/carol/ statement > other",
    ])?;
    assert!(!check(key, "other")?.status.success());
    let other = "ssh-keygen -q -N '' -t ed25519 -f other-key; cat other-key.pub";
    assert!(!check(other, "statement")?.status.success());
    let said = mail.mailhost.run(["usher", "log", "verify"])?.stdout;
    let counted = said.contains("2 authentications") && said.contains("1 ends");
    assert!(counted, "{said}");
    Ok(())
}

#[test]
fn an_end_waits_for_room_on_disk_and_is_recorded_once() -> Result {
    let mut mail = Lab::mail()?;
    put_on_a_small_disk(&mut mail)?;
    let mut alice = connect(&mail, "alice")?;
    let mut bob = connect(&mail, "bob")?;
    // The session ends at once, whatever the log can do.
    fill_the_disk(&mail)?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    is_cut(&mut alice)?;
    eventually("the full disk is met", || {
        Ok(mail.mailhost.number(Role::Recorder, "refused")? > 0)
    })?;
    // Without the recorder it waits, as it does for room; a keeper that dies still has it afterwards.
    mail.recorder.kill(Signal::KILL)?;
    mail.recorder.wait(PATIENCE)?;
    mail.mailhost.run(["usher", "user", "disable", "bob"])?;
    is_cut(&mut bob)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "ends_waiting")?, 2);
    mail.keeper.crash()?;
    mail.mailhost.run(["rm", FILLER])?;
    mail.recorder.start()?;
    eventually("both ends are recorded", || Ok(ends(&mail)?.len() == 2))?;
    eventually("nothing waits", || {
        Ok(mail.mailhost.number(Role::Keeper, "ends_waiting")? == 0)
    })?;
    mail.keeper.crash()?;
    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    drop(connect(&mail, "alice")?);
    let users = ends(&mail)?.into_iter().map(|end| end[0].clone());
    let mut users: Vec<String> = users.collect();
    users.sort();
    assert_eq!(users, ["alice", "bob"]);
    let output = mail.mailhost.run(["usher", "log", "verify"])?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn a_session_that_ends_twice_has_both_ends_on_record() -> Result {
    let mut attack = Attack::new()?;
    let mut channel = attack.channel()?;
    let mut asked = attack.asked("alice")?;
    let authenticator = asked.sign(&attack.user_key("alice")?)?;
    let port = attack.port()?;
    let first = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.open_session(&authenticator, first)?, Ok(()));
    let mut connection = attack.served(port, "alice")?;
    attack.mail.recorder.kill(Signal::KILL)?;
    attack.mail.recorder.wait(PATIENCE)?;
    // The session is closed; its connection continues until she is no longer permitted.
    let session = id_of(&authenticator);
    assert_eq!(channel.close(session)?, Ok(()));
    still_works(&mut connection)?;
    let mailhost = &attack.mail.mailhost;
    mailhost.run(["usher", "user", "disable", "alice"])?;
    eventually("the connection is cut", || {
        Ok(still_works(&mut connection).is_err())
    })?;
    assert_eq!(mailhost.number(Role::Keeper, "ends_waiting")?, 2);
    attack.mail.recorder.start()?;
    eventually("both are on record", || {
        Ok(attack.mail.mailhost.number(Role::Keeper, "ends_waiting")? == 0)
    })?;
    let session = session.to_string();
    assert_eq!(
        ends(&attack.mail)?,
        ["session_ended", "disabled_user"].map(|why| ["alice", "imap", why, &session])
    );
    Ok(())
}

#[test]
fn a_recorded_session_that_is_not_opened_has_its_end_on_record() -> Result {
    let mut mail = Lab::mail()?;
    mail.recorder.kill(Signal::STOP)?;
    let mut alice = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    // Her queue is made while the recorder works.
    eventually("the session is being opened", || {
        Ok(mail.mailhost.number(Role::Keeper, "queues")? == 1)
    })?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    mail.recorder.kill(Signal::CONT)?;
    let ended = alice.wait(PATIENCE)?;
    assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
    eventually("its end is on record", || Ok(!ends(&mail)?.is_empty()))?;
    let sessions = sessions_of(&mail, "alice")?;
    assert_eq!(
        ends(&mail)?,
        [["alice", "imap", "disabled_user", sessions[0].as_str()]]
    );
    Ok(())
}
