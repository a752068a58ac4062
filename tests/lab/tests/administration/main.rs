//! The administrator's commands on running daemons.

mod commands;
mod following;
mod hosts;
mod policies;
#[path = "../reading/mod.rs"]
mod reading;
mod removing;
mod restoring;
mod rotation;
#[path = "../users/mod.rs"]
mod users;
mod watching;

use reading::{Outcome, connect, is_cut, is_served, lives, who};
use users::refused;
use usher_lab::{Host, Lab, Mail, PATIENCE, eventually};

const POLICY: &str = "/etc/usher/policy.d/mail.policy";

/// The public key of a host that does not exist.
const OTHER_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t";

fn imap_processes(mail: &Mail, uid: u32) -> Result<usize, Box<dyn std::error::Error>> {
    let processes = mail.mailhost.processes()?;
    Ok(processes
        .iter()
        .filter(|process| process.name == "imap" && process.uid == uid)
        .count())
}

#[test]
fn a_disabled_user_is_cut_at_once_and_another_is_not() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let said = mail
        .mailhost
        .run([
            "usher",
            "user",
            "disable",
            "alice",
            "--reason",
            "left the company",
        ])?
        .stdout;
    assert!(
        said.contains("ended: alice from laptop at imap, 1 connection(s)"),
        "{said}"
    );
    is_cut(&mut alice)?;
    eventually("alice's process is gone", || {
        Ok(imap_processes(&mail, 2001)? == 0)
    })?;
    lives(&mut bob)?;
    assert!(!who(&mail)?.contains("alice"));
    assert!(
        mail.keeper.log()?.contains("disabled_user"),
        "{}",
        mail.keeper.log()?
    );

    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("disabled"), "{told}");
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("no: left the company"), "{listed}");

    mail.mailhost.run(["usher", "user", "enable", "alice"])?;
    lives(&mut connect(&mail, "alice")?)
}

// Threat model: A147
#[test]
fn a_policy_with_a_mistake_changes_nothing() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    let path = "/etc/usher/policy.d/broken.policy";
    mail.mailhost.write(
        path,
        "users more { member carol; }\nservice x { lissten 5; }\n",
    )?;
    let before = mail.mailhost.read("/var/lib/usher/applied.json")?;
    for command in [["usher", "policy", "check"], ["usher", "policy", "apply"]] {
        let output = mail.mailhost.command(command).run()?;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            output.stderr.contains("broken.policy:2:13:"),
            "{}",
            output.stderr
        );
        assert!(
            output.stderr.contains("did you mean `listen`?"),
            "{}",
            output.stderr
        );
    }
    assert_eq!(mail.mailhost.read("/var/lib/usher/applied.json")?, before);
    lives(&mut alice)?;

    mail.mailhost
        .write(path, "users more { member carol; }\n")?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    assert_ne!(mail.mailhost.read("/var/lib/usher/applied.json")?, before);
    lives(&mut alice)
}

#[test]
fn an_apply_that_takes_a_permission_away_ends_what_used_it() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    mail.mailhost
        .replace(POLICY, "member alice, bob;", "member alice;")?;
    lives(&mut bob)?;
    let said = mail.mailhost.run(["usher", "policy", "apply"])?.stdout;
    assert!(said.contains("ended: bob from laptop at imap"), "{said}");
    is_cut(&mut bob)?;
    lives(&mut alice)
}

#[test]
fn who_tells_sessions_connections_and_workers() -> Outcome {
    let mail = Lab::mail()?;
    assert!(
        mail.mailhost
            .run(["usher", "who"])?
            .stdout
            .contains("no sessions")
    );
    let _alice = connect(&mail, "alice")?;
    let _again = connect(&mail, "alice")?;
    let _bob = connect(&mail, "bob")?;
    let text = mail.mailhost.run(["usher", "who"])?.stdout;
    assert_eq!(text.matches("established").count(), 3, "{text}");
    // A connection is there before its worker.
    eventually("each connection has a worker", || {
        Ok(who(&mail)?.matches("\"pid\"").count() == 3)
    })?;
    let json = who(&mail)?;
    // One session, and so one signature, for alice's two connections.
    assert_eq!(json.matches("\"chain_length\"").count(), 2, "{json}");
    assert_eq!(json.matches("\"pid\"").count(), 3, "{json}");
    assert!(
        json.contains("\"uid\": 2001") && json.contains("\"uid\": 2002"),
        "{json}"
    );
    Ok(())
}

#[test]
fn who_may_not_ask_is_told_so_and_what_does_not_run_as_well() -> Outcome {
    let mut mail = Lab::mail()?;
    let denied = mail
        .mailhost
        .command(["usher", "who"])
        .user("alice")
        .run()?;
    assert!(denied.stderr.contains("only root may ask"), "{denied:?}");
    assert!(
        mail.mailhost
            .command(["usher", "who"])
            .run()?
            .status
            .success()
    );
    let denied = mail
        .mailhost
        .command(["usher", "user", "disable", "bob"])
        .user("alice")
        .run()?;
    assert_ne!(denied.status.code(), Some(0), "{denied:?}");
    lives(&mut connect(&mail, "bob")?)?;

    let healthy = mail.mailhost.command(["usher", "doctor"]).run()?;
    assert_eq!(healthy.status.code(), Some(0), "{healthy:?}");
    mail.keeper.stop()?;
    let asked = mail.mailhost.command(["usher", "who"]).run()?;
    assert_eq!(asked.status.code(), Some(3), "{asked:?}");
    assert!(
        asked.stderr.contains("the keeper does not run"),
        "{asked:?}"
    );
    // Its policy has services, which no one can use now.
    let unhealthy = mail.mailhost.command(["usher", "--json", "doctor"]).run()?;
    assert_eq!(unhealthy.status.code(), Some(1), "{unhealthy:?}");
    let findings: serde_json::Value = serde_json::from_str(&unhealthy.stdout)?;
    let findings = findings.as_array().ok_or("no list")?;
    let missing = findings
        .iter()
        .filter(|finding| finding["required"] == true && finding["works"] == false);
    let missing: Vec<_> = missing.map(|finding| finding["name"].as_str()).collect();
    let expected = [Some("daemon keeper"), Some("daemon verifier")];
    assert_eq!(missing, expected, "{}", unhealthy.stdout);
    let told = mail.mailhost.command(["usher", "doctor"]).run()?.stdout;
    for line in [
        "         not connected to the keeper, so every session is refused\n",
        "\nthis host offers imap: LACKS daemon keeper, daemon verifier\n",
    ] {
        assert!(told.contains(line), "{told}");
    }
    Ok(())
}

