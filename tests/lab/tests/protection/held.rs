//! Peers that have negotiated are held to it.

use super::*;

// Threat model: P50
#[test]
fn a_held_peer_is_let_go_with_its_host_block() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let world = World::new()?;
    let _charons = world.start_charons()?;
    let _protectors = world.start_protectors()?;
    let policy = format!(
        "application {CLIENT}, {SERVER} {{\n  network 10.77.0.0/24 protected Fast;\n  network 0.0.0.0/0 \
         trusted;\n  protection Fast {{ localport=any remoteport=any encryption optional; }}\n}}\n"
    );
    let laptop = &world.laptop;
    let remembered = "/var/lib/usher/protector/negotiated.json";
    // SAs of a mandatory class hold nobody.
    world.write_policy("fast", &policy.replace("optional", "mandatory"))?;
    world.apply()?;
    world.wait_for_sas()?;
    let held = laptop.read(remembered).unwrap_or_default();
    assert!(!held.contains("server"), "{held}");
    world.write_policy("fast", &policy)?;
    world.apply()?;
    let server = format!("dst {}/32", world.server.ipv4());
    let is_held = || {
        Ok(requires(
            &laptop.run(["ip", "xfrm", "policy"])?.stdout,
            &server,
        ))
    };
    assert!(is_held()?, "there are SAs already");
    let held: serde_json::Value = serde_json::from_str(&laptop.read(remembered)?)?;
    let since = held["server"]["classes"]["encryption"].as_u64();
    assert!(since > Some(0), "{held}");
    let peers = json(laptop, &["protection", "peers"])?;
    let shown = &peers["peers"][0]["classes"][0]["held_since"];
    assert_eq!(shown.as_u64(), since, "{peers}");
    // Another policy with the same hosts keeps it.
    laptop.write(
        "/etc/usher/policy.d/more.policy",
        "application /usr/bin/wget { network 0.0.0.0/0 trusted; }\n",
    )?;
    laptop.run(["usher", "policy", "apply"])?;
    assert!(is_held()?);
    let hosts = "/etc/usher/policy.d/hosts.policy";
    let whole = laptop.read(hosts)?;
    let own: Vec<&str> = whole
        .lines()
        .filter(|line| line.starts_with("host laptop"))
        .collect();
    laptop.write(hosts, format!("{}\n", own.join("\n")))?;
    laptop.run(["usher", "policy", "apply"])?;
    assert!(!is_held()?);
    laptop.write(hosts, &whole)?;
    laptop.run(["usher", "policy", "apply"])?;
    eventually("it is held again", is_held)?;
    // Rolled back without a stop: both let go, and then remove their blocks one after the other.
    let _servers = world.serve()?;
    assert!(world.gets_the_page(laptop)?, "protected");
    world.write_policy("hosts", &whole.replace("{ address", "{ hold no; address"))?;
    world.apply()?;
    assert!(!is_held()?);
    assert_eq!(laptop.read(remembered)?, "{}");
    assert!(world.gets_the_page(laptop)?, "protected or not");
    for host in world.protected() {
        host.run(["rm", "/etc/usher/policy.d/fast.policy"])?;
        host.run(["usher", "policy", "apply"])?;
        assert!(world.gets_the_page(laptop)?, "{}", host.name());
    }
    Ok(())
}

/// After a reboot, with IKE kept from passing: nobody answers at charon's socket here.
// Threat model: P60
#[test]
fn a_host_that_negotiated_is_held_after_a_reboot() -> Outcome {
    let world = World::new()?;
    let laptop = &world.laptop;
    let policy = format!(
        "application {CLIENT} {{\n  network 10.77.0.0/24 protected Fast;\n  network 0.0.0.0/0 trusted;\n  \
         protection Fast {{ localport=any remoteport=any encryption optional; }}\n}}\n"
    );
    laptop.write("/etc/usher/policy.d/fast.policy", &policy)?;
    let remembered = "/var/lib/usher/protector/negotiated.json";
    let server = format!("dst {}/32", world.server.ipv4());
    let is_held = || {
        let listed = laptop.run(["ip", "xfrm", "policy"])?.stdout;
        Ok::<_, Box<dyn std::error::Error>>(requires(&listed, &server))
    };
    let fast = "/etc/usher/policy.d/fast.policy";
    let warning = "warning: server is held to encryption";
    let apply =
        || Ok::<_, Box<dyn std::error::Error>>(laptop.run(["usher", "policy", "apply"])?.stderr);
    let mut protector = laptop.start_daemon(Role::Protector)?;
    let told = apply()?;
    assert!(!is_held()?, "it has never negotiated");
    assert!(!told.contains(warning), "{told}");
    protector.crash()?;
    laptop.run(["usherd", "release"])?;
    laptop.write(remembered, r#"{"server":["encryption"]}"#)?;
    protector.start()?;
    assert!(is_held()?, "at once, without charon");
    // A second roll-out, after a policy without blocks, says whom it will refuse.
    laptop.run(["rm", fast])?;
    apply()?;
    laptop.write(fast, &policy)?;
    let told = apply()?;
    assert!(is_held()?);
    assert!(told.contains(warning), "{told}");
    // Another name does not let it go.
    let hosts = "/etc/usher/policy.d/hosts.policy";
    let whole = laptop.read(hosts)?;
    laptop.write(hosts, whole.replace("host server ", "host mailhost "))?;
    let told = apply()?;
    assert!(
        is_held()?,
        "it has no SAs, and one name is as good as another"
    );
    let renamed = "warning: mailhost is held to encryption";
    assert!(told.contains(renamed), "{told}");
    laptop.write(hosts, &whole)?;
    apply()?;
    // It is let go, and forgotten, with its host block, whatever else the policy has.
    laptop.run(["rm", fast])?;
    let is_own = |line: &&str| line.starts_with("host laptop");
    let own: Vec<&str> = whole.lines().filter(is_own).collect();
    laptop.write(hosts, format!("{}\n", own.join("\n")))?;
    apply()?;
    laptop.write(hosts, &whole)?;
    apply()?;
    laptop.write(fast, &policy)?;
    let told = apply()?;
    assert!(!is_held()?, "it is another host now");
    assert!(!told.contains(warning), "{told}");
    assert_eq!(laptop.read(remembered)?, "{}");
    Ok(())
}

/// Returns whether the SPD requires SAs for what is encrypted optionally with this peer.
fn requires(listed: &str, peer: &str) -> bool {
    let mut entries = listed.split("\nsrc ");
    entries.any(|entry| {
        entry.contains(peer) && entry.contains("mark 0x400000/") && !entry.contains("level use")
    })
}
