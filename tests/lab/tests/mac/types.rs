//! The module `te`: from a permissive domain to the rules that it lacks, and to what they leave out.

use usher_lab::Role;

use super::{Outcome, POLICY, answer, host_with_modules, refused};

#[test]
fn a_domain_is_learned_and_then_held_to_its_rules() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let _labeller = host.start_daemon(Role::Labeller)?;
    let policy = |rules: &str| format!("mac te {{\n  domain reader;\n{rules}}}\n");
    let told = refused(&host, &["usher", "mac", "learn"])?;
    assert!(told.contains("te is not loaded"), "{told}");
    host.write(POLICY, policy("  permissive reader;\n"))?;
    let applied = host.command(["usher", "policy", "apply"]).run()?.stderr;
    let warning = "`permissive reader`: nothing is refused to these domains";
    assert!(applied.contains(warning), "{applied}");
    host.run(["usher", "mac", "load", "te"])?;
    let learned = host.run(["usher", "mac", "learn"])?.stdout;
    assert_eq!(
        learned,
        "# nothing has been refused since the settings came into force\n"
    );
    let read = ["setpmac", "te/reader", "cat", "/srv/open"];
    let make = ["setpmac", "te/reader", "mkdir", "/srv/made"];
    assert_eq!(host.run(read)?.stdout, "text\n");
    // The statements are ready for the block.
    let learned = host.run(["usher", "mac", "learn"])?.stdout;
    assert!(
        learned.contains("  allow reader untyped file "),
        "{learned}"
    );
    host.write(POLICY, policy(&learned))?;
    host.run(["usher", "policy", "check"])?;
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(host.run(read)?.stdout, "text\n");
    let told = refused(&host, &make)?;
    assert!(told.contains("Permission denied"), "{told}");
    let lacking = answer(&host, &["learn"])?;
    let statements = lacking.as_array().ok_or("no list")?;
    let adds = statements.iter().any(|statement| {
        let statement = statement.as_str().unwrap_or_default();
        statement.starts_with("allow reader untyped directory ") && statement.contains("add_name")
    });
    assert!(adds, "{lacking}");
    // The twin: without a domain.
    host.run(&make[2..])?;
    Ok(())
}
