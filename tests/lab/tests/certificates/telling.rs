//! The information on certificates for services and for the log.

use crate::attack::Result;
use crate::authority::{AUTHORITIES, apply, certified, certify, give};
use crate::reading::connect;
use crate::users::{add, keygen};
use ssh_encoding::base64::{Base64, Encoding};
use usher_lab::LIBRARY_PATH;
use usher_lab::hostile::private_key;
use usher_proto::Certificate;

const PRINCIPALS: &str = include_str!("../../programs/principals.c");

#[test]
fn a_service_learns_its_users_principals() -> Result {
    let mail = certified()?;
    let (laptop, mailhost) = (&mail.laptop, &mail.mailhost);
    mailhost.compile_c(PRINCIPALS, "/var/lib/principals")?;
    let key = laptop.read("/home/bob/.ssh/id_ed25519.pub")?;
    mailhost.write("/root/bob.pub", key)?;
    add(mailhost, "bob", &["--public-key", "/root/bob.pub"])?;
    let plain = ["--private-key", "/home/bob/.ssh/id_ed25519"];
    add(laptop, "bob", &plain)?;
    let policy = format!(
        "service greet {{\n  program \"/var/lib/principals\";\n  \
         environment \"LD_LIBRARY_PATH={LIBRARY_PATH}\";\n  \
         listen 145; style connection; users mail; hosts laptop;\n}}\n"
    );
    mailhost.write("/etc/usher/policy.d/greet.policy", policy)?;
    let client = "client greet { users mail; service greet at mailhost port 145; }\n";
    laptop.write("/etc/usher/policy.d/greet.policy", client)?;
    laptop.run(["usher", "policy", "apply"])?;
    apply(&mail)?;
    let roles = ["-I", "x", "-n", "ops,alice,dev", "-V", "-1m:+1h"];
    give(&mail, "alice", &certify(laptop, "ca", "alice", &roles)?)?;
    for (user, told) in [("alice", "[ops,alice,dev]"), ("bob", "[]")] {
        let connect = laptop.command(["usher", "connect", "mailhost:greet"]);
        let output = connect.user(user).input("bye\r\n").run()?;
        let greeting = format!("* PREAUTH {user} principals {told}\r\n");
        assert!(output.stdout.starts_with(&greeting), "{output:?}");
    }
    Ok(())
}

#[test]
fn a_certified_record_needs_its_certificate_to_verify() -> Result {
    let mail = certified()?;
    let mailhost = &mail.mailhost;
    let _alice = connect(&mail, "alice")?;
    let shown = mailhost.run(["usher", "log", "show"])?.stdout;
    assert!(shown.contains("certified by SHA256:"), "{shown}");
    assert!(shown.contains("(serial 7, \"alice-7\")"), "{shown}");
    let told = mailhost.run(["usher", "log", "export", "0", "--directory", "/root/record"])?;
    let command = told.stdout.lines().nth(1).ok_or("no command")?.to_owned();
    assert!(command.contains("-O verify-time="), "{command}");
    let check = |more: &str| {
        let line = format!("cd /root/record && {more} && {command}");
        mailhost.command(["sh", "-c", &line]).run()
    };
    let output = check("true")?;
    assert!(output.status.success(), "{output:?}");
    // By the authority that is known of elsewhere, and by no other.
    let own = "echo \"alice cert-authority $(cat /etc/usher/user_ca_keys)\" > allowed_signers";
    assert!(check(own)?.status.success());
    keygen(mailhost, "other")?;
    let other = "echo \"alice cert-authority $(cat /root/other.pub)\" > allowed_signers";
    assert!(!check(other)?.status.success());
    let bob = "echo \"bob cert-authority $(cat /etc/usher/user_ca_keys)\" > allowed_signers";
    assert!(!check(bob)?.status.success());

    let verify = |signers: String| -> Result<(bool, String)> {
        mailhost.write("/root/signers", signers)?;
        let verify = ["usher", "log", "verify", "--signers", "/root/signers"];
        let output = mailhost.command(verify).run()?;
        Ok((output.status.success(), output.stdout + &output.stderr))
    };
    let authority = mailhost.read(AUTHORITIES)?;
    let (sound, said) = verify(format!("alice,bob cert-authority {authority}"))?;
    assert!(
        sound && said.contains("or by a key that one certifies"),
        "{said}"
    );
    let other = mailhost.read("/root/other.pub")?;
    for signers in [
        format!("bob cert-authority {authority}"),
        format!("alice cert-authority {other}"),
        format!("alice {authority}"),
    ] {
        let (sound, said) = verify(signers)?;
        assert!(!sound && said.contains("record 0"), "{said}");
    }
    // The key of whoever would forge it has no certificate.
    let key = private_key(&mail.laptop, "/home/alice/.ssh/id_ed25519")?;
    let public = key.public_key().to_openssh()?;
    let (sound, said) = verify(format!("alice {public}"))?;
    assert!(!sound, "{said}");
    let blob = mailhost.read("/root/record/key.pub")?;
    let blob = blob.split(' ').nth(1).ok_or("no key")?;
    assert_eq!(
        Certificate::decode(&Base64::decode_vec(blob.trim())?)?.serial,
        7
    );
    Ok(())
}

