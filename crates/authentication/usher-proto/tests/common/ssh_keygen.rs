//! The real ssh-keygen.

use std::path::Path;
use std::process::{Command, Stdio};

/// ssh-keygen in a folder, which asks nobody and says nothing.
pub fn ssh_keygen(folder: &Path) -> Command {
    let mut command = Command::new("ssh-keygen");
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Whether ssh-keygen does what these arguments ask of it.
pub fn does(folder: &Path, arguments: &[&str]) -> bool {
    ssh_keygen(folder)
        .args(arguments)
        .status()
        .expect("ssh-keygen (Debian package openssh-client) is needed")
        .success()
}

/// Makes a key pair `name`, `name.pub` of this kind, without a passphrase.
pub fn make_key(folder: &Path, name: &str, kind: &str) {
    let make = ["-q", "-t", kind, "-N", "", "-f", name];
    assert!(does(folder, &make), "{make:?}");
}

/// Makes an authority `ca` with a key of this kind, and has it certify the key of `key.pub` for
/// these principals, with the serial number 7: `key-cert.pub`.
pub fn certify(folder: &Path, kind: &str, principals: &str) {
    make_key(folder, "ca", kind);
    let sign = [
        "-q", "-s", "ca", "-I", "id", "-n", principals, "-z", "7", "key.pub",
    ];
    assert!(does(folder, &sign), "{sign:?}");
}
