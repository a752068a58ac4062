//! The administrator's commands on running daemons.

mod reading;
mod users;

use reading::{Outcome, connect, is_cut, is_served, lives, who};
use users::refused;
use usher_lab::{Host, Lab, Mail, PATIENCE, eventually};

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
    // One number a line, and none of nothing; programs are told all.
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
        log.contains("courier gone reason=\"it closed the connection\""),
        "{log}"
    );
    assert!(!log.contains("error=None"), "{log}");
    Ok(())
}

#[test]
fn init_makes_an_ike_key_of_its_own() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let public = host.read("/etc/usher/ike_key.pub")?;
    assert!(public.starts_with("ssh-ed25519 "), "{public}");
    assert_ne!(public, host.read("/etc/usher/host_key.pub")?);
    let private = host.read("/etc/usher/ike_key")?;
    assert_ne!(private, host.read("/etc/usher/host_key")?);
    let mode = host.run(["stat", "--format", "%a %U", "/etc/usher/ike_key"])?;
    assert_eq!(mode.stdout.trim(), "600 root");
    let again = host.run(["usher", "init", "--name", "mailhost"])?.stdout;
    let key = public.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let line = format!("ike-key \"{key}\";\n");
    assert!(
        again.contains(&line),
        "the statement of a host block: {again}"
    );
    assert_eq!(host.read("/etc/usher/ike_key")?, private);
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
fn included_files_are_part_of_the_policy() -> Outcome {
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
fn a_service_with_protection_is_explained_but_not_applied() -> Outcome {
    let mail = Lab::mail()?;
    let demanding = "listen 143; protection encryption;";
    mail.mailhost.replace(POLICY, "listen 143;", demanding)?;
    let refused = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    let said = "mail.policy:6:15: `protection` of `service imap` needs IPsec";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    let explain = "usher policy explain alice@laptop imap@mailhost".split(' ');
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
        warned.contains("`protection` of `service imap` needs IPsec"),
        "{warned}"
    );
    // What is in force is as before.
    let mut alice = connect(&mail, "alice")?;
    lives(&mut alice)
}

#[test]
fn a_name_that_is_not_found_is_a_warning_of_the_check() -> Outcome {
    let mail = Lab::mail()?;
    let figure = include_str!(
        "../../../crates/protection/usher-protection/tests/applications/published/figure-3.policy"
    );
    mail.mailhost.write("/root/figure-3.policy", figure)?;
    let check = || {
        let check = ["usher", "policy", "check", "/root/figure-3.policy"];
        mail.mailhost.run(check)
    };
    // The host has no resolver.
    let unknown = "figure-3.policy:5:3: the address of `www.abc.com` cannot be found";
    let warned = check()?.stderr;
    assert!(warned.contains(unknown), "{warned}");
    let hosts = mail.mailhost.read("/etc/hosts")?;
    let known = format!("{hosts}\n198.51.100.7 www.abc.com\n");
    mail.mailhost.write("/etc/hosts", &known)?;
    let warned = check()?.stderr;
    assert!(!warned.contains("www.abc.com"), "{warned}");
    Ok(())
}

/// What a command says that is refused, and that it is.
fn is_refused(host: &Host, command: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let output = host.command(command).run()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    Ok(output.stderr)
}

#[test]
fn a_removed_user_is_cut_and_what_still_names_her_is_told() -> Outcome {
    let mail = Lab::mail()?;
    let policy = mail.mailhost.read(POLICY)?;
    let expecting = format!("{policy}expect permit user alice service imap;\n");
    mail.mailhost.write(POLICY, &expecting)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);

    let remove = ["usher", "user", "remove", "alice"];
    let said = mail.mailhost.run(remove)?.stdout;
    let expected = expecting.lines().count();
    for part in [
        "removed: /etc/usher/users/alice\n",
        "ended: alice from laptop at imap, 1 connection(s)",
        &format!("remains: {POLICY}:1:21: the policy names alice: users mail: member alice\n"),
        &format!("remains: {POLICY}:{expected}:1: an expectation names alice: expect permit"),
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    refused(&mail, "alice", "mailhost:imap")?;
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(
        listed.contains("bob") && !listed.contains("alice"),
        "{listed}"
    );
    let told = is_refused(&mail.mailhost, &remove)?;
    assert!(told.contains("does not know the user alice"), "{told}");

    // Her member statement goes, and what was expected of her does not stand in the way.
    mail.mailhost
        .replace(POLICY, "member alice, bob;", "member bob;")?;
    let applied = mail.mailhost.run(["usher", "policy", "apply"])?;
    let warned = "no `users` block has the user `alice`";
    assert!(applied.stderr.contains(warned), "{}", applied.stderr);
    let tested = is_refused(&mail.mailhost, &["usher", "--json", "policy", "test"])?;
    assert!(tested.is_empty(), "{tested}");
    lives(&mut bob)?;

    // Twin: she is known again.
    mail.mailhost.write(POLICY, &policy)?;
    let add = ["usher", "user", "add", "alice"];
    let options = ["--public-key", "/root/alice.pub"];
    mail.mailhost.run([&add[..], &options].concat())?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    lives(&mut connect(&mail, "alice")?)?;
    let nothing = mail.mailhost.command(add).run()?;
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
    Ok(())
}

