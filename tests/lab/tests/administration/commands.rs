//! Renaming, filters, lists, and the way back to an earlier policy.

use super::{OTHER_KEY, Outcome, POLICY, connect, is_cut, is_served, lives};
use usher_lab::{Host, Lab, eventually};

fn json(host: &Host, command: &[&str]) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let arguments = ["usher", "--json"].iter().chain(command);
    Ok(serde_json::from_str(&host.run(arguments)?.stdout)?)
}

/// Runs a command that must fail, and returns what it says.
fn fails(host: &Host, command: &[&str], status: i32) -> Result<String, Box<dyn std::error::Error>> {
    let output = host.command(command).run()?;
    assert_eq!(
        output.status.code(),
        Some(status),
        "{command:?}: {output:?}"
    );
    Ok(output.stderr)
}

#[test]
fn who_and_service_list_show_what_was_asked_for() -> Outcome {
    let mail = Lab::mail()?;
    let (_alice, _bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    let users = |filter: &[&str]| {
        let view = json(&mail.mailhost, &[&["who"], filter].concat())?;
        let sessions = view["sessions"].as_array().ok_or("no sessions")?;
        let mut users: Vec<_> = sessions
            .iter()
            .filter_map(|one| one["user"].as_str().map(str::to_owned))
            .collect();
        users.sort();
        let workers = view["workers"].as_array().ok_or("no workers")?.len();
        Ok::<_, Box<dyn std::error::Error>>((users.join(","), workers))
    };
    let found = |users: &str, workers| (users.to_owned(), workers);
    // A worker may serve before the keeper has heard of it from the starter.
    eventually("`who` shows both and their workers", || {
        Ok(users(&[])? == found("alice,bob", 2))
    })?;
    assert_eq!(users(&["--user", "alice"])?, found("alice", 1));
    assert_eq!(users(&["--service", "imap"])?, found("alice,bob", 2));
    assert_eq!(users(&["--service", "smtp"])?, found("", 0));
    assert_eq!(users(&["--host", "mailhost"])?, found("", 0));
    let both = ["--host", "laptop", "--user", "bob"];
    assert_eq!(users(&both)?, found("bob", 0));
    let text = mail.mailhost.run(["usher", "who", "--user", "bob"])?.stdout;
    assert!(text.contains("bob") && !text.contains("alice"), "{text}");

    let services = json(&mail.mailhost, &["service", "list"])?;
    let service = &services[0];
    assert_eq!(service["service"], "imap", "{services}");
    assert_eq!(service["port"], 143);
    assert_eq!(service["sessions"], 2);
    assert_eq!(service["hosts"], serde_json::json!(["laptop"]));
    let text = mail.mailhost.run(["usher", "service", "list"])?.stdout;
    assert!(text.contains("/usr/lib/dovecot/imap"), "{text}");
    let none = mail.laptop.run(["usher", "service", "list"])?.stdout;
    assert_eq!(none, "no services\n");
    Ok(())
}

#[test]
fn a_reverted_policy_readmits_nobody_who_was_disabled() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let generation = |entry: &serde_json::Value| entry["generation"].as_u64();
    let history = || json(host, &["policy", "history"]);
    let first = history()?;
    assert_eq!(first.as_array().map(Vec::len), Some(1), "{first}");
    assert_eq!(first[0]["in_force"], true);
    fails(host, &["usher", "policy", "revert"], 1)?;
    // The same policy once more is no other one.
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(history()?, first);

    let mut alice = connect(&mail, "alice")?;
    host.replace(POLICY, "member alice, bob;", "member bob;")?;
    host.run(["usher", "policy", "apply"])?;
    is_cut(&mut alice)?;
    host.run(["usher", "user", "disable", "bob"])?;
    let second = history()?;
    assert_eq!(second.as_array().map(Vec::len), Some(2), "{second}");
    assert_eq!(second[0]["in_force"], true);
    let old = generation(&first[0]).ok_or("no number")?.to_string();
    let printed = host.run(["usher", "policy", "history", &old])?.stdout;
    assert!(printed.contains("member alice, bob;"), "{printed}");
    let unknown = fails(host, &["usher", "policy", "revert", "999"], 1)?;
    assert!(unknown.contains("usher policy history"), "{unknown}");

    let told = fails(host, &["usher", "policy", "revert"], 1)?;
    assert!(told.contains("the user alice in `users mail`"), "{told}");
    assert!(!told.contains("bob"), "{told}");
    assert_eq!(history()?, second);
    let said = host.run(["usher", "policy", "revert", "--readmit"])?.stdout;
    assert!(
        said.contains(&format!("the policy of generation {old}\n")),
        "{said}"
    );
    let back = "readmitted: the user alice in `users mail`\n";
    assert!(said.contains(back), "{said}");
    let differs = format!("differs from the configuration in force: {POLICY}\n");
    assert!(said.contains(&differs), "{said}");
    assert!(is_served(&mail, "alice", "imap")?);
    assert!(!is_served(&mail, "bob", "imap")?);
    let third = history()?;
    assert!(generation(&third[0]) > generation(&second[0]), "{third}");
    assert_eq!(third[0]["in_force"], true);
    // The files have stayed, and the same command goes forth again. Nobody comes back by that.
    assert!(host.read(POLICY)?.contains("member bob;"));
    host.run(["usher", "policy", "revert"])?;
    assert!(!is_served(&mail, "alice", "imap")?);
    Ok(())
}

