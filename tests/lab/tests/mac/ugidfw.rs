//! Rules of `bsdextended`, one by one, by the commands of FreeBSD's ugidfw(8).

use serde_json::json;
use usher_lab::{Host, Role};

use super::{GUARDED, OWNER, Outcome, POLICY, answer, host_with_modules, reads, refused};

const FILE: &str = "/etc/usher/policy.d/ugidfw.policy";

fn ugidfw(host: &Host, words: &str) -> Outcome {
    let command = ["usher", "mac", "ugidfw"];
    host.run(command.into_iter().chain(words.split(' ')))?;
    Ok(())
}

fn refused_ugidfw(host: &Host, words: &str) -> Result<String, Box<dyn std::error::Error>> {
    let command: Vec<&str> = ["usher", "mac", "ugidfw"]
        .into_iter()
        .chain(words.split(' '))
        .collect();
    refused(host, &command)
}

#[test]
fn rules_change_one_by_one_and_come_into_force() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let _labeller = host.start_daemon(Role::Labeller)?;
    host.run(["usher", "mac", "load", "bsdextended"])?;
    assert!(reads(&host, "alice", GUARDED)?);

    ugidfw(
        &host,
        &format!("add subject uid alice object uid {OWNER} mode n"),
    )?;
    assert!(!reads(&host, "alice", GUARDED)?);
    assert!(reads(&host, "bob", GUARDED)?);
    ugidfw(
        &host,
        &format!("add subject uid bob object ! uid root:{OWNER} type a mode s"),
    )?;
    let listed = answer(&host, &["ugidfw", "list"])?;
    assert_eq!(
        listed,
        json!([
            {
                "number": 1,
                "rule": format!("subject uid alice object uid {OWNER} mode n"),
                "statement": format!("rule subject uid alice object uid {OWNER} mode n"),
            },
            {
                "number": 2,
                "rule": format!("subject uid bob object ! uid 0:{OWNER} mode s"),
                "statement": format!("rule subject uid bob object not uid 0:{OWNER} mode s"),
            },
        ])
    );
    ugidfw(
        &host,
        &format!("set 2 subject uid bob object uid {OWNER} mode s"),
    )?;
    assert!(!reads(&host, "bob", GUARDED)?);
    ugidfw(&host, "remove 1")?;
    assert!(reads(&host, "alice", GUARDED)?);
    assert!(!reads(&host, "bob", GUARDED)?);

    // A refused rule changes neither the file nor the rules in force.
    let former = host.read(FILE)?;
    for (words, reason) in [
        (
            "add subject uid nosuch object mode n",
            "this host has no user nosuch",
        ),
        ("add subject uid alice object mode q", "`q` is no mode"),
        ("add subject jailid 1 object mode n", "Linux has no jails"),
        ("set 3 subject object mode n", "there is no rule 3"),
        ("remove 0", "there is no rule 0"),
    ] {
        let told = refused_ugidfw(&host, words)?;
        assert!(told.contains(reason), "{words}: {told}");
        assert_eq!(host.read(FILE)?, former);
    }
    assert!(!reads(&host, "bob", GUARDED)?);

    // Not what others have written, but is not in force; not beside a block of another file.
    host.write(POLICY, "mac bsdextended {\n}\n")?;
    let told = refused_ugidfw(&host, "remove 1")?;
    assert!(told.contains("are not those in force"), "{told}");
    host.write(POLICY, "")?;
    host.run(["usher", "policy", "apply"])?;
    let revoked = "/etc/usher/revoked_keys";
    host.run(["cp", "/etc/usher/host_key.pub", revoked])?;
    let told = refused_ugidfw(&host, "remove 1")?;
    assert!(told.contains("are not those in force"), "{told}");
    host.run(["rm", revoked])?;
    host.write(FILE, format!("# Mine.\n{former}"))?;
    host.run(["usher", "policy", "apply"])?;
    let told = refused_ugidfw(&host, "remove 1")?;
    assert!(told.contains("was changed by hand"), "{told}");
    host.write(FILE, &former)?;
    host.run(["usher", "policy", "apply"])?;

    ugidfw(&host, "remove 1")?;
    assert!(!host.path(FILE).exists());
    assert!(reads(&host, "bob", GUARDED)?);
    assert_eq!(answer(&host, &["ugidfw", "list"])?, json!([]));
    host.write(
        POLICY,
        "mac bsdextended {\n  rule subject uid bob mode n;\n}\n",
    )?;
    host.run(["usher", "policy", "apply"])?;
    let told = refused_ugidfw(&host, "add subject uid alice object mode n")?;
    assert!(told.contains("stand in another file"), "{told}");
    assert!(!host.path(FILE).exists());
    assert!(!reads(&host, "bob", GUARDED)?);
    assert!(reads(&host, "alice", GUARDED)?);
    Ok(())
}
