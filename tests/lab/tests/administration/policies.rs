//! Policies are read, applied and shown.

use super::*;

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
fn a_service_with_protection_needs_a_protector() -> Outcome {
    let mail = Lab::mail()?;
    let demanding = "listen 143; protection encryption;";
    mail.mailhost.replace(POLICY, "listen 143;", demanding)?;
    let refused = mail.mailhost.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    let said = "the protector does not run on this host";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    let dry = ["usher", "policy", "apply", "--dry-run"];
    let dry = mail.mailhost.command(dry).run()?;
    assert_eq!(dry.status.code(), Some(2), "{dry:?}");
    let foreseen = format!("an apply would be refused: {said}");
    assert!(dry.stdout.contains(&foreseen), "{dry:?}");
    let explain = "usher policy explain alice@laptop imap@mailhost".split(' ');
    let explained = mail.mailhost.command(explain).run()?.stdout;
    assert!(
        explained.contains("its connections must be encrypted by IPsec"),
        "{explained}"
    );
    // The configuration in force is as before.
    let mut alice = connect(&mail, "alice")?;
    lives(&mut alice)
}

/// A policy that the paper has.
macro_rules! figure {
    ($name:literal) => {
        include_str!(concat!(
            "../../../../crates/protection/usher-protection/tests/applications/published/figure-",
            $name,
            ".policy"
        ))
    };
}

#[test]
fn a_name_that_is_not_found_is_a_warning_of_the_check() -> Outcome {
    let mail = Lab::mail()?;
    let others = [
        figure!("4-ftp"),
        figure!("4-vsftpd"),
        figure!("7-client"),
        figure!("7-server"),
        figure!("9-fast"),
        figure!("9-secure"),
    ];
    for figure in others {
        mail.mailhost.write("/root/figure.policy", figure)?;
        mail.mailhost
            .run(["usher", "policy", "check", "/root/figure.policy"])?;
    }
    mail.mailhost.write("/root/figure-3.policy", figure!("3"))?;
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
    assert!(!warned.contains("cannot be found"), "{warned}");
    Ok(())
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

#[test]
fn no_apply_takes_everything_away_unasked() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let mut alice = connect(&mail, "alice")?;
    let before = host.read("/var/lib/usher/applied.json")?;
    let refused = |why: &str| {
        for (command, code) in [(&["apply"][..], 1), (&["apply", "--dry-run"], 2)] {
            let apply = [&["usher", "policy"], command].concat();
            let said = host.command(apply).run()?;
            assert_eq!(said.status.code(), Some(code), "{said:?}");
            assert!(said.stderr.contains(why), "{said:?}");
        }
        assert_eq!(host.read("/var/lib/usher/applied.json")?, before);
        Outcome::Ok(())
    };
    // A folder that something has emptied, or that is not mounted.
    host.run(["mv", "/etc/usher/policy.d", "/root/policy.d"])?;
    host.run(["mkdir", "/etc/usher/policy.d"])?;
    refused(
        "has no *.policy file: nothing is permitted; if that is meant, put an empty file there",
    )?;
    host.run(["rmdir", "/etc/usher/policy.d"])?;
    host.run(["mv", "/root/policy.d", "/etc/usher/policy.d"])?;
    // A host that was never prepared.
    host.run(["mv", "/etc/usher/host_key.pub", "/root"])?;
    refused("this host is not prepared for Usher; run `usher init`")?;
    host.run(["mv", "/root/host_key.pub", "/etc/usher"])?;
    lives(&mut alice)?;
    // A policy without this host is warned of, by name of the key.
    let key = host.read("/etc/usher/host_key.pub")?;
    let key = key.split(' ').take(2).collect::<Vec<_>>().join(" ");
    for file in host
        .run(["grep", "-rlF", &key, "/etc/usher/policy.d"])?
        .stdout
        .lines()
    {
        host.replace(file, &key, super::OTHER_KEY)?;
    }
    let warned = host.run(["usher", "policy", "check"])?.stderr;
    let why = "no `host` block of the policy has this host's key (/etc/usher/host_key.pub)";
    assert!(warned.contains(why), "{warned}");
    // An empty file says that it is meant.
    host.run([
        "sh",
        "-c",
        "rm /etc/usher/policy.d/*; touch /etc/usher/policy.d/empty.policy",
    ])?;
    let dry = host
        .command(["usher", "policy", "apply", "--dry-run"])
        .run()?;
    assert!(dry.stdout.contains("alice"), "{dry:?}");
    host.run(["usher", "policy", "apply"])?;
    is_cut(&mut alice)
}

#[test]
fn an_apply_writes_a_damaged_configuration_anew() -> Outcome {
    const APPLIED: &str = "/var/lib/usher/applied.json";
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let number = || -> Result<u64, Box<dyn std::error::Error>> {
        let shown = host.run(["usher", "--json", "policy", "show"])?.stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        Ok(shown["generation"].as_u64().ok_or("no number")?)
    };
    let before = number()?;
    let whole = host.read(APPLIED)?;
    let half = whole.get(..whole.len() / 2).ok_or("not ASCII")?;
    host.write(APPLIED, half)?;
    let shown = host.command(["usher", "policy", "show"]).run()?;
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    let remedy = "run `usher policy apply` to rewrite it";
    assert!(shown.stderr.contains(remedy), "{shown:?}");
    lives(&mut alice)?;

    host.replace(
        "/etc/usher/policy.d/mail.policy",
        "member alice, bob;",
        "member alice;",
    )?;
    let applied = host.command(["usher", "policy", "apply"]).run()?;
    assert!(applied.status.success(), "{applied:?}");
    assert!(applied.stderr.contains("was damaged"), "{applied:?}");
    assert!(applied.stdout.contains("ended: bob"), "{applied:?}");
    assert!(number()? > before);
    is_cut(&mut bob)?;
    lives(&mut alice)?;
    // The one before is still the last that could be read.
    let previous = host.read("/var/lib/usher/applied.previous.json")?;
    serde_json::from_str::<serde_json::Value>(&previous)?;
    let again = host.command(["usher", "policy", "apply"]).run()?;
    assert!(!again.stderr.contains("damaged"), "{again:?}");
    Ok(())
}
