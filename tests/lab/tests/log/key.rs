//! The log's key is changed while sessions go on.

use serde_json::Value;
use usher_lab::{Lab, Mail, eventually};

use super::reading::{connect, lives};
use super::{
    FILLER, Result, ends, fill_the_disk, forget_sessions, put_on_a_small_disk, shown, users,
};

/// The public key of another log with the same name.
const THIRD_KEY: &str = "mailhost/usher+ed31d2c7+AXN1LROg7M7A6MZvvjVoELoU5gO5T/edbbQe/lERsjRK\n";

/// How `usher log verify` judges the log by a kept key and a kept checkpoint.
fn verify_by(mail: &Mail, key: &str, kept: &str) -> Result<Value> {
    let verify = ["log", "verify", "--key", key, "--checkpoint", kept];
    users::json(&mail.mailhost, &verify)
}

/// What `usher log` answers to a command that must fail.
fn log_refuses(mail: &Mail, words: &[&str]) -> Result<String> {
    let refused = mail
        .mailhost
        .command(["usher", "log"].iter().chain(words))
        .run()?;
    assert_eq!(refused.status.code(), Some(1), "{words:?}: {refused:?}");
    Ok(refused.stderr)
}

// Threat model: A175
#[test]
fn a_log_changes_its_key_and_what_the_former_one_has_signed_counts() -> Result {
    let mut mail = Lab::mail()?;
    let (host, kept) = (mail.mailhost.clone(), "/root/kept");
    let mut alice = connect(&mail, "alice")?;
    drop(connect(&mail, "bob")?);
    host.run(["usher", "user", "disable", "bob"])?;
    eventually("the end is recorded", || Ok(!ends(&mail)?.is_empty()))?;
    host.run(["usher", "user", "enable", "bob"])?;
    let keep = ["log", "verify", "--keep", kept];
    let former = users::json(&host, &keep)?["key"].clone();
    host.run(["cp", "/var/lib/usher/log/verifier-key", "/root/former"])?;
    host.run([
        "cp",
        "--preserve=all",
        "/etc/usher/log_key",
        "/root/former_log_key",
    ])?;

    let said = log_refuses(&mail, &["forget-key"])?;
    assert!(said.contains("`usher log new-key` makes one"), "{said}");
    // A key of another log, and none at all, take nobody's place, and the recorder goes on without them.
    let next = "/etc/usher/next_log_key";
    host.run([
        "ssh-keygen",
        "-q",
        "-N",
        "",
        "-t",
        "ed25519",
        "-C",
        "other",
        "-f",
        next,
    ])?;
    let said = log_refuses(&mail, &["new-key"])?;
    assert!(
        said.contains("is of other, and the log is mailhost/usher: remove it"),
        "{said}"
    );
    mail.recorder.restart()?;
    host.write(next, "no key")?;
    let said = log_refuses(&mail, &["new-key"])?;
    assert!(said.contains(next), "{said}");
    mail.recorder.restart()?;
    let log = mail.recorder.log()?;
    assert_eq!(
        log.matches("cannot use the next key of the log").count(),
        2,
        "{log}"
    );
    forget_sessions(&mut mail)?;
    drop(connect(&mail, "bob")?);
    verify_by(&mail, "/root/former", kept)?;
    host.run(["rm", next])?;
    // What an interruption has left over goes, and nothing else.
    host.write(format!("{next}.pub"), "")?;
    let said = users::json(&host, &["log", "forget-key"])?;
    assert_eq!(said["key"], former);

    let made = users::json(&host, &["log", "new-key"])?;
    let again = users::json(&host, &["log", "new-key"])?;
    assert_eq!(
        (&made["key"], &made["next_key"]),
        (&former, &again["next_key"])
    );
    assert_eq!(
        (&made["made_now"], &again["made_now"]),
        (&true.into(), &false.into())
    );
    let said = log_refuses(&mail, &["forget-key"])?;
    assert!(said.contains("restart the recorder"), "{said}");
    let doctor = || host.command(["usher", "doctor"]).run();
    let told = doctor()?.stdout;
    assert!(
        told.contains("the log has not taken its next key yet"),
        "{told}"
    );
    // Until the recorder is restarted nothing is different.
    drop(connect(&mail, "bob")?);
    verify_by(&mail, "/root/former", kept)?;
    mail.recorder.restart()?;
    lives(&mut alice)?;
    forget_sessions(&mut mail)?;
    drop(connect(&mail, "bob")?);
    host.run(["usher", "user", "disable", "bob"])?;
    eventually("the end is recorded", || Ok(ends(&mail)?.len() >= 3))?;
    let now = host.read("/var/lib/usher/log/verifier-key")?;
    assert_eq!(made["next_key"], now.trim());
    host.run(["cp", "/var/lib/usher/log/verifier-key", "/root/now"])?;

    // Either key counts, each for its part; a third one does not.
    let verified = verify_by(&mail, "/root/former", kept)?;
    let changes = shown(&mail, "key_change", &["index"])?.concat();
    assert_eq!(changes.len(), 1);
    assert_eq!(
        verified["key_changes"].to_string(),
        format!("[{}]", changes[0])
    );
    verify_by(&mail, "/root/now", kept)?;
    host.write("/root/third", THIRD_KEY)?;
    let said = log_refuses(&mail, &["verify", "--key", "/root/third"])?;
    assert!(said.contains("not the log whose key you kept"), "{said}");
    // The ends of both, and the change, by ssh-keygen with the key of their time.
    for (record, key, namespace) in [
        (
            &shown(&mail, "session_end", &["index"])?[0][0],
            "/root/former_log_key",
            "session-end",
        ),
        (&changes[0], "/root/former_log_key", "log-key-change"),
        (
            &shown(&mail, "session_end", &["index"])?[2][0],
            "/etc/usher/next_log_key",
            "session-end",
        ),
    ] {
        let folder = format!("/root/record-{record}");
        host.run(["usher", "log", "export", record, "--directory", &folder])?;
        let check = format!(
            "cd {folder} && echo \"log@usher $(ssh-keygen -y -f {key})\" > allowed_signers && \
             ssh-keygen -Y verify -f allowed_signers -I log@usher -n {namespace}@usher \
             -s statement.sig < statement"
        );
        host.run(["sh", "-c", &check])?;
    }

    let told = doctor()?.stdout;
    assert!(
        told.contains("`usher log forget-key` deletes the former one"),
        "{told}"
    );
    // It stays so, whichever of the files are in place when a recorder starts.
    mail.recorder.restart()?;
    let forgotten = users::json(&host, &["log", "forget-key"])?;
    assert_eq!(forgotten["key"], made["next_key"]);
    for gone in ["/etc/usher/next_log_key", "/etc/usher/next_log_key.pub"] {
        assert!(!host.path(gone).exists(), "{gone}");
    }
    let owner = host.run(["stat", "--format", "%a %U", "/etc/usher/log_key"])?;
    assert_eq!(owner.stdout.trim(), "600 usher-recorder");
    let derived = host
        .run(["ssh-keygen", "-y", "-f", "/etc/usher/log_key"])?
        .stdout;
    assert_eq!(derived, host.read("/etc/usher/log_key.pub")?);
    let told = doctor()?.stdout;
    assert!(!told.contains("next key of the log"), "{told}");
    mail.recorder.restart()?;
    forget_sessions(&mut mail)?;
    drop(connect(&mail, "alice")?);
    verify_by(&mail, "/root/former", kept)?;

    // With the former key the log does not continue.
    mail.recorder.end()?;
    host.run([
        "cp",
        "--preserve=all",
        "/root/former_log_key",
        "/etc/usher/log_key",
    ])?;
    mail.recorder.start().unwrap_err();
    let said = log_refuses(&mail, &["new-key"])?;
    assert!(
        said.contains("bring the log's own key back first"),
        "{said}"
    );
    Ok(())
}

// Threat model: A175
#[test]
fn on_a_full_disk_a_log_keeps_its_key_until_there_is_room() -> Result {
    let mut mail = Lab::mail()?;
    put_on_a_small_disk(&mut mail)?;
    let mut alice = connect(&mail, "alice")?;
    let made = users::json(&mail.mailhost, &["log", "new-key"])?;
    fill_the_disk(&mail)?;
    mail.recorder.restart()?;
    let log = mail.recorder.log()?;
    assert!(log.contains("cannot change the log's key"), "{log}");
    let key = |mail: &Mail| users::json(&mail.mailhost, &["log", "verify"]);
    assert_eq!(key(&mail)?["key"], made["key"]);
    mail.mailhost.run(["rm", FILLER])?;
    drop(connect(&mail, "bob")?);
    mail.recorder.restart()?;
    assert_eq!(key(&mail)?["key"], made["next_key"]);
    lives(&mut alice)?;
    forget_sessions(&mut mail)?;
    drop(connect(&mail, "bob")?);
    key(&mail).map(drop)
}
