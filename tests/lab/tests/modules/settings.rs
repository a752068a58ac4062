//! Settings of a module from a file.

use std::fs;

use serde_json::json;
use usher_lab::{Host, Lab, Role};

use super::{MODULES, Outcome, answer, commands, executes, host, install, may_load, refused, root};

/// Applies a policy with this block.
fn apply(host: &Host, block: &str) -> Result<Option<String>, Box<dyn std::error::Error>> {
    host.write("/etc/usher/policy.d/mac.policy", block)?;
    let output = host.command(["usher", "policy", "apply"]).run()?;
    Ok((!output.status.success()).then_some(output.stderr))
}

#[test]
fn the_policy_sets_what_a_module_declares() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    if !may_load(&host)? {
        return Ok(());
    }
    commands(&host, &root(), "make install-module-headers")?;
    let example = fs::read_to_string(root().join("examples/module/exempting.bpf.c"))?;
    install(&host, "exempting", &example)?;
    let mut labeller = host.start_daemon(Role::Labeller)?;
    host.write_program("/srv/own", "#!/bin/true\n")?;
    host.run(["chown", "alice", "/srv/own"])?;

    // A block may be there before its module is loaded.
    let exempt = "mac exempting {\n  exempt root, 2001;\n}\n";
    assert_eq!(apply(&host, exempt)?, None);
    host.run(["usher", "mac", "load", "exempting"])?;
    assert!(executes(&host, "/srv/own")?);
    let shown = || -> Result<_, Box<dyn std::error::Error>> {
        let listed = answer(&host, &["list"])?;
        Ok(listed["modules"][0]["settings"].clone())
    };
    assert_eq!(shown()?, json!(["exempt root, 2001"]));

    // Without it the module has its defaults, and a name is as good as a number.
    assert_eq!(apply(&host, "")?, None);
    assert!(!executes(&host, "/srv/own")?);
    assert_eq!(apply(&host, "mac exempting { exempt alice; }\n")?, None);
    assert!(executes(&host, "/srv/own")?);

    // Statements that the module does not take are refused, and change nothing.
    for (block, reason) in [
        ("exampt alice;", "has no statement `exampt`; it has exempt"),
        ("exempt no-such;", "this host has no user no-such"),
        (
            "exempt \"alice\";",
            "is no value of `exempt`; write the name",
        ),
        ("exempt alice bob;", "`alice bob` is no value"),
        ("exempt;", "`exempt` has 0 values; write 1 to 16"),
        ("exempt 1; exempt 2;", "`exempt` stands twice"),
        (
            "exempt 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17;",
            "`exempt` has 17 values",
        ),
    ] {
        let told = apply(&host, &format!("mac exempting {{\n  {block}\n}}\n"))?;
        let told = told.ok_or(block)?;
        let is_named = told.contains(reason) && told.contains("mac.policy:2:");
        assert!(is_named, "{block}: {told}");
        assert!(executes(&host, "/srv/own")?);
    }
    let told = apply(&host, "mac absent { }\n")?.ok_or("a module that is not there")?;
    assert!(
        told.contains("mac.policy:1:1: there is no module absent"),
        "{told}"
    );

    // The next labeller goes on, and so does a module that is loaded again.
    let exempt = "mac exempting { exempt alice; }\n";
    assert_eq!(apply(&host, exempt)?, None);
    labeller.restart()?;
    assert!(executes(&host, "/srv/own")?);
    assert_eq!(apply(&host, "mac exempting { exempt root; }\n")?, None);
    assert!(!executes(&host, "/srv/own")?);
    host.run(["usher", "mac", "unload", "exempting"])?;
    assert_eq!(apply(&host, exempt)?, None);
    host.run(["usher", "mac", "load", "exempting"])?;
    assert!(executes(&host, "/srv/own")?);

    // Another file in its place: what it declares says nothing of the module in force.
    host.run([
        "sh",
        "-ec",
        &format!("printf x >>{MODULES}/exempting.bpf.o"),
    ])?;
    assert_eq!(apply(&host, exempt)?, None);
    let told = apply(&host, "mac exempting { exempt root; }\n")?.ok_or("a changed file")?;
    assert!(
        told.contains("unload the module and load it again"),
        "{told}"
    );
    assert!(executes(&host, "/srv/own")?);
    host.run(["usher", "mac", "unload", "exempting"])?;

    // A statement that the policy could not tell from one of its own.
    let taken = "MAC_POLICY(taken);\nstruct settings { __u32 users_count; __u32 users[1]; };\n\
                 MAC_SETTINGS(struct settings);\nMAC_STATEMENTS(MAC_USERS(users));\n\
                 MAC_CHECK(task_kill) { return mac_settings() ? 0 : -EPERM; }\n";
    install(&host, "taken", taken)?;
    let told = refused(&host, "taken")?;
    assert!(
        told.contains("the statement `users`, a word that begins"),
        "{told}"
    );
    Ok(())
}
