//! Against the real ssh-keygen: what we sign it verifies, what it signs we verify, and the same
//! refusals on both sides.
#![forbid(unsafe_code)]

mod common;

use common::{blob, statement};
use std::fs;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use usher_proto::ssh_key::{Algorithm, PrivateKey};
use usher_proto::{Authenticator, HostPublicKey, NAMESPACE, Refusal, SignError};

fn ssh_keygen(folder: &Path) -> Command {
    let mut command = Command::new("ssh-keygen");
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// A folder with a key pair `key`, `key.pub` made by ssh-keygen.
fn folder_with_key(arguments: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = ssh_keygen(folder.path())
        .args(["-q", "-C", "alice@laptop", "-f", "key"])
        .args(arguments)
        .status()
        .expect("ssh-keygen (Debian package openssh-client) is needed");
    assert!(made.success(), "{arguments:?}");
    folder
}

fn private_key(folder: &Path) -> PrivateKey {
    PrivateKey::from_openssh(fs::read_to_string(folder.join("key")).unwrap()).unwrap()
}

/// `ssh-keygen -Y verify` as an auditor of the log would call it.
fn verifies(folder: &Path, namespace: &str, signed: &Authenticator) -> bool {
    let public = fs::read_to_string(folder.join("key.pub")).unwrap();
    fs::write(folder.join("allowed_signers"), format!("alice {public}")).unwrap();
    fs::write(
        folder.join("statement.sig"),
        signed.signature_pem().unwrap(),
    )
    .unwrap();
    fs::write(folder.join("statement"), &signed.statement).unwrap();
    ssh_keygen(folder)
        .args(["-Y", "verify", "-f", "allowed_signers", "-I", "alice"])
        .args(["-n", namespace, "-s", "statement.sig"])
        .stdin(File::open(folder.join("statement")).unwrap())
        .status()
        .unwrap()
        .success()
}

/// `ssh-keygen -Y sign`.
fn sign(folder: &Path, options: &[&str]) -> Authenticator {
    let statement = statement().encode();
    fs::write(folder.join("statement"), &statement).unwrap();
    let signed = ssh_keygen(folder)
        .args(["-Y", "sign", "-f", "key"])
        .args(options)
        .arg("statement")
        .status()
        .unwrap();
    assert!(signed.success(), "{options:?}");
    let pem = fs::read_to_string(folder.join("statement.sig")).unwrap();
    Authenticator {
        statement,
        signature: blob(&pem),
    }
}

const KINDS: [&[&str]; 3] = [
    &["-N", "", "-t", "ed25519"],
    &["-N", "", "-t", "ecdsa", "-b", "256"],
    &["-N", "", "-t", "ecdsa", "-b", "384"],
];

#[test]
fn ssh_keygen_verifies_what_we_sign() {
    for kind in KINDS {
        let folder = folder_with_key(kind);
        let signed = Authenticator::sign(&statement(), &private_key(folder.path())).unwrap();
        assert!(verifies(folder.path(), NAMESPACE, &signed), "{kind:?}");
        assert!(!verifies(folder.path(), "file", &signed), "{kind:?}");
        let mut changed = signed;
        changed.statement[30] ^= 1;
        assert!(!verifies(folder.path(), NAMESPACE, &changed), "{kind:?}");
    }
}

#[test]
fn we_verify_what_ssh_keygen_signs() {
    for kind in KINDS {
        let folder = folder_with_key(kind);
        // ECDSA numbers vary in length: try some signatures of each kind.
        for _ in 0..8 {
            fs::remove_file(folder.path().join("statement.sig")).ok();
            let mut signed = sign(folder.path(), &["-n", NAMESPACE]);
            let key = signed.verify_signature().unwrap();
            let expected = private_key(folder.path());
            assert_eq!(key.key_data(), expected.public_key().key_data(), "{kind:?}");
            signed.statement[30] ^= 1;
            assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
        }
    }
}

#[test]
fn we_refuse_what_ssh_keygen_signs_for_another_purpose_or_with_another_key() {
    let folder = folder_with_key(KINDS[0]);
    let signed = sign(folder.path(), &["-n", "file"]);
    assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));

    fs::remove_file(folder.path().join("statement.sig")).unwrap();
    let signed = sign(folder.path(), &["-n", NAMESPACE, "-O", "hashalg=sha256"]);
    assert_eq!(signed.verify_signature(), Err(Refusal::UnsupportedKey));

    let folder = folder_with_key(&["-N", "", "-t", "rsa", "-b", "2048"]);
    let signed = sign(folder.path(), &["-n", NAMESPACE]);
    assert_eq!(signed.verify_signature(), Err(Refusal::UnsupportedKey));
}

#[test]
fn keys_that_cannot_be_used_say_why() {
    let folder = folder_with_key(&["-N", "", "-t", "rsa", "-b", "2048"]);
    assert!(matches!(
        Authenticator::sign(&statement(), &private_key(folder.path())),
        Err(SignError::UnsupportedKey(Algorithm::Rsa { .. }))
    ));
    let folder = folder_with_key(&["-N", "passphrase", "-t", "ed25519"]);
    assert_eq!(
        Authenticator::sign(&statement(), &private_key(folder.path())),
        Err(SignError::Encrypted)
    );
}

#[test]
fn host_keys_read_and_print_as_ssh_keygen_does() {
    let folder = folder_with_key(KINDS[0]);
    let line = fs::read_to_string(folder.path().join("key.pub")).unwrap();
    let key = HostPublicKey::from_openssh(&line).unwrap();
    assert_eq!(format!("{key} alice@laptop\n"), line);
    let shown = ssh_keygen(folder.path())
        .args(["-l", "-E", "sha256", "-f", "key.pub"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.split(' ').nth(1), Some(key.fingerprint().as_str()));

    let folder = folder_with_key(KINDS[1]);
    let line = fs::read_to_string(folder.path().join("key.pub")).unwrap();
    HostPublicKey::from_openssh(&line).unwrap_err();
}