// Threat model: A167
#[test]
fn a_removed_user_or_host_comes_back_only_if_that_is_said() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let third = "usher host add third --address 10.77.0.9 --key".split(' ');
    host.run(third.chain([OTHER_KEY]))?;
    let authority = host.read("/root/alice.pub")?;
    host.write("/etc/usher/user_ca_keys", authority)?;
    host.run(["usher", "policy", "apply"])?;
    let listed = json(host, &["policy", "history"])?;
    let old = listed[0]["generation"].to_string();

    // His removal takes the mark away with him. That is permitted, as the policy names him no more.
    host.run(["usher", "user", "disable", "bob"])?;
    host.replace(POLICY, "member alice, bob;", "member alice;")?;
    host.run(["usher", "policy", "apply"])?;
    host.run(["usher", "user", "remove", "bob"])?;
    host.run(["usher", "host", "remove", "third"])?;
    host.run(["usher", "policy", "apply"])?;
    let shown = host.run(["usher", "policy", "show"])?.stdout;

    let told = fails(host, &["usher", "policy", "revert", &old], 1)?;
    for part in [
        "`host third` with the key SHA256:",
        "the user bob in `users mail`",
        "may open sessions as bob with `service imap`",
        &format!("usher policy revert {old} --readmit"),
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("alice"), "{told}");
    let still = host.run(["usher", "policy", "show"])?.stdout;
    assert_eq!(still, shown);

    let said = host.run(["usher", "policy", "revert", &old, "--readmit"])?;
    let said = said.stdout;
    assert_eq!(said.matches("readmitted: ").count(), 3, "{said}");
    let shown = host.run(["usher", "policy", "show"])?.stdout;
    assert!(shown.contains("host third"), "{shown}");
    assert!(shown.contains("bob"), "{shown}");
    Ok(())
}

#[test]
fn a_renamed_user_has_the_keys_and_only_the_new_name() -> Outcome {
    let mail = Lab::mail()?;
    let (mut alice, mut bob) = (connect(&mail, "alice")?, connect(&mail, "bob")?);
    for host in [&mail.laptop, &mail.mailhost] {
        host.add_account("alina", 2900)?;
        let taken = fails(host, &["usher", "user", "rename", "alice", "bob"], 1)?;
        assert!(taken.contains("knows a user bob already"), "{taken}");
        fails(
            host,
            &["usher", "user", "rename", "nobody-known", "alina"],
            1,
        )?;
        assert!(
            json(host, &["user", "list"])?
                .to_string()
                .contains("\"alice\"")
        );
    }
    lives(&mut alice)?;
    let module = "/etc/usher/policy.d/module.policy";
    for host in [&mail.laptop, &mail.mailhost] {
        host.write(module, "mac portacl { permit user alice tcp 80; }\n")?;
        let said = host
            .run(["usher", "user", "rename", "alice", "alina"])?
            .stdout;
        assert!(said.contains(&format!("remains: {POLICY}:1:")), "{said}");
        assert!(
            said.contains(&format!("remains: {module}:1:27: ")),
            "{said}"
        );
        host.run(["rm", module])?;
        host.replace(POLICY, "alice", "alina")?;
        host.run(["usher", "policy", "apply"])?;
        let users = json(host, &["user", "list"])?.to_string();
        assert!(
            users.contains("\"alina\"") && !users.contains("\"alice\""),
            "{users}"
        );
    }
    is_cut(&mut alice)?;
    lives(&mut bob)?;
    assert!(!is_served(&mail, "alice", "imap")?);
    let output = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
    let output = output.user("alina").input("a LOGOUT\r\n").succeed()?;
    assert!(output.stdout.contains("Logged in as alina"), "{output:?}");
    Ok(())
}