#[test]
fn a_certificate_that_is_too_long_is_told_with_its_field() -> Result {
    let mail = certified()?;
    let add = |names: &str| -> Result<usher_lab::Output> {
        let options = ["-I", "alice", "-n", names, "-V", "-1m:+1h"];
        let path = certify(&mail.laptop, "ca", "alice", &options)?;
        let command = ["usher", "user", "add", "alice", "--certificate", &path];
        Ok(mail.laptop.command(command).run()?)
    };
    let names = |count: usize, width: usize| -> String {
        let names = (0..count).map(|number| format!("{number:0width$}"));
        names.collect::<Vec<_>>().join(",")
    };
    for (names, text) in [
        (names(60, 8), "60 principals have 539 bytes"),
        (names(256, 1), "256 principals have 913 bytes"),
    ] {
        let output = add(&names)?;
        assert!(!output.status.success(), "{output:?}");
        assert!(output.stderr.contains(text), "{output:?}");
        assert!(output.stderr.contains("at most 511"), "{output:?}");
    }
    let output = add(&format!("alice,{}", names(50, 8)))?;
    assert!(output.status.success(), "{output:?}");
    connect(&mail, "alice").map(drop)
}

#[test]
fn what_is_no_certificate_is_told_for_what_it_is() -> Result {
    let mail = certified()?;
    let add = |path: &str| {
        let command = ["usher", "user", "add", "alice", "--certificate", path];
        mail.laptop.command(command).run()
    };
    for (path, text) in [
        (
            "/home/alice/.ssh/id_ed25519.pub",
            "a plain key, not a certificate",
        ),
        ("/etc/passwd", "not a certificate in OpenSSH's format"),
    ] {
        let output = add(path)?;
        assert!(!output.status.success(), "{output:?}");
        let told = format!("{path}: {text}; give the -cert.pub file");
        assert!(output.stderr.contains(&told), "{output:?}");
    }
    // The twin.
    let path = certify(&mail.laptop, "ca", "alice", &["-I", "alice", "-n", "alice"])?;
    assert!(add(&path)?.status.success());
    Ok(())
}

#[test]
fn a_certificate_that_is_nobodys_is_not_taken() -> Result {
    let mail = certified()?;
    let path = certify(
        &mail.laptop,
        "ca",
        "alice",
        &["-I", "alice", "-V", "-1m:+1h"],
    )?;
    let command = ["usher", "user", "add", "alice", "--certificate", &path];
    let output = mail.laptop.command(command).run()?;
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stderr.contains("has no principals"), "{output:?}");
    // She signs as before.
    connect(&mail, "alice").map(drop)
}
