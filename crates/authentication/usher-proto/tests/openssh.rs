//! Against the real ssh-keygen: what we sign it verifies, what it signs we verify, and the same
//! refusals on both sides.
#![forbid(unsafe_code)]

mod common;

use common::ssh_keygen::{certify, does, make_key, ssh_keygen};
use common::{blob, statement};
use std::fs;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;
use usher_proto::key::{UnsuitableKey, require_suitable};
use usher_proto::ssh_key::public::{EcdsaPublicKey, KeyData};
use usher_proto::ssh_key::{Algorithm, PrivateKey, PublicKey};
use usher_proto::{Authenticator, Certificate, HostPublicKey, NAMESPACE, Refusal, SignError};

/// A folder with a key pair `key`, `key.pub` made by ssh-keygen.
fn folder_with_key(arguments: &[&str]) -> TempDir {
    let make = [&["-q", "-C", "alice@laptop", "-f", "key"][..], arguments].concat();
    loop {
        let folder = tempfile::tempdir().unwrap();
        assert!(does(folder.path(), &make), "{arguments:?}");
        // ssh-key 0.6.7 cannot read one ECDSA key in 256: those whose number begins with a zero.
        let text = fs::read_to_string(folder.path().join("key")).unwrap();
        if !arguments.contains(&"ecdsa") || PrivateKey::from_openssh(text).is_ok() {
            return folder;
        }
    }
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
            let key = signed.verify_signature().unwrap().key;
            let expected = private_key(folder.path());
            assert_eq!(key.key_data(), expected.public_key().key_data(), "{kind:?}");
            signed.statement[30] ^= 1;
            assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
        }
    }
}

/// A key has one fingerprint: with a compressed point it would have another, which a list that revokes the
/// key does not have.
// Threat model: A173
#[test]
fn a_key_in_another_spelling_is_refused() {
    for kind in &KINDS[1..] {
        let folder = folder_with_key(kind);
        let signed = sign(folder.path(), &["-n", NAMESPACE]);
        let key = PublicKey::from(private_key(folder.path()));
        assert_eq!(require_suitable(key.key_data()), Ok(()));
        let KeyData::Ecdsa(point) = key.key_data() else {
            panic!("another kind");
        };
        // One byte, and two numbers of the same length (SEC 1 section 2.3.3).
        let (x, y) = point.as_sec1_bytes()[1..].split_at(point.as_sec1_bytes().len() / 2);
        let compressed = [&[2 + (y[y.len() - 1] & 1)], x].concat();
        let other = KeyData::from(EcdsaPublicKey::from_sec1_bytes(&compressed).unwrap());
        let fault = require_suitable(&other);
        assert_eq!(fault, Err(UnsuitableKey::CompressedPoint), "{kind:?}");

        // In a signature, the key is behind six bytes and a number (PROTOCOL.sshsig).
        let (key, other) = (
            key.to_bytes().unwrap(),
            PublicKey::from(other).to_bytes().unwrap(),
        );
        let mut respelled = signed.clone();
        let part = |key: &[u8]| [&u32::try_from(key.len()).unwrap().to_be_bytes(), key].concat();
        let place = 10..10 + part(&key).len();
        assert_eq!(respelled.signature[place.clone()], part(&key));
        respelled.signature.splice(place, part(&other));
        let refused = respelled.verify_signature().map(|_| ());
        assert_eq!(refused, Err(Refusal::UnsupportedKey), "{kind:?}");
        assert!(signed.verify_signature().is_ok());
    }
}