/// Each state that a rename ended between two steps leaves; also those of a folder that went before its keys.
#[test]
fn a_rename_that_was_ended_is_completed_by_the_same_command() -> Outcome {
    const KEYS: &str = "/var/lib/usher/keys";
    const FOLDERS: &str = "cd /etc/usher/users && mv alice alina";
    let mail = Lab::mail()?;
    let host = &mail.laptop;
    host.add_account("alina", 2900)?;
    host.add_account("dora", 2901)?;
    host.write("/root/dora.pub", OTHER_KEY)?;
    host.run([
        "sh",
        "-c",
        &format!("cp -p {KEYS}/alice {KEYS}/alice@second"),
    ])?;
    let first = format!("cd {KEYS} && mv alice alina");
    let keys = format!("{first} && mv alice@second alina@second");
    let another = "usher user add dora --public-key /root/dora.pub".to_owned();
    let states = [
        vec![&*first],
        vec![&keys],
        vec![&keys, FOLDERS],
        vec![FOLDERS],
    ];
    let users = || -> Result<String, Box<dyn std::error::Error>> {
        let list = json(host, &["user", "list"])?;
        let list = list.as_array().ok_or("no list")?.iter();
        let signs = list.filter(|user| user["private_key"] == true);
        let names = signs.map(|user| user["user"].as_str().unwrap_or_default());
        Ok(names.collect::<Vec<_>>().join(","))
    };
    let rename = ["usher", "user", "rename", "alice", "alina"];
    let back = ["usher", "user", "rename", "alina", "alice"];
    for state in states {
        for step in &state {
            host.run(["sh", "-e", "-c", step])?;
        }
        let output = host.command(rename).run()?;
        assert!(output.status.success(), "{state:?}: {output:?}");
        assert_eq!(users()?, "alina,bob,carol", "{state:?}");
        let left = host.run(["sh", "-c", &format!("ls {KEYS} /etc/usher/users")])?;
        assert!(!left.stdout.contains("alice"), "{state:?}: {left:?}");
        // It is not done twice, and the way back is the same.
        fails(host, &rename, 1)?;
        host.run(back)?;
        assert_eq!(users()?, "alice,bob,carol", "{state:?}");
        // Nor is it another user's.
        let taken = fails(host, &["usher", "user", "rename", "alice", "bob"], 1)?;
        assert!(taken.contains("knows a user bob already"), "{taken}");
        assert!(is_served(&mail, "alice", "imap")?);
    }
    // Another command completes one of which nothing else is left.
    for step in [&keys, FOLDERS, &another] {
        host.run(["sh", "-e", "-c", step])?;
    }
    assert_eq!(users()?, "alina,bob,carol");
    host.run(back)?;
    // A key that was left of somebody else is not another user's.
    host.run(["sh", "-c", &format!("cp -p {KEYS}/alice {KEYS}/zoe")])?;
    let stray = fails(host, &["usher", "user", "rename", "zoe", "dora"], 1)?;
    assert!(stray.contains("does not know the user zoe"), "{stray}");
    host.run(["rm", &format!("{KEYS}/zoe")])?;
    // A rename in the middle goes back, too.
    for step in [&keys, FOLDERS] {
        host.run(["sh", "-e", "-c", step])?;
    }
    host.run(back)?;
    assert_eq!(users()?, "alice,bob,carol");
    assert!(is_served(&mail, "alice", "imap")?);
    Ok(())
}

#[test]
fn a_renamed_host_has_its_new_name_in_every_file() -> Outcome {
    let mail = Lab::mail()?;
    let host = &mail.mailhost;
    let taken = fails(host, &["usher", "host", "rename", "laptop", "mailhost"], 1)?;
    assert!(taken.contains("already"), "{taken}");
    assert!(host.read(POLICY)?.contains("hosts laptop;"));
    let mut alice = connect(&mail, "alice")?;
    let said = host
        .run(["usher", "host", "rename", "laptop", "notebook"])?
        .stdout;
    let file = "/etc/usher/policy.d/host-notebook.policy";
    assert!(said.contains(&format!("wrote {file}\n")), "{said}");
    assert!(said.contains(&format!("wrote {POLICY}\n")), "{said}");
    assert!(host.read(POLICY)?.contains("hosts notebook;"));
    assert!(host.read(file)?.starts_with("host notebook {"));
    assert!(host.read("/etc/usher/policy.d/host-laptop.policy").is_err());
    // Only an apply puts it in force.
    lives(&mut alice)?;
    host.run(["usher", "policy", "apply"])?;
    is_cut(&mut alice)?;
    assert!(is_served(&mail, "alice", "imap")?);
    let _alice = connect(&mail, "alice")?;
    let who = host.run(["usher", "who", "--host", "notebook"])?.stdout;
    assert!(who.contains("alice"), "{who}");
    Ok(())
}
