//! A user is disabled whatever else below /etc/usher is broken. Adding and enabling users depend
//! only on the files about users.

mod attack;
mod reading;

use attack::Attack;
use reading::{Outcome, connect, is_cut, lives};
use serde_json::Value;
use usher_base::ConnectionTuple;
use usher_lab::hostile::{Asked, id_of, read_line};
use usher_lab::{ALICE, BOB, Daemon, Lab, Mail, Output, Role, User, eventually};
use usher_proto::Announcement;

/// Faults that an administrator, or someone else, may have made. An apply is refused for each.
const POLICY: [&str; 5] = [
    "echo 'service x { lissten 5; }' >/etc/usher/policy.d/x.policy",
    "mkdir /etc/usher/policy.d/x.policy",
    "ln -s /nowhere /etc/usher/policy.d/x.policy",
    "head -c 2000000 /dev/zero >/etc/usher/policy.d/x.policy",
    "mv /etc/usher/policy.d /root; touch /etc/usher/policy.d",
];
const LISTS: [&str; 3] = [
    "mkdir /etc/usher/revoked_keys",
    "echo nonsense >/etc/usher/revoked_keys",
    "echo nonsense >/etc/usher/user_ca_keys",
];
const USERS: [&str; 4] = [
    "echo nonsense >>/etc/usher/users/bob/authorized_keys",
    "mkdir /etc/usher/users/bob/authorized_keys.banking",
    "mkdir '/etc/usher/users/Not A User'",
    "echo nonsense >/etc/usher/users/alice/authorized_keys",
];

const RESTORE: &str = "rm -rf /etc/usher; cp -a /srv/usher /etc";

#[test]
fn disabling_a_user_ignores_what_is_written_beside() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    host.run(["cp", "-a", "/etc/usher", "/srv/usher"])?;
    let command = |command: &[&str]| -> Result<Output, Box<dyn std::error::Error>> {
        Ok(host.command([&["usher"], command].concat()).run()?)
    };
    let mut bob = connect(&mail, "bob")?;
    for broken in POLICY.iter().chain(&LISTS).chain(&USERS) {
        let mut alice = connect(&mail, "alice")?;
        host.run(["sh", "-e", "-c", broken])?;
        let applied = command(&["policy", "apply"])?;
        assert!(!applied.status.success(), "{broken}: {applied:?}");
        lives(&mut alice)?;

        // A command about users reads the files about users.
        let enabled = command(&["user", "enable", "alice"])?;
        let of_users = USERS.contains(broken);
        assert_eq!(enabled.status.success(), !of_users, "{broken}: {enabled:?}");

        let disabled = command(&["user", "disable", "alice", "--reason", "left"])?;
        assert!(disabled.status.success(), "{broken}: {disabled:?}");
        let told = "ended: alice from laptop at imap, 1 connection(s): the user is disabled";
        assert!(disabled.stdout.contains(told), "{broken}: {disabled:?}");
        is_cut(&mut alice)?;
        lives(&mut bob)?;
        let listed = command(&["user", "list"])?.stdout;
        assert_eq!(listed.matches("no: left").count(), 1, "{broken}: {listed}");

        // The mark is there for the next apply, too.
        let mark = host.read("/etc/usher/users/alice/disabled")?;
        assert_eq!(mark, "left\n", "{broken}");
        host.run(["sh", "-e", "-c", RESTORE])?;
        let enabled = command(&["user", "enable", "alice"])?;
        assert!(enabled.status.success(), "{broken}: {enabled:?}");
    }
    lives(&mut connect(&mail, "alice")?)
}

#[test]
fn a_known_user_without_a_folder_can_be_disabled() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let mut alice = connect(&mail, "alice")?;
    // In force, and nowhere else any more.
    let gone = "rm -r /etc/usher/users; sed -i /^alice:/d /etc/passwd";
    host.run(["sh", "-e", "-c", gone])?;
    lives(&mut alice)?;
    host.run(["usher", "user", "disable", "alice"])?;
    is_cut(&mut alice)?;
    let eve = host.command(["usher", "user", "disable", "eve"]).run()?;
    assert!(!eve.status.success(), "{eve:?}");
    assert!(eve.stderr.contains("does not know the user eve"), "{eve:?}");
    Ok(())
}

/// From now on mailhost's signer cannot read what is applied, and refuses every configuration; the
/// other daemons can.
fn with_a_faulty_signer(mail: &Mail) -> Result<Daemon, Box<dyn std::error::Error>> {
    let signer = mail.mailhost.start_daemon(Role::Signer)?;
    let close = "chgrp usher-signer /var/lib/usher; chmod 705 /var/lib/usher";
    mail.mailhost.run(["sh", "-e", "-c", close])?;
    Ok(signer)
}

