//! The units of packaging/systemd are understood by systemd.
#![forbid(unsafe_code)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The examples are checked with those of the system, which they need.
const KINDS: [&str; 2] = ["system", "user"];

/// What systemd says of our units of a kind, which `change` may change.
fn complaints(kind: &str, change: impl Fn(&str) -> String) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let (folders, option) = match kind {
        "user" => (vec![ours.join(kind)], "--user"),
        _ => (vec![ours.join("examples"), ours], "--system"),
    };
    // What they start has to be there, and is not started.
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
        // With those of the system after ours.
        .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()))
        .env("XDG_RUNTIME_DIR", folder.path())
        .output()
        .expect("systemd-analyze, of Debian's package systemd");
    let said = String::from_utf8(output.stderr).unwrap();
    let of_ours = said.lines().filter(|line| {
        // What other packages' units lack is theirs.
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

#[test]
fn each_role_has_an_identifier_of_its_own_in_the_journal() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let mut roles = 0;
    for folder in [ours.clone(), ours.join("user")] {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let Some(role) = name.strip_suffix(".service") else {
                continue;
            };
            let text = fs::read_to_string(entry.path()).unwrap();
            let identifier = format!("SyslogIdentifier={role}");
            assert!(text.lines().any(|line| line == identifier), "{name}");
            roles += 1;
        }
    }
    assert!(roles >= 7, "{roles}");
}