#[test]
fn a_user_removed_on_the_client_signs_nothing_more() -> Outcome {
    let mail = Lab::mail()?;
    lives(&mut connect(&mail, "alice")?)?;
    let mut bob = connect(&mail, "bob")?;
    let said = mail
        .laptop
        .run(["usher", "user", "remove", "alice"])?
        .stdout;
    assert!(
        said.contains("removed: /var/lib/usher/keys/alice\n"),
        "{said}"
    );
    // The session that she had is not used either.
    let told = refused(&mail, "alice", "mailhost:imap")?;
    assert!(told.contains("no key for the user to sign with"), "{told}");
    lives(&mut bob)?;
    lives(&mut connect(&mail, "bob")?)?;
    let keep = ["usher", "user", "remove", "bob", "--signing-key"];
    mail.laptop.run(keep)?;
    refused(&mail, "bob", "mailhost:imap")?;
    let told = is_refused(&mail.laptop, &keep)?;
    assert!(told.contains("the signer has no key of bob here"), "{told}");
    Ok(())
}

#[test]
fn a_removal_that_cannot_be_stored_changes_nothing() -> Outcome {
    let mail = Lab::mail()?;
    let mut alice = connect(&mail, "alice")?;
    let list = "/etc/usher/users/alice/authorized_keys";
    let before = mail.mailhost.read(list)?;
    // Nothing can be put in the place of a folder with something in it.
    let previous = "/var/lib/usher/applied.previous.json";
    let block = format!("mv {previous} /root; mkdir -p {previous}/full");
    mail.mailhost.run(["sh", "-c", &block])?;
    let key = "usher user remove alice --public-key /root/alice.pub".split(' ');
    let key: Vec<&str> = key.collect();
    for command in [&key[..4], &key[..]] {
        let output = mail.mailhost.command(command).run()?;
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert_eq!(mail.mailhost.read(list)?, before);
    }
    let left = mail.mailhost.run(["ls", "-A", "/etc/usher"])?.stdout;
    assert!(!left.contains(".removed"), "{left}");
    lives(&mut alice)?;
    mail.mailhost.run(["rm", "-r", previous])?;
    mail.mailhost.run(key)?;
    is_cut(&mut alice)
}

#[test]
fn a_disabled_user_whom_certificates_would_admit_is_not_removed() -> Outcome {
    let mail = Lab::mail()?;
    let authority = mail.mailhost.read("/root/bob.pub")?;
    let authorities = "/etc/usher/user_ca_keys";
    mail.mailhost.write(authorities, authority)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    let remove = ["usher", "user", "remove", "alice"];
    let told = is_refused(&mail.mailhost, &remove)?;
    let reason = "alice is disabled, and removing the user would undo that";
    assert!(
        told.contains(reason) && told.contains("`service imap`"),
        "{told}"
    );
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("no: disabled"), "{listed}");
    // Of one who is not disabled it is told; without the authority there is nothing to tell.
    let said = mail
        .mailhost
        .run(["usher", "user", "remove", "bob"])?
        .stdout;
    assert!(
        said.contains("may open sessions as bob with `service imap`"),
        "{said}"
    );
    mail.mailhost.run(["rm", authorities])?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let said = mail.mailhost.run(remove)?.stdout;
    assert!(!said.contains("certificates"), "{said}");
    Ok(())
}

#[test]
fn a_host_is_removed_when_nothing_names_it_any_more() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let key = host.run([
        "sh",
        "-c",
        "ssh-keygen -q -t ed25519 -N '' -f /root/third; cat /root/third.pub",
    ])?;
    let third = "usher host add third --address 10.77.0.9 --key".split(' ');
    host.run(third.chain([key.stdout.trim()]))?;
    host.replace(POLICY, "hosts laptop;", "hosts laptop, third;")?;
    host.run(["usher", "policy", "apply"])?;
    let mut alice = connect(&mail, "alice")?;
    let remove = ["usher", "host", "remove", "third"];
    let told = is_refused(host, &remove)?;
    assert!(told.contains("the policy still names third: "), "{told}");
    assert!(told.contains("mail.policy:9:17"), "{told}");
    host.replace(POLICY, "hosts laptop, third;", "hosts laptop;")?;
    let said = host.run(remove)?.stdout;
    assert!(
        said.contains("removed /etc/usher/policy.d/host-third.policy"),
        "{said}"
    );
    host.run(["usher", "policy", "apply"])?;
    let told = is_refused(host, &remove)?;
    assert!(told.contains("has no host third"), "{told}");
    // A block beside others is the administrator's.
    let block = host.read("/etc/usher/policy.d/host-laptop.policy")?;
    host.run(["rm", "/etc/usher/policy.d/host-laptop.policy"])?;
    host.write(
        "/etc/usher/policy.d/hosts.policy",
        format!("# all\n{block}"),
    )?;
    let told = is_refused(host, &["usher", "host", "remove", "laptop"])?;
    assert!(
        told.contains("hosts.policy:2:1: the block of laptop"),
        "{told}"
    );
    lives(&mut alice)
}

#[test]
fn what_is_in_force_is_shown_as_a_policy_that_can_be_read() -> Outcome {
    let mail = Lab::mail()?;
    mail.mailhost
        .replace(POLICY, "style connection;", "style   user;")?;
    let show = ["usher", "policy", "show"];
    let shown = mail.mailhost.run(show)?.stdout;
    for part in [
        " in force on mailhost\n",
        "# offers imap at port 143\n",
        &format!("# from {POLICY}\n"),
        "  style connection;\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    mail.mailhost.write("/root/shown.policy", &shown)?;
    mail.mailhost
        .run(["usher", "policy", "check", "/root/shown.policy"])?;
    let canonical = ["usher", "policy", "fmt", "--check", "/root/shown.policy"];
    mail.mailhost.run(canonical)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    let shown = mail.mailhost.run(show)?.stdout;
    assert!(shown.contains("  style user;\n"), "{shown}");
    let shown = mail.laptop.run(show)?.stdout;
    assert!(
        shown.contains("# reaches imap at mailhost port 143\n"),
        "{shown}"
    );
    Ok(())
}
