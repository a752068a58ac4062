//! Users whose key is on a security key: it signs when it is touched, and other users do not wait for
//! that. The tests use OpenSSH's programs with a software security key.
#![forbid(unsafe_code)]

mod agent;
mod attack;
mod greeter;

use agent::{Result, forget_sessions, lend, loans, refused, register, served, ssh_agent};
use attack::Attack;
use ssh_encoding::Encode;
use usher_lab::{Lab, Mail, PATIENCE, Running, eventually};
use usher_proto::ssh_key::SshSig;
use usher_proto::{Authenticator, NAMESPACE, Refusal};

/// Gives alice a security key, known on both hosts as hers.
fn with_security_key(mail: &Mail, kind: &str) -> Result {
    let laptop = &mail.laptop;
    laptop.install_security_key("/var/lib/security_key.so")?;
    laptop.run_as("alice", ["mkdir", "-p", "device"])?;
    touching(mail, "hand")?;
    laptop.run_as("alice", ["rm", "-f", "sk", "sk.pub"])?;
    laptop
        .command(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", "sk"])
        .environment("SSH_SK_PROVIDER", "/var/lib/security_key.so")
        .environment("SECURITY_KEY", "/home/alice/device")
        .user("alice")
        .succeed()?;
    let public = laptop.read("/home/alice/sk.pub")?;
    mail.mailhost.write("/root/sk.pub", public)?;
    mail.mailhost.run([
        "usher",
        "user",
        "add",
        "alice",
        "--public-key",
        "/root/sk.pub",
    ])?;
    register(mail, "alice", "/home/alice/sk.pub")
}

/// Sets the behaviour of the device from now on: see `security_key.c`.
fn touching(mail: &Mail, how: &str) -> Result {
    let line = format!("rm -f hand touchless asked; [ {how} = no ] || touch {how}");
    mail.laptop
        .run_as("alice", ["sh", "-c", &format!("cd device && {line}")])?;
    Ok(())
}

fn was_asked(mail: &Mail) -> bool {
    mail.laptop.path("/home/alice/device/asked").exists()
}

/// The number of the device's signatures.
fn counter(mail: &Mail) -> Result<u32> {
    Ok(mail.laptop.read("/home/alice/device/counter")?.parse()?)
}

fn begin(mail: &Mail, user: &str) -> Result<Running> {
    let connection = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user(user)
        .spawn()?;
    Ok(connection)
}

// Threat model: A62
#[test]
fn a_touch_opens_the_session_and_nobody_else_waits_for_it() -> Result {
    let mut mail = Lab::mail()?;
    for kind in ["ed25519-sk", "ecdsa-sk"] {
        with_security_key(&mail, kind)?;
        let agent = ssh_agent(&mail, "alice", &["sk"])?;
        let mut lender = lend(&mail, "alice")?;
        touching(&mail, "no")?;
        let before = counter(&mail).unwrap_or(0);
        let mut waiting = [begin(&mail, "alice")?, begin(&mail, "alice")?];
        eventually("the device is asked", || Ok(was_asked(&mail)))?;
        served(&mail, "bob")?;
        let bobs = mail.laptop.run_as(
            "bob",
            [
                "curl",
                "-sS",
                "--user",
                "bob:",
                "imap://mailhost/INBOX;MAILINDEX=1",
            ],
        )?;
        assert!(bobs.stdout.contains("Invoice for 40 lanterns"));
        for connection in &mut waiting {
            assert!(!connection.has_ended()?, "{kind}");
        }
        touching(&mail, "hand")?;
        for connection in &mut waiting {
            connection.read_past("Logged in as alice", PATIENCE)?;
        }
        // One touch, and none for further connections in the same session.
        served(&mail, "alice")?;
        assert_eq!(counter(&mail)?, before + 1, "{kind}");
        let said = lender.stderr()?;
        assert!(
            said.contains("; the security key must be touched now"),
            "{said}"
        );
        drop((lender, agent));
        mail.laptop.run(["rm", "-f", "/home/alice/agent.sock"])?;
        forget_sessions(&mut mail)?;
    }
    // The record shows what alice has touched for, and anybody can check it.
    let mailhost = &mail.mailhost;
    mailhost.run(["usher", "log", "verify"])?;
    let shown = mailhost.run(["usher", "log", "show"])?.stdout;
    let users = shown.lines().skip(1);
    let users = users.map(|line| line.split_whitespace().nth(2));
    let of_alice = users.enumerate().filter(|(_, user)| *user == Some("alice"));
    let of_alice: Vec<usize> = of_alice.map(|(index, _)| index).collect();
    assert_eq!(of_alice.len(), 2, "{shown}");
    for index in of_alice {
        let folder = format!("/root/record-{index}");
        mailhost.run([
            "usher",
            "log",
            "export",
            &index.to_string(),
            "--directory",
            &folder,
        ])?;
        assert!(
            mailhost
                .read(format!("{folder}/key.pub"))?
                .starts_with("sk-")
        );
        let line = format!(
            "cd {folder} && ssh-keygen -Y verify -f allowed_signers -I alice -n {NAMESPACE} \
             -s statement.sig < statement"
        );
        mailhost.run(["sh", "-c", &line])?;
    }
    Ok(())
}

#[test]
fn a_security_key_that_nobody_touches_signs_nothing_that_counts() -> Result {
    let mut mail = Lab::mail()?;
    with_security_key(&mail, "ed25519-sk")?;
    let _agent = ssh_agent(&mail, "alice", &["sk"])?;
    let _lender = lend(&mail, "alice")?;
    touching(&mail, "touchless")?;
    refused(&mail, "alice", "agent_refused")?;
    assert!(mail.signer.log()?.contains("reason=\"user_not_present\""));
    touching(&mail, "hand")?;
    served(&mail, "alice")?;
    // Never touched: the loan stays, and a touch for the next connection counts.
    forget_sessions(&mut mail)?;
    let _lender = lend(&mail, "alice")?;
    touching(&mail, "no")?;
    refused(&mail, "alice", "agent_refused")?;
    assert_eq!(loans(&mail)?, 2);
    touching(&mail, "hand")?;
    served(&mail, "alice")
}

// Threat model: A61
#[test]
fn the_server_refuses_what_a_security_key_has_signed_untouched() -> Result {
    let attack = Attack::new()?;
    with_security_key(&attack.mail, "ed25519-sk")?;
    let mut asked = attack.asked("alice")?;
    let statement = asked.statement.encode();
    let laptop = &attack.mail.laptop;
    laptop.write("/home/alice/statement", &statement)?;
    let sign = || -> Result<Authenticator> {
        laptop.run(["rm", "-f", "/home/alice/statement.sig"])?;
        laptop
            .command([
                "ssh-keygen",
                "-Y",
                "sign",
                "-n",
                NAMESPACE,
                "-f",
                "sk",
                "statement",
            ])
            .environment("SSH_SK_PROVIDER", "/var/lib/security_key.so")
            .environment("SECURITY_KEY", "/home/alice/device")
            .user("alice")
            .succeed()?;
        let pem = laptop.read("/home/alice/statement.sig")?;
        let mut signature = Vec::new();
        SshSig::from_pem(pem)?.encode(&mut signature)?;
        Ok(Authenticator {
            statement: statement.clone(),
            signature,
        })
    };
    let mut channel = attack.channel()?;
    touching(&attack.mail, "touchless")?;
    attack.refused(&mut channel, "untouched", &sign()?, Refusal::UserNotPresent)?;
    touching(&attack.mail, "hand")?;
    let port = attack.port()?;
    let first = attack.announcement(&mut asked, &port)?;
    assert_eq!(channel.open_session(&sign()?, first)?, Ok(()));
    attack.served(port, "alice")?;
    Ok(())
}

#[test]
fn nobody_is_asked_again_for_a_server_that_is_not_there() -> Result {
    let mut mail = Lab::mail()?;
    with_security_key(&mail, "ed25519-sk")?;
    let _agent = ssh_agent(&mail, "alice", &["sk"])?;
    let _lender = lend(&mail, "alice")?;
    mail.verifier.stop()?;
    refused(&mail, "alice", "verifier_unavailable")?;
    assert_eq!(counter(&mail)?, 1);
    mail.verifier.start()?;
    served(&mail, "alice")?;
    assert_eq!(counter(&mail)?, 2);
    Ok(())
}

// Threat model: A61
#[test]
fn nobody_is_asked_to_touch_anything_ahead_of_need() -> Result {
    let mail = greeter::topology()?;
    with_security_key(&mail, "ed25519-sk")?;
    let _agent = ssh_agent(&mail, "alice", &["sk"])?;
    let _lender = lend(&mail, "alice")?;
    let connects = |count: u32| -> Result {
        let count = count.to_string();
        let output = greeter::connects(&mail, "alice", "1", &count).run()?;
        assert_eq!(
            output.stdout,
            format!("{count} connections\n"),
            "{output:?}"
        );
        Ok(())
    };
    let tickets = || {
        let doctor = mail.laptop.command(["usher", "doctor"]).run()?.stdout;
        Ok(doctor.contains("tickets 1"))
    };
    connects(1)?;
    eventually("there is a ticket", tickets)?;
    // Beyond three quarters of the tokens, where a session is renewed whose key the signer has.
    connects(900)?;
    assert_eq!(counter(&mail)?, 1);
    // Tokens used up, and most of the elements for announcements.
    connects(1100)?;
    assert_eq!(counter(&mail)?, 1);
    // Both used up: the connection that needs it asks, and has tokens again.
    connects(60)?;
    assert_eq!(counter(&mail)?, 2);
    eventually("there is a ticket", tickets)
}
