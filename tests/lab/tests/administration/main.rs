//! The administrator's commands on running daemons.

mod commands;
mod policies;
#[path = "../reading/mod.rs"]
mod reading;
mod removing;
mod restoring;
#[path = "../users/mod.rs"]
mod users;

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
fn doctor_tells_each_role_of_a_host_what_it_lacks() -> Outcome {
    let mut mail = Lab::mail()?;
    drop(connect(&mail, "alice")?);
    let doctor = |host: &Host| host.command(["usher", "doctor"]).run();
    let (offering, reaching) = (doctor(&mail.mailhost)?, doctor(&mail.laptop)?);
    for (told, role) in [
        (
            &offering,
            "\nthis host offers imap: nothing is missing for this\n",
        ),
        (
            &reaching,
            "\nusers of this host reach imap at mailhost: nothing is missing for this\n",
        ),
    ] {
        assert_eq!(told.status.code(), Some(0), "{told:?}");
        assert!(
            told.stdout.ends_with(&role[1..]) && told.stdout.contains(role),
            "{told:?}"
        );
    }
    // One number a line, without zeros; `--json` has all.
    assert!(
        offering.stdout.contains("\n         sessions 1\n"),
        "{offering:?}"
    );
    let lines = offering.stdout.lines();
    let zeros: Vec<_> = lines
        .filter(|line| line.starts_with("         ") && line.ends_with(" 0"))
        .collect();
    assert!(zeros.is_empty(), "{zeros:?}");
    let json = mail.mailhost.run(["usher", "--json", "doctor"])?.stdout;
    assert!(json.contains("\"port_refused\": 0"), "{json}");

    let keys = "ok       keys to sign with: all 3 user(s) of `client` blocks have one\n";
    assert!(reaching.stdout.contains(keys), "{reaching:?}");
    mail.laptop
        .run(["usher", "user", "remove", "carol", "--signing-key"])?;
    mail.courier.stop()?;
    eventually("the signer has noticed", || {
        let told = doctor(&mail.laptop)?;
        let lacking = "reach imap at mailhost: LACKS daemon signer, daemon courier\n";
        Ok(told.status.code() == Some(1) && told.stdout.contains(lacking))
    })?;
    let told = doctor(&mail.laptop)?.stdout;
    let keys = "absent   keys to sign with: missing for carol: `usher user add USER";
    assert!(told.contains(keys), "{told}");
    // In words.
    let log = mail.signer.log()?;
    assert!(
        log.contains("the courier has gone reason=\"it closed the connection\""),
        "{log}"
    );
    assert!(!log.contains("error=None"), "{log}");
    Ok(())
}

/// Gives mailhost's block in the policy of a host another key, and puts that in force.
fn exchange_key(on: &Host, key: &str, other: &str) -> Outcome {
    let files = on.run(["grep", "-rlF", key, "/etc/usher/policy.d"])?.stdout;
    for file in files.lines() {
        on.replace(file, key, other)?;
    }
    on.run(["usher", "policy", "apply"])?;
    Ok(())
}

#[test]
fn a_host_with_another_key_is_told_by_doctor_and_in_the_logs() -> Outcome {
    let mail = Lab::mail()?;
    let key = mail.mailhost.read("/etc/usher/host_key.pub")?;
    let key = key.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let doctor = || mail.mailhost.command(["usher", "doctor"]).run();
    let told = doctor()?;
    assert!(
        told.stdout
            .contains("ok       host block: by its key this host is mailhost\n"),
        "{told:?}"
    );
    exchange_key(&mail.mailhost, &key, OTHER_KEY)?;
    let told = doctor()?;
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    for line in [
        "MISSING  host block: no `host` block of the policy has this host's key",
        "this host offers imap: LACKS host block\n",
    ] {
        assert!(told.stdout.contains(line), "{told:?}");
    }
    exchange_key(&mail.mailhost, OTHER_KEY, &key)?;
    drop(connect(&mail, "alice")?);

    exchange_key(&mail.laptop, &key, OTHER_KEY)?;
    refused(&mail, "alice", "mailhost:imap")?;
    let log = mail.courier.log()?;
    let here = "its key is not the `key` of a `host` block of that host in the policy here";
    assert!(log.contains(here), "{log}");
    eventually("mailhost has noticed", || {
        let there = "it refuses this host's key, which is not the `key` of a `host` block";
        Ok(mail.verifier.log()?.contains(there))
    })?;
    exchange_key(&mail.laptop, OTHER_KEY, &key)?;
    lives(&mut connect(&mail, "alice")?)
}