#[test]
fn a_certified_signature_is_the_same_as_of_ssh_keygen() {
    for kind in KINDS {
        let folder = folder_with_key(kind);
        let path = folder.path();
        certify(path, "ecdsa", "alice,ops");
        let line = fs::read_to_string(path.join("key-cert.pub")).unwrap();
        let certificate = Certificate::parse(&line).unwrap();
        assert!(line.starts_with(&certificate.line()));
        fs::write(path.join("statement"), statement().encode()).unwrap();
        let sign = [
            "-q",
            "-Y",
            "sign",
            "-f",
            "key-cert.pub",
            "-n",
            NAMESPACE,
            "statement",
        ];
        assert!(does(path, &sign));
        let theirs = Authenticator {
            statement: statement().encode(),
            signature: blob(&fs::read_to_string(path.join("statement.sig")).unwrap()),
        };
        let plain = Authenticator::sign(&statement(), &private_key(path)).unwrap();
        let ours = plain.with_certificate(&certificate).unwrap();
        for mut signed in [theirs, ours] {
            let found = signed.verify_signature().unwrap();
            assert_eq!(
                found.key.key_data(),
                private_key(path).public_key().key_data()
            );
            assert_eq!(found.certificate.as_ref(), Some(&certificate), "{kind:?}");
            assert_eq!(found.public_key, certificate.as_bytes());
            assert!(signed.signature_pem().is_ok());
            signed.statement[30] ^= 1;
            assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
        }
        // A signature by another key is refused.
        let other = folder_with_key(kind);
        let foreign = Authenticator::sign(&statement(), &private_key(other.path())).unwrap();
        let refused = foreign.with_certificate(&certificate);
        assert_eq!(refused, Err(Refusal::BadSignature));
    }
}

#[test]
fn a_certificate_says_when_and_for_whom_it_is() {
    let folder = folder_with_key(KINDS[0]);
    let path = folder.path();
    make_key(path, "ca", "ed25519");
    let make = |options: &[&str]| {
        let sign = [&["-q", "-s", "ca", "-I", "id"], options, &["key.pub"]].concat();
        does(path, &sign).then(|| {
            let line = fs::read_to_string(path.join("key-cert.pub")).unwrap();
            Certificate::parse(&line)
        })
    };
    let good = make(&["-n", "alice,ops", "-V", "20300101Z:20300102Z"])
        .unwrap()
        .unwrap();
    assert_eq!(
        good.principals.names().collect::<Vec<_>>(),
        ["alice", "ops"]
    );
    let (after, before) = (good.valid_after, good.valid_before);
    assert_eq!(before - after, 86_400);
    assert_eq!(good.check(after - 1), Err(Refusal::CertificateNotYetValid));
    assert_eq!(good.check(after), Ok(()));
    assert_eq!(good.check(before - 1), Ok(()));
    assert_eq!(good.check(before), Err(Refusal::ExpiredCertificate));
    for (options, refusal) in [
        (&["-h"][..], Refusal::NotAUserCertificate),
        (
            &["-O", "source-address=10.0.0.0/8"],
            Refusal::CriticalOption,
        ),
        (&["-O", "verify-required"], Refusal::CriticalOption),
    ] {
        let certificate = make(options).unwrap().unwrap();
        assert_eq!(certificate.check(u64::MAX - 1), Err(refusal), "{options:?}");
    }
    // For ever, with an extension and no principal.
    let other = make(&["-O", "extension:x@example.org=1"]).unwrap().unwrap();
    assert_eq!(other.check(u64::MAX - 1), Ok(()));
    assert_eq!(other.principals.names().count(), 0);
    // As many principals as a service can be told of, and one more.
    let names = |length: usize| "p".repeat(length);
    assert!(make(&["-n", &names(511)]).unwrap().is_ok());
    assert_eq!(make(&["-n", &names(512)]).unwrap(), Err(Refusal::Oversized));
    // Two lines are no certificate, nor is a key.
    let line = good.line();
    assert_eq!(Certificate::parse(&format!("{line} x\n")), Ok(good));
    for wrong in [
        format!("{line}\n{line}"),
        line.replacen("ed25519", "ed25518", 1),
    ] {
        assert_eq!(Certificate::parse(&wrong), Err(Refusal::Malformed));
    }
    let key = fs::read_to_string(path.join("key.pub")).unwrap();
    assert_eq!(Certificate::parse(&key), Err(Refusal::Malformed));
}

#[test]
fn ssh_keygens_signature_of_another_purpose_or_key_is_refused() {
    let folder = folder_with_key(KINDS[0]);
    let signed = sign(folder.path(), &["-n", "file"]);
    assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));

    fs::remove_file(folder.path().join("statement.sig")).unwrap();
    let signed = sign(folder.path(), &["-n", NAMESPACE, "-O", "hashalg=sha256"]);
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
