//! Peers that have negotiated are held to it.

use super::*;

#[test]
fn a_held_peer_is_let_go_with_its_host_block() -> Outcome {
    if !can_protect() {
        return Ok(());
    }
    let world = World::new()?;
    let _charons = world.start_charons()?;
    let _protectors = world.start_protectors()?;
    let policy = format!(
        "application {CLIENT} {{\n  network 10.77.0.0/24 protected Fast;\n  network 0.0.0.0/0 trusted;\n  \
         protection Fast {{ localport=any remoteport=any encryption optional; }}\n}}\n"
    );
    for host in world.protected() {
        host.write("/etc/usher/policy.d/fast.policy", &policy)?;
        host.run(["usher", "policy", "apply"])?;
    }
    let laptop = &world.laptop;
    let server = format!("dst {}/32", world.server.ipv4());
    let is_held = || {
        Ok(requires(
            &laptop.run(["ip", "xfrm", "policy"])?.stdout,
            &server,
        ))
    };
    eventually("the peer is held, once there are SAs", is_held)?;
    let remembered = "/var/lib/usher/protector/negotiated.json";
    assert_eq!(laptop.read(remembered)?, r#"{"server":["encryption"]}"#);
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
    Ok(())
}

/// After a reboot, with IKE kept from passing: nobody answers at charon's socket here.
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
    let apply = || laptop.run(["usher", "policy", "apply"]);
    let mut protector = laptop.start_daemon(Role::Protector)?;
    apply()?;
    assert!(!is_held()?, "it has never negotiated");
    protector.crash()?;
    laptop.run(["usherd", "release"])?;
    laptop.write(remembered, r#"{"server":["encryption"]}"#)?;
    protector.start()?;
    assert!(is_held()?, "at once, without charon");
    // It is let go, and forgotten, with its host block.
    let hosts = "/etc/usher/policy.d/hosts.policy";
    let whole = laptop.read(hosts)?;
    let is_own = |line: &&str| line.starts_with("host laptop");
    let own: Vec<&str> = whole.lines().filter(is_own).collect();
    laptop.write(hosts, format!("{}\n", own.join("\n")))?;
    apply()?;
    assert!(!is_held()?);
    laptop.write(hosts, &whole)?;
    apply()?;
    assert!(!is_held()?, "it is another host now");
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
