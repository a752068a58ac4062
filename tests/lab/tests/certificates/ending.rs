//! Sessions of a certificate end.

use crate::attack::Result;
use crate::authority::{AUTHORITIES, apply, certified, certify, certify_user, give, recent};
use crate::reading::{connect, is_cut, lives, who};
use crate::users::{add, json, refused};
use usher_lab::{eventual, in_time};

const REVOKED: &str = "/etc/usher/revoked_keys";

// Threat model: A22
#[test]
fn a_revocation_ends_exactly_the_sessions_it_concerns() -> Result {
    let mail = certified()?;
    let (mailhost, laptop) = (&mail.mailhost, &mail.laptop);
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    for public in ["ca.pub", "alice.pub"] {
        let path = format!("/root/{public}");
        mailhost.write(&path, laptop.read(&path)?)?;
    }
    let revoke = |specification: &str| -> Result<String> {
        mailhost.write("/root/revoked", specification)?;
        let make = [
            "ssh-keygen",
            "-q",
            "-k",
            "-f",
            REVOKED,
            "-s",
            "/root/ca.pub",
        ];
        mailhost.run([&make[..], &["/root/revoked"]].concat())?;
        apply(&mail)
    };

    let said = revoke("serial: 7\n")?;
    assert_eq!(said.matches("ended: alice").count(), 1, "{said}");
    is_cut(&mut alice)?;
    assert_eq!(recent(&mail, "alice")?[0], "revoked_certificate");
    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("revoked on this server"), "{told}");
    lives(&mut bob)?;

    // The next certificate of the same key is not revoked.
    give(&mail, "alice", &certify_user(laptop, "alice", "9")?)?;
    let mut alice = connect(&mail, "alice")?;
    let said = revoke("serial: 7\nid: bob-8\n")?;
    assert_eq!(said.matches("ended: ").count(), 1, "{said}");
    is_cut(&mut bob)?;
    assert_eq!(recent(&mail, "bob")?, ["revoked_certificate"]);
    refused(&mail, "bob", "mailhost:imap")?;
    lives(&mut alice)?;

    // The key itself, whatever certifies it; named by SHA-1 only.
    let key = mailhost.read("/root/alice.pub")?;
    revoke(&format!("sha1: {key}"))?;
    is_cut(&mut alice)?;
    assert_eq!(recent(&mail, "alice")?[0], "revoked_key");
    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    let mut bob = connect(&mail, "bob")?;

    // The authority, by its key.
    let key = mailhost.read("/root/ca.pub")?;
    mailhost.write(REVOKED, key)?;
    apply(&mail)?;
    is_cut(&mut bob)?;
    assert_eq!(recent(&mail, "bob")?[0], "revoked_certificate");
    mailhost.run(["rm", REVOKED])?;
    apply(&mail)?;
    lives(&mut connect(&mail, "alice")?)?;
    lives(&mut connect(&mail, "bob")?)
}

// Threat model: A22, A24
#[test]
fn an_authoritys_sessions_end_with_the_trust_in_it() -> Result {
    let mut mail = certified()?;
    let mut alice = connect(&mail, "alice")?;
    // Bob has a plain key from here on.
    let key = mail.laptop.read("/home/bob/.ssh/id_ed25519.pub")?;
    mail.mailhost.write("/root/bob.pub", key)?;
    add(&mail.mailhost, "bob", &["--public-key", "/root/bob.pub"])?;
    let private = "/home/bob/.ssh/id_ed25519";
    add(&mail.laptop, "bob", &["--private-key", private])?;
    let mut bob = connect(&mail, "bob")?;

    mail.keeper.restart()?;
    lives(&mut alice)?;
    assert!(who(&mail)?.contains("\"serial\""));
    mail.keeper.stop()?;
    let authority = mail.mailhost.read(AUTHORITIES)?;
    mail.mailhost.run(["rm", AUTHORITIES])?;
    let applied = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(applied.status.code(), Some(3), "{applied:?}");
    lives(&mut alice)?;
    mail.keeper.start()?;
    is_cut(&mut alice)?;
    assert_eq!(recent(&mail, "alice")?, ["unknown_authority"]);
    lives(&mut bob)?;
    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");

    mail.mailhost.write(AUTHORITIES, authority)?;
    apply(&mail)?;
    let mut alice = connect(&mail, "alice")?;
    // Known by certificates only, and disabled all the same.
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    is_cut(&mut alice)?;
    assert_eq!(recent(&mail, "alice")?[0], "disabled_user");
    let unknown = mail.mailhost.command(["usher", "user", "disable", "alcie"]);
    assert_eq!(unknown.run()?.status.code(), Some(1));
    lives(&mut bob)
}

