//! Restoring a host onto a new machine, as docs/operation.md describes it.

use super::{Outcome, connect};
use usher_lab::{Lab, Role};

#[test]
fn a_restored_host_continues_its_log_on_a_new_machine() -> Outcome {
    let mail = Lab::mail()?;
    drop(connect(&mail, "alice")?);
    let archive = mail.mailhost.path("/var/lib/backup.tar");
    mail.mailhost.run([
        "tar",
        "--create",
        "--file=/var/lib/backup.tar",
        "--directory=/",
        "etc/usher",
        "var/lib/usher",
    ])?;
    let records = mail.mailhost.run(["usher", "--json", "log", "verify"])?;
    // The backup does not know it.
    mail.mailhost.run(["usher", "user", "disable", "bob"])?;
    // On the new machine another account has the recorder's number.
    let new = &mail.stranger;
    let recorder = mail.mailhost.run(["id", "-u", "usher-recorder"])?.stdout;
    new.add_account("squatter", recorder.trim().parse()?)?;
    new.run(["usher", "init", "--name", "mailhost"])?;
    std::fs::copy(archive, new.path("/var/lib/backup.tar"))?;
    new.run([
        "tar",
        "--extract",
        "--numeric-owner",
        "--file=/var/lib/backup.tar",
        "--directory=/",
    ])?;
    let owner = || {
        new.run([
            "stat",
            "--format=%U",
            "/var/lib/usher/log",
            "/etc/usher/log_key",
        ])
    };
    assert_eq!(owner()?.stdout, "squatter\nsquatter\n");
    let refused = new.supervise("refused", ["usherd", "recorder"]);
    let refused = refused.map(drop).unwrap_err();
    let refused = refused.to_string();
    assert!(!refused.contains("as root"), "{refused}");
    assert!(refused.contains("`usher init`"), "{refused}");

    let said = new.run(["usher", "init", "--name", "mailhost"])?.stdout;
    // The recorder has taken the folder itself, and could not read what is in it.
    assert!(
        said.contains("given to its account: /var/lib/usher/log/"),
        "{said}"
    );
    assert_eq!(owner()?.stdout, "usher-recorder\nusher-recorder\n");
    let said = new.run(["usher", "init", "--name", "mailhost"])?.stdout;
    assert!(!said.contains("given to"), "{said}");
    let disabled = || -> Result<Vec<bool>, Box<dyn std::error::Error>> {
        let users = new.run(["usher", "--json", "user", "list"])?.stdout;
        let users: serde_json::Value = serde_json::from_str(&users)?;
        let users = users.as_array().ok_or("no users")?;
        Ok(users
            .iter()
            .map(|user| user["disabled"].is_string())
            .collect())
    };
    assert!(!disabled()?.contains(&true));
    // The step that the document has for it, before any daemon runs.
    new.run(["usher", "user", "disable", "bob"])?;
    assert!(disabled()?.contains(&true));
    let _recorder = new.start_daemon(Role::Recorder)?;
    let verified = new.run(["usher", "--json", "log", "verify"])?;
    assert_eq!(verified.stdout, records.stdout);
    Ok(())
}
