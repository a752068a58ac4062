//! The keys and the roles of a host, and what `usher doctor` says of them.

use usher_lab::{Host, Lab, eventually};

use super::{OTHER_KEY, Outcome, connect, lives, refused};

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
    // The very line that `usher init` prints.
    for line in [
        statement.clone(),
        statement.trim_end_matches(';').to_owned(),
    ] {
        let added = add("third", &line)?;
        assert!(added.status.success(), "{added:?}");
        let written = host.read("/etc/usher/policy.d/host-third.policy")?;
        assert!(written.contains(&statement), "{written}");
        host.run(["usher", "host", "remove", "third"])?;
    }
    // A host's key is not taken from the other key's line, but from its own.
    let words = ["usher", "host", "add", "third", "--address", "10.77.0.9"];
    let add = |key: &str| host.command(words.iter().chain(&["--key", key])).run();
    let refused = add(&statement)?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("--key: "), "{refused:?}");
    let added = add(&format!("key \"{OTHER_KEY}\";"))?;
    assert!(added.status.success(), "{added:?}");
    Ok(())
}
