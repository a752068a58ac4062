//! The bits of packet marks that are Usher's: other users of these bits are found, and the policy can
//! choose other bits.

use usher_lab::Role;
use usher_lab::protected::{World, json};

use super::Outcome;

// Threat model: P10
#[test]
fn bits_of_marks_in_use_are_found_and_others_are_chosen() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let mut protector = host.start_daemon(Role::Protector)?;
    let finding = || -> Result<serde_json::Value, Box<dyn std::error::Error>> {
        let told = host.command(["usher", "--json", "doctor"]).run()?.stdout;
        let found: Vec<serde_json::Value> = serde_json::from_str(&told)?;
        let mut found = found.into_iter();
        let found = found.find(|found| found["name"] == "socket marks");
        Ok(found.ok_or("no finding")?)
    };
    let entries = || -> Result<String, Box<dyn std::error::Error>> {
        Ok(host.run(["ip", "xfrm", "policy"])?.stdout)
    };
    let rule = ["fwmark", "0x100000/0xf00000", "lookup", "77"];
    host.run(["ip", "rule", "add"].iter().chain(&rule))?;
    world.write_secure()?;
    let told = host.run(["usher", "policy", "apply"])?.stderr;
    assert!(told.contains(&rule.join(" ")), "{told}");
    assert!(told.contains("`marks 0x000fffff;`"), "the remedy: {told}");
    assert_eq!(finding()?["works"], false);
    assert!(entries()?.contains("/0xf00000"), "in force all the same");

    // Other bits cannot be chosen while protection is in force.
    host.write("/etc/usher/policy.d/marks.policy", "marks 0x000ff000;\n")?;
    let before = entries()?;
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    let told = refused.stderr;
    assert!(
        told.contains("0xfff00000") && told.contains("without"),
        "{told}"
    );
    assert_eq!(entries()?, before);

    // The remedy in the message.
    host.run(["rm", "/etc/usher/policy.d/secure.policy"])?;
    host.run(["usher", "policy", "apply"])?;
    assert!(!entries()?.contains("mark 0x"));
    world.write_secure()?;
    let told = host.run(["usher", "policy", "apply"])?.stderr;
    assert!(!told.contains("fwmark"), "{told}");
    assert_eq!(finding()?["works"], true);
    assert_eq!(json(host, &["protection", "show"])?["marks"], 0x000f_f000);
    let chosen = entries()?;
    assert!(
        chosen.contains("/0xf000 ") || chosen.contains("/0xf000\n"),
        "{chosen}"
    );
    assert!(!chosen.contains("/0xf00000"), "{chosen}");

    // Release finds what a protector has left by the mask in the pinned state, without a policy.
    protector.stop()?;
    host.run(["rm", "/var/lib/usher/applied.json"])?;
    host.run(["usherd", "release"])?;
    assert!(!entries()?.contains("mark 0x"));
    Ok(())
}
