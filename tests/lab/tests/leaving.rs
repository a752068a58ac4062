//! Leaving Usher: a stopped keeper's kernel objects are released without a reboot.
#![forbid(unsafe_code)]

use usher_lab::{Host, Lab, Mail, Output, PATIENCE, Role};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn release(mail: &Mail) -> Result<Output, usher_lab::LabError> {
    mail.mailhost.command(["usherd", "release", "--json"]).run()
}

/// The result for a client that knows nothing of Usher at mailhost's port 143.
fn greeting(mail: &Mail) -> Result<String, usher_lab::LabError> {
    let address = format!("TCP4:{}:143", mail.mailhost.ipv4());
    let socat = ["socat", "-u", &address, "-"];
    Ok(mail.stranger.command(socat).run()?.stdout)
}

/// Returns whether mailhost still has the program that reads tokens, at LOCAL_IN or at its
/// interfaces.
fn has_filter(mail: &Mail) -> Result<bool, usher_lab::LabError> {
    if reads_where_taken_in(mail) {
        return Ok(true);
    }
    let list = "for link in $(ls /sys/class/net); do tc filter show dev $link ingress; done";
    let told = mail.mailhost.command(["sh", "-c", list]).run()?.stdout;
    Ok(told.contains("0x5573"))
}

fn reads_where_taken_in(mail: &Mail) -> bool {
    let links =
        ["ipv4_0", "ipv4_1"].map(|link| format!("/sys/fs/bpf/usher/link_check_token_{link}"));
    links.iter().any(|link| mail.mailhost.path(link).exists())
}

#[test]
fn a_released_port_is_anybodys_and_the_keeper_may_come_back() -> Outcome {
    let mut mail = Lab::mail()?;
    assert!(has_filter(&mail)?);
    let interfaces = if reads_where_taken_in(&mail) { 0 } else { 2 };
    // Not while it runs.
    let refused = release(&mail)?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("the keeper runs"), "{refused:?}");
    assert!(has_filter(&mail)?);

    mail.keeper.stop()?;
    let mut server = mail.mailhost.spawn([
        "socat",
        "-d",
        "-d",
        "TCP4-LISTEN:143,fork,reuseaddr",
        "SYSTEM:echo plain",
    ])?;
    usher_lab::eventually("the plain server listens", || {
        Ok(server.stderr()?.contains("listening on"))
    })?;
    assert_eq!(greeting(&mail)?, "", "a stopped keeper's port is dead");

    let released = release(&mail)?;
    assert!(released.status.success(), "{released:?}");
    let told: serde_json::Value = serde_json::from_str(&released.stdout)?;
    assert!(told["pins"].as_u64() > Some(0), "{told}");
    assert!(
        told["interfaces"]
            .as_array()
            .is_some_and(|found| found.len() >= interfaces),
        "{told}"
    );
    // The kernel ends a link some time after its last pin.
    usher_lab::eventually("the plain server is reached", || {
        Ok(greeting(&mail)? == "plain\n")
    })?;
    assert!(!has_filter(&mail)?);
    // Again: there is nothing to do.
    let again = release(&mail)?;
    assert!(again.status.success(), "{again:?}");
    assert!(again.stdout.contains("\"pins\":0"), "{again:?}");

    server.end()?;
    mail.keeper.start()?;
    let mut client = mail
        .laptop
        .command(["usher", "connect", "mailhost:imap"])
        .user("alice")
        .spawn()?;
    client.read_past("PREAUTH", PATIENCE)?;
    Ok(())
}

#[test]
fn only_root_releases() -> Outcome {
    let mut mail = Lab::mail()?;
    mail.keeper.stop()?;
    let refused = mail
        .mailhost
        .command(["usherd", "release"])
        .user("alice")
        .run()?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(has_filter(&mail)?);
    Ok(())
}

#[test]
fn the_gates_of_a_stopped_signer_are_released() -> Outcome {
    let mut mail = Lab::mail()?;
    let gates = mail.laptop.path("/sys/fs/bpf/usher_signer");
    if !gates.exists() {
        println!("skipped: the kernel takes no gates");
        return Ok(());
    }
    let laptop = mail.laptop.clone();
    let release = |runs: bool| -> Outcome {
        let released = laptop.run(["usherd", "release", "--json"])?.stdout;
        let told: serde_json::Value = serde_json::from_str(&released)?;
        assert_eq!(told["signer_runs"], runs, "{told}");
        assert_eq!(gates.exists(), runs);
        Ok(())
    };
    release(true)?;
    mail.signer.stop()?;
    release(false)
}

/// The SPD without its order and ages, and the sysctls that protection sets.
fn state_of_ipsec(host: &Host) -> Result<(String, String), usher_lab::LabError> {
    let spd = host.run(["ip", "xfrm", "policy"])?.stdout;
    let names = [
        "net.ipv4.tcp_fwmark_accept",
        "net.ipv4.fwmark_reflect",
        "net.ipv6.fwmark_reflect",
        "net.ipv4.tcp_rfc1337",
        "net.core.xfrm_larval_drop",
    ];
    let sysctls = host.run(["sysctl"].iter().chain(&names))?.stdout;
    Ok((spd, sysctls))
}

#[test]
fn nothing_of_a_stopped_protector_is_left() -> Outcome {
    let lab = Lab::new()?;
    let host = lab.host("laptop")?;
    host.run(["usher", "init", "--name", "laptop"])?;
    // Others' settings stay.
    host.run(["sysctl", "-w", "net.ipv6.fwmark_reflect=1"])?;
    let others = "ip xfrm policy add dir out dst 192.0.2.7/32 priority 7 mark 7 mask 15";
    host.run(others.split(' '))?;
    let before = state_of_ipsec(&host)?;
    let policy = "application /usr/bin/curl { network 0.0.0.0/0 trusted; }\n";
    host.write("/etc/usher/policy.d/governed.policy", policy)?;
    let mut protector = host.start_daemon(Role::Protector)?;
    host.run(["usher", "policy", "apply"])?;
    let in_force = state_of_ipsec(&host)?;
    assert_ne!(in_force.0, before.0);
    assert_ne!(in_force.1, before.1);
    let release = || -> Result<serde_json::Value, Box<dyn std::error::Error>> {
        let released = host.run(["usherd", "release", "--json"])?.stdout;
        Ok(serde_json::from_str(&released)?)
    };
    // Not while it runs.
    let told = release()?;
    assert_eq!(told["protector_runs"], true, "{told}");
    assert_eq!(state_of_ipsec(&host)?, in_force);
    protector.stop()?;
    assert_eq!(state_of_ipsec(&host)?, in_force, "its end changes nothing");

    let told = release()?;
    assert!(told["protection"]["pins"].as_u64() > Some(0), "{told}");
    assert!(
        told["protection"]["spd_entries"].as_u64() > Some(0),
        "{told}"
    );
    assert_eq!(told["protection"]["sysctls"], true, "{told}");
    assert_eq!(state_of_ipsec(&host)?, before);
    for left in [
        "/sys/fs/bpf/usher_protector",
        "/run/usher/protector/former_sysctls",
    ] {
        assert!(!host.path(left).exists(), "{left}");
    }
    let again = release()?;
    let nothing = serde_json::json!({ "pins": 0, "spd_entries": 0, "sysctls": false });
    assert_eq!(again["protection"], nothing, "{again}");
    // It may come back.
    protector.start()?;
    assert_eq!(state_of_ipsec(&host)?, in_force);
    Ok(())
}
