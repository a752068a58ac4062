//! Every session is on record: what clients signed, in a log whose history shows when it is changed.

mod reading;
mod users;

use reading::{connect, lives};
use usher_lab::{ALICE, Lab, Mail, PATIENCE, Signal};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Has the user signed for anew: sessions are the signer's memory.
fn forget_sessions(mail: &mut Mail) -> Result {
    Ok(mail.signer.crash()?)
}

/// The users of the records, in their order.
fn recorded(mail: &Mail) -> Result<Vec<String>> {
    let shown = mail.mailhost.run(["usher", "log", "show"])?.stdout;
    let users = shown.lines().skip(1);
    Ok(users
        .filter_map(|line| Some(line.split_whitespace().nth(2)?.to_owned()))
        .collect())
}

/// What `usher log verify` says of the log, against a kept checkpoint.
fn verify(mail: &Mail, kept: &str) -> Result<(bool, String)> {
    let output = mail
        .mailhost
        .command(["usher", "log", "verify", "--checkpoint", kept])
        .run()?;
    Ok((output.status.success(), output.stdout + &output.stderr))
}

#[test]
fn a_session_is_on_record_as_what_the_client_signed_and_ssh_keygen_verifies_it() -> Result {
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
    // Nobody but root and the recorder reads it or its key.
    for path in ["/etc/usher/log_key", "/var/lib/usher/log/checkpoint"] {
        let read = |user: &str| mail.mailhost.command(["cat", path]).user(user).run();
        assert!(!read("alice")?.status.success(), "{path}");
        assert!(read("usher-recorder")?.status.success(), "{path}");
    }
    Ok(())
}

#[test]
fn what_root_takes_out_or_changes_shows_against_a_kept_checkpoint() -> Result {
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
            format!("printf x | dd of={bundle} bs=1 seek=60 conv=notrunc"),
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

#[test]
fn without_the_recorder_there_are_no_new_sessions_and_open_ones_go_on() -> Result {
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
            // Refused, as the record was not acknowledged.
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
    // What was cut off before it was acknowledged may be there as well.
    assert!(alices >= opened, "{opened} opened: {users:?}");
    assert_eq!(users.last().map(String::as_str), Some("bob"));
    let output = mail.mailhost.run(["usher", "log", "verify"])?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn a_full_disk_refuses_new_sessions_and_loses_nothing() -> Result {
    let mut mail = Lab::mail()?;
    mail.recorder.kill(Signal::KILL)?;
    mail.recorder.wait(PATIENCE)?;
    let log = "/var/lib/usher/log";
    mail.mailhost
        .run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", log])?;
    mail.recorder.start()?;
    let mut alice = connect(&mail, "alice")?;
    mail.mailhost.run([
        "sh",
        "-c",
        &format!("head -c 1M /dev/zero > {log}/filler 2>/dev/null || true"),
    ])?;
    let said = users::refused(&mail, "bob", "mailhost:imap")?;
    assert!(said.contains("cannot keep a record"), "{said}");
    lives(&mut alice)?;
    mail.mailhost.run(["rm", &format!("{log}/filler")])?;
    drop(connect(&mail, "bob")?);
    assert_eq!(recorded(&mail)?, ["alice", "bob"]);
    Ok(())
}
