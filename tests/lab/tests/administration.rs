//! The administrator's commands on running daemons.

mod reading;
mod users;

use reading::{Outcome, connect, is_cut, is_served, lives, who};
use users::refused;
use usher_lab::{Lab, Mail, PATIENCE, eventually};

const POLICY: &str = "/etc/usher/policy.d/mail.policy";

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

#[test]
fn a_policy_with_an_error_changes_nothing_and_says_where_and_what_to_do() -> Outcome {
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
    // Its policy has services, which nobody can use now.
    let unhealthy = mail.mailhost.command(["usher", "--json", "doctor"]).run()?;
    assert_eq!(unhealthy.status.code(), Some(1), "{unhealthy:?}");
    let findings: serde_json::Value = serde_json::from_str(&unhealthy.stdout)?;
    let findings = findings.as_array().ok_or("no list")?;
    let missing = findings
        .iter()
        .filter(|finding| finding["required"] == true && finding["works"] == false);
    let missing: Vec<_> = missing.map(|finding| finding["name"].as_str()).collect();
    assert_eq!(missing, [Some("daemon keeper")], "{}", unhealthy.stdout);
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
    assert_eq!(mail.mailhost.read("/etc/usher/host_key.pub")?, key);

    let host = [
        "usher",
        "host",
        "add",
        "laptop",
        "--address",
        "10.77.0.9",
        "--key",
        key.trim(),
    ];
    let output = mail.mailhost.command(host).run()?;
    assert!(output.stderr.contains("exists already"), "{output:?}");
    let host = [
        "usher",
        "host",
        "add",
        "third",
        "--address",
        "10.77.0.9",
        "--key",
        "ssh-rsa AAAA",
    ];
    let output = mail.mailhost.command(host).run()?;
    assert!(output.stderr.contains("--key"), "{output:?}");
    let listed = mail.mailhost.run(["usher", "host", "list"])?.stdout;
    assert!(
        listed.contains("laptop") && !listed.contains("third"),
        "{listed}"
    );

    mail.mailhost.write("/root/nonsense", "nonsense\n")?;
    let add = [
        "usher",
        "user",
        "add",
        "eve",
        "--public-key",
        "/root/nonsense",
    ];
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
        unknown.stderr.contains("no user eve is known"),
        "{unknown:?}"
    );

    // A key with a passphrase could not be used by the signer.
    let keygen = "ssh-keygen -q -t ed25519 -N secret -f /root/locked";
    mail.laptop.run(["sh", "-c", keygen])?;
    let add = [
        "usher",
        "user",
        "add",
        "alice",
        "--private-key",
        "/root/locked",
    ];
    let output = mail.laptop.command(add).run()?;
    assert!(output.stderr.contains("passphrase"), "{output:?}");
    lives(&mut connect(&mail, "alice")?)
}

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

#[test]
fn a_second_daemon_of_a_role_is_refused_and_takes_nothing_from_the_first() -> Outcome {
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
        assert!(said.contains("another "), "{second:?}: {said}");
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

#[test]
fn included_files_are_a_part_of_the_policy_and_a_missing_one_changes_nothing() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost
        .replace(POLICY, "member alice, bob;", "member alice;")?;
    mail.mailhost
        .write("/etc/usher/teams/mail", mail.mailhost.read(POLICY)?)?;
    mail.mailhost.write(
        POLICY,
        "include \"../teams/mail\";\ninclude \"mail.policy\";\n",
    )?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let is_served = |user: &str| is_served(&mail, user, "imap");
    assert!(is_served("alice")?);
    assert!(!is_served("bob")?);
    mail.mailhost.run(["rm", "/etc/usher/teams/mail"])?;
    let refused = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    for part in [
        "mail.policy:1:1",
        "../teams/mail cannot be included",
        "help: ",
    ] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    assert!(is_served("alice")?);
    assert!(!is_served("bob")?);
    Ok(())
}

#[test]
fn a_service_that_demands_protection_is_explained_and_not_applied() -> Outcome {
    let mail = Lab::mail()?;
    let demanding = "listen 143; protection encryption;";
    mail.mailhost.replace(POLICY, "listen 143;", demanding)?;
    let refused = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    let said = "mail.policy:6:15: `service imap` asks for its connections to be protected";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    let explain = [
        "usher",
        "policy",
        "explain",
        "alice@laptop",
        "imap@mailhost",
    ];
    let explained = mail.mailhost.command(explain).run()?.stdout;
    assert!(
        explained.contains("its connections must be encrypted by IPsec"),
        "{explained}"
    );
    assert!(
        explained.contains("service imap: protection"),
        "{explained}"
    );
    let warned = mail.mailhost.run(["usher", "policy", "check"])?.stderr;
    assert!(
        warned.contains("reads `protection` of `service imap`"),
        "{warned}"
    );
    // What is in force is as before.
    let mut alice = connect(&mail, "alice")?;
    lives(&mut alice)
}
