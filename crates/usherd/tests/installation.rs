//! `make uninstall` removes exactly what `make install` installs.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a target of the Makefile with `folder` as the root of the installation, and with stand-ins
/// for the built programs and libraries.
fn make(target: &str, folder: &Path) {
    let built = folder.join("target/release");
    fs::create_dir_all(&built).unwrap();
    let programs = [
        "usher",
        "usherd",
        "usher-pam",
        "usher-identify",
        "getfmac",
        "setfmac",
        "setfsmac",
        "getpmac",
        "setpmac",
    ];
    let libraries = ["libusher.so", "libusher.a", "libpam_usher.so"];
    for name in programs.into_iter().chain(libraries) {
        fs::copy("/bin/true", built.join(name)).unwrap();
    }
    let mut make = Command::new("make");
    // Do not use the job server of the make that runs the tests.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.arg("-C")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .arg(target)
        // Nothing is built.
        .arg("CARGO=true")
        .arg(format!(
            "CARGO_TARGET_DIR={}",
            folder.join("target").display()
        ))
        .arg(format!("DESTDIR={}", folder.join("root").display()));
    let output = make.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .flat_map(|entry| {
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path())
            } else {
                vec![entry.path()]
            }
        })
        .collect()
}

#[test]
fn what_is_installed_is_uninstalled_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    make("install", folder.path());
    let installed = files(&root);
    let has = |name: &str| installed.iter().any(|path| path.ends_with(name));
    for name in [
        "sbin/usherd",
        "sbin/usher-pam",
        "sbin/usher-identify",
        "sbin/setfsmac",
        "etc/pam.d/usher",
        "security/pam_usher.so",
        "system/usher-keeper.service",
        "system/usher-workers.service",
        "system/usher-release.service",
        "man8/usherd.8",
        "man3/pre_accept.3",
    ] {
        assert!(has(name), "{name} is not in {installed:?}");
    }
    // Files of another package and of the administrator.
    let others = [
        "usr/local/bin/other",
        "usr/local/share/man/man8/other.8",
        "etc/usher/host_key",
    ];
    for other in others.map(|other| root.join(other)) {
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::write(other, ".so man8/another.8\n").unwrap();
    }
    make("uninstall", folder.path());
    let mut left = files(&root);
    left.sort();
    let mut expected = others.map(|other| root.join(other));
    expected.sort();
    assert_eq!(left, expected);
    make("uninstall", folder.path());
    // A file that the administrator has changed is neither replaced nor removed.
    let service = root.join("etc/pam.d/usher");
    fs::write(&service, "account required pam_permit.so\n").unwrap();
    make("install", folder.path());
    make("uninstall", folder.path());
    let kept = fs::read_to_string(&service).unwrap();
    assert_eq!(kept, "account required pam_permit.so\n");
}
