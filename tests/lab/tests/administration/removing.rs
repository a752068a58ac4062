//! Users and hosts are removed.

use super::*;

/// Runs a command that must be refused, and returns its error.
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
    // A folder that is not empty cannot be replaced.
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
fn a_disabled_user_whom_certificates_would_admit_stays() -> Outcome {
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
    let rename = ["usher", "user", "rename", "alice", "alina"];
    let told = is_refused(&mail.mailhost, &rename)?;
    let reason = "alice is disabled, and the mark would go to alina";
    assert!(told.contains(reason), "{told}");
    let listed = mail.mailhost.run(["usher", "user", "list"])?.stdout;
    assert!(listed.contains("no: disabled"), "{listed}");
    assert!(
        listed.contains("alice") && !listed.contains("alina"),
        "{listed}"
    );
    // For a user who is not disabled the command says so; without the authority there is nothing to say.
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
    mail.mailhost.run(rename)?;
    let back = ["usher", "user", "rename", "alina", "alice"];
    mail.mailhost.run(back)?;
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
