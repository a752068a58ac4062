//! Which keys open what, and what ends with them. Keys are made by ssh-keygen.

mod reading;

use reading::{Outcome, connect, is_cut, lives, who};
use usher_lab::{Host, Lab, Mail};

const ALICES: &str = "/etc/usher/users/alice/authorized_keys";

/// Makes a key on laptop and gives its public line.
fn keygen(mail: &Mail, path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path];
    mail.laptop.run(make)?;
    Ok(mail.laptop.read(format!("{path}.pub"))?)
}

/// What `ssh-keygen -l` says of a key on a host.
fn fingerprint(host: &Host, path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let shown = host.run(["ssh-keygen", "-l", "-f", path])?.stdout;
    let fingerprint = shown.split(' ').nth(1).ok_or("no fingerprint")?;
    assert!(fingerprint.starts_with("SHA256:"), "{shown}");
    Ok(fingerprint.to_owned())
}

#[test]
fn a_key_is_rotated_and_only_what_the_former_one_opened_is_cut() -> Outcome {
    let mail = Lab::mail()?;
    let former = mail.mailhost.read(ALICES)?;
    let fresh = keygen(&mail, "/root/fresh")?;
    let (mut by_former, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);

    // The new one is added, the client moved over: nothing ends.
    mail.mailhost.write("/root/fresh.pub", &fresh)?;
    let add = [
        "usher",
        "user",
        "add",
        "alice",
        "--public-key",
        "/root/fresh.pub",
    ];
    let said = mail.mailhost.run(add)?.stdout;
    assert!(!said.contains("ended"), "{said}");
    let move_over = [
        "usher",
        "user",
        "add",
        "alice",
        "--private-key",
        "/root/fresh",
    ];
    mail.laptop.run(move_over)?;
    let of_former = fingerprint(&mail.laptop, "/home/alice/.ssh/id_ed25519.pub")?;
    let of_fresh = fingerprint(&mail.laptop, "/root/fresh.pub")?;
    // The signer leaves the former key's session aside, after it has answered.
    let mut by_fresh = loop {
        let connection = connect(&mail, "alice")?;
        if who(&mail)?.contains(&of_fresh) {
            break connection;
        }
    };
    lives(&mut by_former)?;
    let text = mail.mailhost.run(["usher", "who"])?.stdout;
    assert!(
        text.contains(&of_former) && text.contains(&of_fresh),
        "{text}"
    );

    // The former one is removed.
    let list = mail.mailhost.read(ALICES)?;
    assert_eq!(list, format!("{former}{fresh}"));
    mail.mailhost.write(ALICES, &fresh)?;
    let said = mail.mailhost.run(["usher", "policy", "apply"])?.stdout;
    assert_eq!(said.matches("ended: alice").count(), 1, "{said}");
    is_cut(&mut by_former)?;
    lives(&mut by_fresh)?;
    lives(&mut bob)?;
    lives(&mut connect(&mail, "alice")?)?;
    let log = mail.keeper.log()?;
    assert!(log.contains("unknown_key"), "{log}");
    assert!(!who(&mail)?.contains(&of_former));

    // And the fresh one too: nothing is left of alice's.
    mail.mailhost.write(ALICES, &former)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    is_cut(&mut by_fresh)?;
    lives(&mut bob)?;
    let again = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
    let refused = again.user("alice").run()?;
    assert!(!refused.status.success(), "{refused:?}");
    Ok(())
}

#[test]
fn a_key_that_was_removed_while_no_keeper_ran_has_its_sessions_ended_by_the_next_one() -> Outcome {
    let mut mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    mail.keeper.stop()?;
    let other = keygen(&mail, "/root/other")?;
    mail.mailhost.write(ALICES, &other)?;
    let applied = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(applied.status.code(), Some(3), "{applied:?}");
    lives(&mut alice)?;
    mail.keeper.start()?;
    is_cut(&mut alice)?;
    lives(&mut bob)
}
