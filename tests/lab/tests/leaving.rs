//! Leaving Usher: a stopped keeper's kernel objects are released without a reboot.
#![forbid(unsafe_code)]

use usher_lab::{Lab, Mail, Output, PATIENCE};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn release(mail: &Mail) -> Result<Output, usher_lab::LabError> {
    mail.mailhost.command(["usherd", "release", "--json"]).run()
}

/// The result for a client that knows nothing of Usher at mailhost's port 143.
fn greeting(mail: &Mail) -> Result<String, usher_lab::LabError> {
    let address = format!("TCP4:{}:143", mail.mailhost.ipv4());
    let socat = ["socat", "-u", &address, "-"];
    Ok(mail.stranger.command(socat).run()?.stdout)
}

/// Whether mailhost still has the filter that reads tokens.
fn has_filter(mail: &Mail) -> Result<bool, usher_lab::LabError> {
    let list = "for link in $(ls /sys/class/net); do tc filter show dev $link ingress; done";
    let told = mail.mailhost.command(["sh", "-c", list]).run()?.stdout;
    Ok(told.contains("0x5573"))
}

#[test]
fn a_released_port_is_anybodys_and_the_keeper_may_come_back() -> Outcome {
    let mut mail = Lab::mail()?;
    assert!(has_filter(&mail)?);
    // Not while it runs.
    let refused = release(&mail)?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("the keeper runs"), "{refused:?}");
    assert!(has_filter(&mail)?);

    mail.keeper.stop()?;
    let mut server = mail.mailhost.spawn([
        "socat",
        "-d",
        "-d",
        "TCP4-LISTEN:143,fork,reuseaddr",
        "SYSTEM:echo plain",
    ])?;
    usher_lab::eventually("the plain server listens", || {
        Ok(server.stderr()?.contains("listening on"))
    })?;
    assert_eq!(greeting(&mail)?, "", "a stopped keeper's port is dead");

    let released = release(&mail)?;
    assert!(released.status.success(), "{released:?}");
    let told: serde_json::Value = serde_json::from_str(&released.stdout)?;
    assert!(told["pins"].as_u64() > Some(0), "{told}");
    assert!(
        told["interfaces"]
            .as_array()
            .is_some_and(|interfaces| interfaces.len() >= 2),
        "{told}"
    );
    assert_eq!(greeting(&mail)?, "plain\n");
    assert!(!has_filter(&mail)?);
    // Again: there is nothing to do.
    let again = release(&mail)?;
    assert!(again.status.success(), "{again:?}");
    assert!(again.stdout.contains("\"pins\":0"), "{again:?}");

    server.end()?;
    mail.keeper.start()?;
    let mut client = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    client.read_past("PREAUTH", PATIENCE)?;
    Ok(())
}

#[test]
fn only_root_releases() -> Outcome {
    let mut mail = Lab::mail()?;
    mail.keeper.stop()?;
    let refused = mail
        .mailhost
        .command(["usherd", "release"])
        .user("alice")
        .run()?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(has_filter(&mail)?);
    Ok(())
}

#[test]
fn the_gates_of_a_stopped_signer_are_released() -> Outcome {
    let mut mail = Lab::mail()?;
    let gates = mail.laptop.path("/sys/fs/bpf/usher_signer");
    if !gates.exists() {
        println!("skipped: the kernel takes no gates");
        return Ok(());
    }
    let laptop = mail.laptop.clone();
    let release = |runs: bool| -> Outcome {
        let released = laptop.run(["usherd", "release", "--json"])?.stdout;
        let told: serde_json::Value = serde_json::from_str(&released)?;
        assert_eq!(told["signer_runs"], runs, "{told}");
        assert_eq!(gates.exists(), runs);
        Ok(())
    };
    release(true)?;
    mail.signer.stop()?;
    release(false)
}
