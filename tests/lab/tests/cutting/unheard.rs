//! Daemons that hear of no order take what was stored, by their own clock.

use usher_lab::{Host, Lab, Mail, Role, eventually};

use crate::attack::Result;
use crate::reading::{connect, is_cut, lives};

/// No request reaches a daemon of these hosts.
const DEAF: &str = "for s in /run/usher/*/control.sock; do mv $s $s.away; done";
const HEARS: &str = "for s in /run/usher/*/control.sock.away; do mv $s ${s%.away}; done";

fn shell(host: &Host, script: &str) -> Result {
    host.run(["sh", "-e", "-c", script])?;
    Ok(())
}

/// Applies what is written on mailhost, whose keeper does not hear of it.
fn apply_unheard(mail: &Mail) -> Result {
    let applied = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(applied.status.code(), Some(3), "{applied:?}");
    Ok(())
}

// Threat model: A85
#[test]
fn every_daemon_takes_what_was_stored_without_asking_it() -> Result {
    let mail = Lab::mail()?;
    let _protector = mail.mailhost.start_daemon(Role::Protector)?;
    let _labeller = mail.mailhost.start_daemon(Role::Labeller)?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    for host in [&mail.laptop, &mail.mailhost] {
        shell(host, DEAF)?;
    }
    mail.mailhost
        .run(["rm", "/etc/usher/users/bob/authorized_keys"])?;
    apply_unheard(&mail)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    is_cut(&mut bob)?;
    lives(&mut alice)?;
    for host in [&mail.laptop, &mail.mailhost] {
        shell(host, HEARS)?;
    }
    for (host, role) in [
        (&mail.mailhost, Role::Keeper),
        (&mail.mailhost, Role::Verifier),
        (&mail.mailhost, Role::Protector),
        (&mail.mailhost, Role::Labeller),
        (&mail.laptop, Role::Signer),
        (&mail.laptop, Role::Proxy),
    ] {
        let stored = host.read("/var/lib/usher/applied.json")?;
        let stored: serde_json::Value = serde_json::from_str(&stored)?;
        eventually(&format!("the {} has taken it", role.name()), || {
            Ok(stored["generation"] == host.generation(role)?)
        })?;
    }
    Ok(())
}

// Threat model: A85
#[test]
fn revoked_keys_and_hosts_end_without_an_order() -> Result {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    shell(host, DEAF)?;
    let krl = "ssh-keygen -q -k -f /etc/usher/revoked_keys /etc/usher/users/bob/authorized_keys";
    // An order that is missed and the one that takes it back, by which alice is served throughout or not.
    for (order, back, spares_alice) in [
        (krl, "rm /etc/usher/revoked_keys", true),
        (
            "cp -a /etc/usher /srv; ssh-keygen -q -t ed25519 -N '' -f /root/other; \
             key=$(cut -d' ' -f2 /root/other.pub); old=$(cut -d' ' -f2 /root/laptop.pub); \
             grep -rl \"$old\" /etc/usher/policy.d | xargs sed -i \"s|$old|$key|\"",
            "rm -r /etc/usher; cp -a /srv/usher /etc",
            false,
        ),
    ] {
        host.write(
            "/root/laptop.pub",
            mail.laptop.read("/etc/usher/host_key.pub")?,
        )?;
        let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
        shell(host, order)?;
        apply_unheard(&mail)?;
        is_cut(&mut bob)?;
        if spares_alice {
            lives(&mut alice)?
        } else {
            is_cut(&mut alice)?
        }
        let connect_again = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
        let refused = connect_again.user("bob").input("").run()?;
        assert!(!refused.stdout.contains("PREAUTH"), "{refused:?}");
        shell(host, back)?;
        apply_unheard(&mail)?;
        eventually("both are served again", || {
            Ok(serves(&mail, "alice")? && serves(&mail, "bob")?)
        })?;
    }
    Ok(())
}

fn serves(mail: &Mail, user: &str) -> Result<bool> {
    let connect = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
    let output = connect.user(user).input("x LOGOUT\r\n").run()?;
    Ok(output.stdout.contains(&format!("Logged in as {user}")))
}

/// More programs than a signer has room for. A command would be refused; the signer takes what is stored.
// Threat model: A85
#[test]
fn lists_of_programs_that_a_signer_cannot_set_are_a_trouble() -> Result {
    let mail = Lab::mail()?;
    let block = |block: u16| {
        let programs = (0..64).map(|program| format!("\"/srv/{block}/{program}\""));
        let programs = programs.collect::<Vec<_>>().join(", ");
        let port = 2000 + block;
        format!(
            "client many{block} {{ users mail; service many{block} at mailhost port {port}; programs \
             {programs}; }}\n"
        )
    };
    let many: String = (0..65).map(block).collect();
    let path = "/etc/usher/policy.d/many.policy";
    mail.laptop.write(path, many)?;
    let refused = mail.laptop.command(["usher", "policy", "apply"]).run()?;
    let said = "more than 4096";
    assert!(refused.stderr.contains(said), "{refused:?}");
    shell(&mail.laptop, DEAF)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    shell(&mail.laptop, HEARS)?;
    let told = "the lists of `programs` in force are those of the former configuration";
    let doctor = || -> Result<String> {
        let doctor = mail.laptop.command(["usher", "doctor"]).run()?;
        Ok(doctor.stdout)
    };
    eventually("it is a trouble", || {
        let shown = doctor()?;
        Ok(shown.contains(told) && shown.contains(said))
    })?;
    // The twin: lists for which there is room.
    mail.laptop.write(path, block(0))?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let shown = doctor()?;
    assert!(!shown.contains(told), "{shown}");
    Ok(())
}