#[test]
fn what_is_done_twice_or_wrong_harms_nothing() -> Outcome {
    let mail = Lab::mail()?;
    let key = mail.mailhost.read("/etc/usher/host_key.pub")?;
    let again = mail
        .mailhost
        .run(["usher", "init", "--name", "mailhost"])?
        .stdout;
    assert!(
        again.contains(key.trim()),
        "the host key is another: {again}"
    );
    let renamed = ["usher", "init", "--name", "posthost"];
    let renamed = mail.mailhost.command(renamed).run()?;
    assert!(
        renamed.status.success() && renamed.stderr.contains("its name is mailhost"),
        "{renamed:?}"
    );
    assert_eq!(mail.mailhost.read("/etc/usher/host_key.pub")?, key);

    let add = "usher host add laptop --address 10.77.0.9 --key".split(' ');
    let output = mail.mailhost.command(add.chain([key.trim()])).run()?;
    assert!(output.stderr.contains("already exists"), "{output:?}");
    let add = "usher host add third --address 10.77.0.9 --key".split(' ');
    let output = mail.mailhost.command(add.chain(["ssh-rsa AAAA"])).run()?;
    assert!(output.stderr.contains("--key"), "{output:?}");
    let listed = mail.mailhost.run(["usher", "host", "list"])?.stdout;
    assert!(
        listed.contains("laptop") && !listed.contains("third"),
        "{listed}"
    );

    mail.mailhost.write("/root/nonsense", "nonsense\n")?;
    let add = "usher user add eve --public-key /root/nonsense".split(' ');
    let output = mail.mailhost.command(add).run()?;
    assert!(
        output.stderr.contains("not an OpenSSH public key"),
        "{output:?}"
    );
    let unknown = mail
        .mailhost
        .command(["usher", "user", "disable", "eve"])
        .run()?;
    assert!(
        unknown.stderr.contains("does not know the user eve"),
        "{unknown:?}"
    );

    // A key with a passphrase could not be used by the signer.
    let keygen = "ssh-keygen -q -t ed25519 -N secret -f /root/locked";
    mail.laptop.run(["sh", "-c", keygen])?;
    let add = "usher user add alice --private-key /root/locked".split(' ');
    let output = mail.laptop.command(add).run()?;
    assert!(output.stderr.contains("passphrase"), "{output:?}");
    let add = "usher user add alice --private-key /root/locked.pub".split(' ');
    let output = mail.laptop.command(add).run()?;
    assert!(output.stderr.contains("a public key"), "{output:?}");
    lives(&mut connect(&mail, "alice")?)
}

// Threat model: A20
#[test]
fn a_user_without_the_key_is_cut_and_another_is_not() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    mail.mailhost
        .write("/etc/usher/users/alice/authorized_keys", "")?;
    let said = mail.mailhost.run(["usher", "policy", "apply"])?.stdout;
    assert!(
        said.contains("ended: alice from laptop at imap, 1 connection(s)"),
        "{said}"
    );
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("did not accept the user, the key"), "{told}");
    Ok(())
}

// Threat model: A129
#[test]
fn a_second_daemon_of_a_role_is_refused() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    let group = mail.mailhost.cgroup().join("second");
    std::fs::create_dir(&group)?;
    let keeper = [
        "usherd",
        "keeper",
        "--cgroup",
        group.to_str().ok_or("a strange path")?,
    ];
    for (host, second) in [
        (&mail.mailhost, &keeper[..]),
        (&mail.mailhost, &["usherd", "verifier"]),
        (&mail.laptop, &["usherd", "signer"]),
        (&mail.laptop, &["usherd", "courier"]),
        (&mail.laptop, &["usher", "proxy"]),
    ] {
        let output = host.command(second).run()?;
        assert!(!output.status.success(), "{second:?} started: {output:?}");
        let said = format!("{}{}", output.stdout, output.stderr);
        for word in ["another ", "stop"] {
            assert!(said.contains(word), "{second:?}: {said}");
        }
    }
    drop(connect(&mail, "bob")?);
    let said = mail
        .mailhost
        .run(["usher", "user", "disable", "alice"])?
        .stdout;
    assert!(said.contains("(keeper, verifier)"), "{said}");
    is_cut(&mut alice)
}

#[test]
fn a_keeper_that_does_not_run_makes_disabling_no_success() -> Outcome {
    let mut mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    mail.keeper.kill(usher_lab::Signal::KILL)?;
    mail.keeper.wait(PATIENCE)?;
    let output = mail
        .mailhost
        .command(["usher", "user", "disable", "alice"])
        .run()?;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(output.stderr.contains("have NOT been ended"), "{output:?}");
    lives(&mut alice)?;
    mail.keeper.start()?;
    is_cut(&mut alice)
}