#[test]
fn a_daemon_that_refuses_keeps_nobody_from_being_disabled() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let signer = with_a_faulty_signer(&mail)?;
    let disable = ["usher", "user", "disable", "alice"];
    let output = mail.mailhost.command(disable).run()?;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    for text in [
        "ended: alice from laptop at imap, 1 connection(s): ",
        "is in force, but not every daemon has taken it: the signer says: ",
    ] {
        assert!(output.stderr.contains(text), "{text}: {output:?}");
    }
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("no: disabled by"), "{listed}");
    drop(signer);
    Ok(())
}

#[test]
fn a_refused_apply_is_rolled_back_and_names_what_it_ended() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    // The configuration in force, and its number.
    let in_force = || -> Result<(Value, Option<u64>), Box<dyn std::error::Error>> {
        let text = mail.mailhost.read("/var/lib/usher/applied.json")?;
        let mut applied: Value = serde_json::from_str(&text)?;
        let generation = applied["generation"].take().as_u64();
        Ok((applied, generation))
    };
    let (before, number) = in_force()?;
    let signer = with_a_faulty_signer(&mail)?;
    mail.mailhost
        .run(["rm", "/etc/usher/users/alice/authorized_keys"])?;
    let output = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for text in [
        "ended: alice from laptop at imap, 1 connection(s): ",
        "the signer says: ",
        "the rollback to the former configuration failed too",
    ] {
        assert!(output.stderr.contains(text), "{text}: {output:?}");
    }
    // The same, under a number that nothing else had.
    let (after, another) = in_force()?;
    assert_eq!(after, before);
    assert!(another > number.map(|number| number + 1), "{another:?}");
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    drop(signer);
    mail.mailhost.run(["chmod", "755", "/var/lib/usher"])?;
    lives(&mut connect(&mail, "alice")?)
}

/// A service whose process goes on when its client has gone.
const LINGERING: &str = r#"
service lingering {
  program "/bin/sh" "-c" "echo hello; read line; exec sleep 4000 <&- >&- 2>&-";
  listen 1200;
  users mail;
  hosts laptop;
  style connection;
}
"#;

/// Returns whether a process of this user is left.
fn lingers(mail: &Mail, user: User) -> Result<bool, Box<dyn std::error::Error>> {
    let processes = mail.mailhost.processes()?;
    let uid = user.mailhost_uid;
    Ok(processes.iter().any(|p| p.uid == uid && p.name == "sleep"))
}

#[test]
fn a_closed_sessions_processes_end_with_user_or_service() -> Outcome {
    const POLICY: &str = "/etc/usher/policy.d/lingering.policy";
    let attack = Attack::new()?;
    let (mail, host) = (&attack.mail, &attack.mail.mailhost);
    host.write(POLICY, LINGERING)?;
    host.run(["usher", "policy", "apply"])?;
    let mut channel = attack.channel()?;
    for user in ["alice", "bob"] {
        let client = attack.laptop_key.public();
        let mut asked = Asked::right(user, "lingering", client, host, 1200, 16)?;
        let authenticator = asked.sign(&attack.user_key(user)?)?;
        let port = attack.port()?;
        let server = (host.ipv4(), 1200).into();
        let first = Announcement {
            element: asked.chain.next().ok_or("no element")?,
            connection: ConnectionTuple {
                client: port.address,
                server,
            },
        };
        assert_eq!(channel.open_session(&authenticator, first)?, Ok(()));
        let mut stream = port.connect(server)?;
        assert_eq!(read_line(&mut stream)?.trim_end(), "hello");
        drop(stream);
        assert_eq!(channel.close(id_of(&authenticator))?, Ok(()));
    }
    eventually("both processes linger", || {
        Ok(lingers(mail, ALICE)? && lingers(mail, BOB)?)
    })?;
    eventually("the connections are gone", || {
        Ok(!host.run(["usher", "who"])?.stdout.contains("lingering"))
    })?;

    host.run(["usher", "user", "disable", "alice"])?;
    eventually("alice's process ends", || Ok(!lingers(mail, ALICE)?))?;
    assert!(lingers(mail, BOB)?);
    host.run(["rm", POLICY])?;
    host.run(["usher", "policy", "apply"])?;
    eventually("bob's process ends", || Ok(!lingers(mail, BOB)?))
}

#[test]
fn locks_are_roots_alone() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    host.run(["usher", "user", "enable", "alice"])?;
    let lock = |path, user: Option<&str>| {
        let command = host.command(["flock", "--nonblock", path, "true"]);
        match user {
            Some(user) => command.user(user).run(),
            None => command.run(),
        }
    };
    for (path, free) in [
        ("/var/lib/usher/lock", true),
        ("/run/usher/keeper/lock", false),
        ("/run/usher/verifier/lock", false),
        ("/var/lib/usher/log/lock", false),
    ] {
        let by_alice = lock(path, Some("alice"))?;
        let told = &by_alice.stderr;
        assert!(told.contains("Permission denied"), "{path}: {by_alice:?}");
        assert_eq!(lock(path, None)?.status.success(), free, "{path}");
    }
    Ok(())
}
