//! systemd accepts the units of packaging/systemd.
#![forbid(unsafe_code)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use usher_daemon::role::{HasRole, Role};
use usher_local::roles::{self, ROLES};

/// The examples need the system's units, so both are checked together.
const KINDS: [&str; 2] = ["system", "user"];

/// systemd's complaints about Usher's units of a kind, after `change`.
fn complaints(kind: &str, change: impl Fn(&str) -> String) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let (folders, option) = match kind {
        "user" => (vec![ours.join(kind)], "--user"),
        _ => (vec![ours.join("examples"), ours], "--system"),
    };
    // The programs must exist; they are not started.
    let program = folder.path().join("program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut names = Vec::new();
    let entries = folders.iter().flat_map(|ours| fs::read_dir(ours).unwrap());
    for entry in entries.map(Result::unwrap) {
        if !entry.file_type().unwrap().is_file() {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        let start = text.lines().find(|line| line.starts_with("ExecStart="));
        let installed = start.unwrap().split(['=', ' ']).nth(1).unwrap();
        let here = format!("ExecStart={}", program.display());
        let text = change(&text).replace(&format!("ExecStart={installed}"), &here);
        let name = entry.file_name().into_string().unwrap();
        fs::write(folder.path().join(&name), text).unwrap();
        names.push(name);
    }
    assert!(!names.is_empty());
    let output = Command::new("systemd-analyze")
        .args([option, "verify", "--man=no"])
        .args(&names)
        // The system's units come after Usher's.
        .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()))
        .env("XDG_RUNTIME_DIR", folder.path())
        .output()
        .expect("systemd-analyze, of Debian's package systemd");
    let said = String::from_utf8(output.stderr).unwrap();
    let of_ours = said.lines().filter(|line| {
        // Complaints about other packages' units do not count.
        names.iter().any(|name| line.contains(name.as_str()))
    });
    of_ours.map(str::to_owned).collect()
}

#[test]
fn systemd_understands_the_units() {
    for kind in KINDS {
        assert_eq!(complaints(kind, str::to_owned), [""; 0], "{kind}");
    }
}

#[test]
fn a_mistake_in_a_unit_is_noticed() {
    for kind in KINDS {
        let mistaken = |text: &str| text.replace("[Service]", "[Service]\nType=notfy");
        let missing = |text: &str| text.replace("ExecStart=/", "ExecStart=/missing/");
        for (change, said) in [
            (&mistaken as &dyn Fn(&str) -> String, "notfy"),
            (&missing, "/missing"),
        ] {
            let complaints = complaints(kind, change);
            assert!(
                complaints.join("\n").contains(said),
                "{kind}: {complaints:?}"
            );
        }
    }
}

/// The text of a role's unit, if it has one.
fn unit_of(role: &Role) -> Option<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let name = format!("usher-{}.service", role.name);
    let unit = [folder.join(&name), folder.join("user").join(&name)];
    unit.iter().find_map(|path| fs::read_to_string(path).ok())
}

fn value<'a>(unit: &'a str, name: &str) -> Option<&'a str> {
    unit.lines().find_map(|line| line.strip_prefix(name))
}

#[test]
fn each_role_but_the_starter_has_a_unit_of_its_name() {
    for role in ROLES.iter().filter(|role| role.name != "starter") {
        let unit = unit_of(role).unwrap_or_else(|| panic!("no unit of the {}", role.name));
        let identifier = value(&unit, "SyslogIdentifier=").unwrap();
        assert_eq!(identifier.strip_prefix("usher-"), Some(role.name));
        let start = value(&unit, "ExecStart=").unwrap();
        let program = start.split(' ').nth(1);
        assert_eq!(program, Some(role.name), "{start}");
    }
}

#[test]
fn every_daemon_with_a_control_socket_has_a_watchdog() {
    let daemons = ROLES.iter().filter(|role| role.is_daemon());
    for role in daemons {
        let unit = unit_of(role).unwrap();
        for line in ["Type=notify", "WatchdogSec=60", "Restart=always"] {
            assert!(
                unit.lines().any(|other| other == line),
                "{}: {line}",
                role.name
            );
        }
    }
    // The workers' unit has no watchdog: it does nothing that could hang, and its end would end all users'
    // processes.
    let workers = unit_of(roles::Workers::ROLE).unwrap();
    assert_eq!(value(&workers, "WatchdogSec="), None);
}

#[test]
fn a_unit_leaves_its_role_the_capabilities_that_it_holds() {
    let bounded = |role: &Role| {
        let unit = unit_of(role)?;
        let set = value(&unit, "CapabilityBoundingSet=")?;
        Some(set.split(' ').map(str::to_owned).collect::<Vec<_>>())
    };
    let mut checked = 0;
    for role in ROLES {
        let Some(bounded) = bounded(role) else {
            continue;
        };
        for (name, _) in role.capabilities.iter_names() {
            assert!(bounded.contains(&format!("CAP_{name}")), "{}", role.name);
            checked += 1;
        }
    }
    assert!(checked > 0);
    // A unit that lacks a capability is detected.
    let proxy = bounded(roles::Proxy::ROLE).unwrap();
    assert!(!proxy.contains(&"CAP_KILL".to_owned()));
}

#[test]
fn packages_make_the_accounts_of_the_roles() {
    let text = include_str!("../../../packaging/sysusers.d/usher.conf");
    let users = text.lines().filter(|line| line.starts_with("u "));
    let made: Vec<_> = users.map(|line| line.split_whitespace().nth(1)).collect();
    let accounts = ROLES.iter().filter_map(|role| role.own_account());
    assert_eq!(made, accounts.map(Some).collect::<Vec<_>>());
}