#[test]
fn doctor_and_apply_name_what_is_wrong_with_the_host_key() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let doctor = || {
        let doctor = host.command(["usher", "doctor"]).run();
        doctor.map(|output| output.stdout)
    };
    let apply = || {
        host.run(["usher", "policy", "apply"])
            .map(|output| output.stderr)
    };
    let gone = "/etc/usher/host_key, this host's private key, does not exist";
    assert!(!apply()?.contains(gone));
    host.run(["chmod", "644", "/etc/usher/host_key"])?;
    let told = doctor()?;
    let open = "MISSING  host key: /etc/usher/host_key is there, but its mode is 644, so others than root may use \
                it: `chmod 600 /etc/usher/host_key`";
    assert!(told.contains(open), "{told}");
    host.run(["chmod", "600", "/etc/usher/host_key"])?;
    assert!(doctor()?.contains("ok       host key: "));
    host.run(["mv", "/etc/usher/host_key", "/root/host_key"])?;
    let warned = apply()?;
    assert!(warned.contains(gone), "{warned}");
    assert!(doctor()?.contains(gone));
    host.run(["mv", "/root/host_key", "/etc/usher/host_key"])?;
    assert!(!apply()?.contains(gone));
    Ok(())
}

#[test]
fn init_makes_an_ike_key_of_its_own() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let public = host.read("/etc/usher/ike/key.pub")?;
    assert!(public.starts_with("ssh-ed25519 "), "{public}");
    assert_ne!(public, host.read("/etc/usher/host_key.pub")?);
    let private = host.read("/etc/usher/ike/key")?;
    assert_ne!(private, host.read("/etc/usher/host_key")?);
    let mode = host.run(["stat", "--format", "%a %U", "/etc/usher/ike/key"])?;
    assert_eq!(mode.stdout.trim(), "600 root");
    let again = host.run(["usher", "init", "--name", "mailhost"])?.stdout;
    let key = public.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let line = format!("ike-key \"{key}\";\n");
    assert!(
        again.contains(&line),
        "the statement of a host block: {again}"
    );
    assert_eq!(host.read("/etc/usher/ike/key")?, private);
    Ok(())
}

#[test]
fn host_add_writes_the_ike_key() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let key = host.read("/etc/usher/host_key.pub")?;
    let ike_key = host.make_key("/etc/usher/third_key")?;
    let add = |name: &str, ike_key: &str| {
        let words = [
            "usher",
            "host",
            "add",
            name,
            "--address",
            "10.77.0.9",
            "--key",
            OTHER_KEY,
        ];
        host.command(words.iter().chain(&["--ike-key", ike_key.trim()]))
            .run()
    };
    // Not a key; and a key for two purposes.
    for wrong in ["ssh-rsa AAAA", key.as_str()] {
        let refused = add("third", wrong)?;
        assert!(!refused.status.success(), "{wrong}");
        assert!(refused.stderr.contains("ike-key"), "{refused:?}");
    }
    assert!(!host.path("/etc/usher/policy.d/host-third.policy").exists());
    let added = add("third", &ike_key)?;
    assert!(added.status.success(), "{added:?}");
    let written = host.read("/etc/usher/policy.d/host-third.policy")?;
    let without_comment = ike_key.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let statement = format!("ike-key \"{without_comment}\";");
    assert!(written.contains(&statement), "{written}");
    host.run(["usher", "policy", "apply"])?;
    let shown = host.run(["usher", "policy", "show"])?.stdout;
    assert!(shown.contains(&statement), "{shown}");
    host.run(["usher", "host", "remove", "third"])?;
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