#[test]
fn a_session_ends_with_its_certificate_and_a_new_one_follows() -> Result {
    let mail = certified()?;
    let laptop = &mail.laptop;
    let (mut by_short, mut alice) = in_time(|seconds| {
        let valid = format!("-1m:+{seconds}s");
        let short = ["-I", "short", "-n", "alice", "-V", &valid];
        give(&mail, "alice", &certify(laptop, "ca", "alice", &short)?)?;
        let mut by_short = connect(&mail, "alice")?;
        let listed = laptop.run(["usher", "user", "list"])?.stdout;
        if !listed.contains("private key, certificate until 20") {
            return Err(listed.into());
        }
        // Renewed: the next session is by the new one, and connections stay as long as they would
        // have.
        // Another one for each attempt.
        let number = 33 + seconds;
        give(
            &mail,
            "alice",
            &certify_user(laptop, "alice", &number.to_string())?,
        )?;
        let alice = eventual("a session is by the new one", || {
            let connection = connect(&mail, "alice")?;
            let sessions = json(&mail.mailhost, &["who"])?;
            let sessions = sessions["sessions"].as_array().ok_or("no list")?;
            let serial = |session: &serde_json::Value| session["certificate"]["serial"].clone();
            let renewed = sessions.iter().any(|session| serial(session) == number);
            Ok(renewed.then_some(connection))
        })?;
        lives(&mut by_short)?;
        Ok((by_short, alice))
    })?;
    is_cut(&mut by_short)?;
    assert_eq!(recent(&mail, "alice")?[0], "expired_certificate");
    lives(&mut alice)?;
    lives(&mut connect(&mail, "alice")?)?;

    // The signer leaves an expired certificate out. The server does not list the key alone.
    let past = ["-I", "past", "-n", "alice", "-V", "-2h:-1h"];
    let path = certify(laptop, "ca", "alice", &past)?;
    let kept = "/var/lib/usher/keys/alice";
    let exchange =
        format!("(grep -v cert-v01 {kept}; cat {path}) >/root/kept; cat /root/kept >{kept}");
    laptop.run(["sh", "-c", &exchange])?;
    laptop.run(["usher", "policy", "apply"])?;
    let heard = mail.verifier.log()?.len();
    // The signer leaves the former certificate's session aside, after it has answered.
    let told = eventual("alice is refused", || {
        let connect = laptop.command(["usher", "connect", "mailhost:imap"]);
        let output = connect.user("alice").run()?;
        Ok((!output.status.success()).then_some(output.stderr))
    })?;
    assert!(told.contains("the certificate has expired"), "{told}");
    let listed = laptop.run(["usher", "user", "list"])?.stdout;
    assert!(
        listed.contains("private key, certificate expired"),
        "{listed}"
    );
    let since = mail.verifier.log()?;
    assert!(since[heard..].contains("unknown_user"), "{since}");
    let again = laptop.command(["usher", "user", "add", "alice", "--certificate", &path]);
    let output = again.run()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("has expired"), "{output:?}");
    lives(&mut alice)?;
    give(&mail, "alice", &certify_user(laptop, "alice", "9")?)?;
    lives(&mut connect(&mail, "alice")?)?;

    // A certificate that would not do is refused when it is given.
    let bobs = certify_user(&mail.laptop, "bob", "10")?;
    let host = certify(
        &mail.laptop,
        "ca",
        "alice",
        &["-h", "-I", "x", "-n", "alice"],
    )?;
    for (path, reason) in [(bobs, "for another key"), (host, "for hosts")] {
        let add = ["usher", "user", "add", "alice", "--certificate", &path];
        let output = mail.laptop.command(add).run()?;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stderr.contains(reason), "{output:?}");
    }
    lives(&mut connect(&mail, "alice")?)
}
