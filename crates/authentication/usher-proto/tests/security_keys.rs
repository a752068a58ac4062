//! Keys on a security key: the real ssh-keygen with a security key in software.
#![forbid(unsafe_code)]

mod common;

use common::ssh_keygen::{make_key, ssh_keygen};
use common::{blob, statement};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use usher_proto::ssh_key::{PrivateKey, PublicKey};
use usher_proto::{Authenticator, Certificate, NAMESPACE, Refusal, SignError};

const KINDS: [&str; 2] = ["ed25519-sk", "ecdsa-sk"];

/// A security key in software, and ssh-keygen's files.
struct SecurityKey(TempDir);

impl SecurityKey {
    /// Makes a key pair of this kind, `key` and `key.pub`.
    fn new(kind: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../tests/lab/programs/security_key.c"
        );
        let compiled = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(folder.path().join("security_key.so"))
            .arg(source)
            .arg("-lcrypto")
            .status()
            .unwrap();
        assert!(
            compiled.success(),
            "{source} (Debian package libssl-dev is needed)"
        );
        let key = Self(folder);
        key.put("hand");
        let made = key
            .ssh_keygen()
            .args([
                "-q",
                "-t",
                kind,
                "-N",
                "",
                "-C",
                "alice@laptop",
                "-f",
                "key",
            ])
            .args(options)
            .status()
            .expect("ssh-keygen (Debian package openssh-client) is needed");
        assert!(made.success(), "{kind}");
        key
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Tells the device how to behave: see `security_key.c`.
    fn put(&self, name: &str) {
        fs::write(self.path().join(name), "").unwrap();
    }

    fn take(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    fn ssh_keygen(&self) -> Command {
        let mut command = ssh_keygen(self.path());
        command
            .env("SSH_SK_PROVIDER", self.path().join("security_key.so"))
            .env("SECURITY_KEY", self.path());
        command
    }

    fn sign(&self) -> Authenticator {
        let statement = statement().encode();
        fs::write(self.path().join("statement"), &statement).unwrap();
        fs::remove_file(self.path().join("statement.sig")).ok();
        let signed = self
            .ssh_keygen()
            .args(["-Y", "sign", "-f", "key", "-n", NAMESPACE, "statement"])
            .status()
            .unwrap();
        assert!(signed.success());
        let pem = fs::read_to_string(self.path().join("statement.sig")).unwrap();
        Authenticator {
            statement,
            signature: blob(&pem),
        }
    }

    fn public_key(&self) -> PublicKey {
        let line = fs::read_to_string(self.path().join("key.pub")).unwrap();
        PublicKey::from_openssh(&line).unwrap()
    }

    /// Whether `ssh-keygen -Y verify` accepts the signature.
    fn ssh_keygen_verifies(&self, signed: &Authenticator) -> bool {
        let public = fs::read_to_string(self.path().join("key.pub")).unwrap();
        self.ssh_keygen_verifies_by(signed, &format!("alice {public}"))
    }

    fn ssh_keygen_verifies_by(&self, signed: &Authenticator, signers: &str) -> bool {
        fs::write(self.path().join("allowed_signers"), signers).unwrap();
        fs::write(
            self.path().join("ours.sig"),
            signed.signature_pem().unwrap(),
        )
        .unwrap();
        fs::write(self.path().join("ours"), &signed.statement).unwrap();
        self.ssh_keygen()
            .args(["-Y", "verify", "-f", "allowed_signers", "-I", "alice"])
            .args(["-n", NAMESPACE, "-s", "ours.sig"])
            .stdin(File::open(self.path().join("ours")).unwrap())
            .status()
            .unwrap()
            .success()
    }
}

/// Flags and counter: the last bytes of the blob.
fn trailer(signed: &Authenticator) -> (u8, u32) {
    let (_, trailer) = signed.signature.split_last_chunk::<5>().unwrap();
    let [flags, counter @ ..] = *trailer;
    (flags, u32::from_be_bytes(counter))
}

#[test]
fn a_touched_security_keys_signature_verifies_as_in_ssh_keygen() {
    for kind in KINDS {
        let key = SecurityKey::new(kind, &[]);
        // ECDSA numbers vary in length: try some signatures of each kind.
        for count in 1..=8 {
            let mut signed = key.sign();
            assert_eq!(trailer(&signed), (1, count), "{kind}");
            let signer = signed.verify_signature().unwrap();
            assert_eq!(signer.key.key_data(), key.public_key().key_data(), "{kind}");
            assert!(key.ssh_keygen_verifies(&signed), "{kind}");
            signed.statement[30] ^= 1;
            assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
            assert!(!key.ssh_keygen_verifies(&signed), "{kind}");
        }
    }
}

#[test]
fn a_security_keys_certificate_may_stand_in_its_place() {
    for kind in KINDS {
        let key = SecurityKey::new(kind, &[]);
        for arguments in [
            &["-q", "-t", "ed25519", "-N", "", "-f", "ca"][..],
            &["-q", "-s", "ca", "-I", "id", "-n", "alice", "key.pub"],
        ] {
            assert!(key.ssh_keygen().args(arguments).status().unwrap().success());
        }
        let line = fs::read_to_string(key.path().join("key-cert.pub")).unwrap();
        let certificate = Certificate::parse(&line).unwrap();
        let signed = key.sign().with_certificate(&certificate).unwrap();
        let found = signed.verify_signature().unwrap();
        assert_eq!(found.key.key_data(), key.public_key().key_data(), "{kind}");
        assert_eq!(found.certificate, Some(certificate), "{kind}");
        let authority = fs::read_to_string(key.path().join("ca.pub")).unwrap();
        let signers = format!("alice cert-authority {authority}");
        assert!(key.ssh_keygen_verifies_by(&signed, &signers), "{kind}");
    }
}

#[test]
fn a_security_key_certifies_nobody_and_another_authority_does() {
    for kind in KINDS {
        let key = SecurityKey::new(kind, &[]);
        let certified_by = |authority: &str| {
            let certify = ["-q", "-s", authority, "-I", "id", "-n", "alice", "user.pub"];
            assert!(key.ssh_keygen().args(certify).status().unwrap().success());
            let line = fs::read_to_string(key.path().join("user-cert.pub")).unwrap();
            Certificate::parse(&line).map(|certificate| certificate.key_id)
        };
        for name in ["ca", "user"] {
            make_key(key.path(), name, "ed25519");
        }
        assert_eq!(certified_by("ca").as_deref(), Ok("id"));
        assert_eq!(certified_by("key"), Err(Refusal::UnsupportedKey), "{kind}");
    }
}

#[test]
fn what_a_security_key_signs_untouched_is_refused() {
    for kind in KINDS {
        let key = SecurityKey::new(kind, &["-O", "no-touch-required"]);
        key.take("hand");
        key.put("touchless");
        let mut signed = key.sign();
        assert_eq!(trailer(&signed).0, 0, "{kind}");
        assert_eq!(signed.verify_signature(), Err(Refusal::UserNotPresent));
        // The signature itself is valid, and covers the flags: none can be added.
        assert!(key.ssh_keygen_verifies(&signed), "{kind}");
        let flags = signed.signature.len() - 5;
        signed.signature[flags] |= 1;
        assert_eq!(signed.verify_signature(), Err(Refusal::BadSignature));
        // The same key signs with a touch.
        key.put("hand");
        key.sign().verify_signature().unwrap();
    }
}

#[test]
fn flags_and_counter_are_part_of_what_is_signed() {
    for kind in KINDS {
        let key = SecurityKey::new(kind, &[]);
        let signed = key.sign();
        signed.verify_signature().unwrap();
        let length = signed.signature.len();
        for place in length - 5..length {
            let mut changed = signed.clone();
            changed.signature[place] ^= 4;
            assert_eq!(changed.verify_signature(), Err(Refusal::BadSignature));
            assert!(!key.ssh_keygen_verifies(&changed), "{kind} {place}");
        }
    }
}

#[test]
fn a_security_keys_application_is_kept_as_it_is() {
    for kind in KINDS {
        let key = SecurityKey::new(kind, &["-O", "application=ssh:usher"]);
        let signed = key.sign();
        let signer = signed.verify_signature().unwrap();
        assert_eq!(signer.key.key_data(), key.public_key().key_data());
        // The application is a part of the public key, by which a user is known.
        let mut other = signed.clone();
        let place = other
            .signature
            .windows(9)
            .position(|bytes| bytes == b"ssh:usher")
            .unwrap();
        other.signature[place + 8] = b'R';
        assert_eq!(other.verify_signature(), Err(Refusal::BadSignature));
    }
}

#[test]
fn the_file_of_a_security_key_signs_nothing_by_itself() {
    for kind in KINDS {
        let key = SecurityKey::new(kind, &[]);
        let text = fs::read_to_string(key.path().join("key")).unwrap();
        let file = PrivateKey::from_openssh(text).unwrap();
        assert!(matches!(
            Authenticator::sign(&statement(), &file),
            Err(SignError::UnsupportedKey(_))
        ));
    }
}

/// Writes the corpus's signatures by security keys. It tests nothing.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/authenticator");
    for kind in KINDS {
        let key = SecurityKey::new(kind, &["-O", "no-touch-required"]);
        let signature = key.sign().signature;
        fs::write(folder.join(format!("accepted-{kind}.bin")), &signature).unwrap();
        let mut counter = signature.clone();
        *counter.last_mut().unwrap() ^= 1;
        fs::write(
            folder.join(format!("bad_signature-{kind}-counter.bin")),
            counter,
        )
        .unwrap();
        let without = &signature[..signature.len() - 5];
        fs::write(
            folder.join(format!("truncated-{kind}-trailer.bin")),
            without,
        )
        .unwrap();
        // The trailer inside the string that holds the value.
        if kind == "ecdsa-sk" {
            let mut inside = signature.clone();
            let name = b"sk-ecdsa-sha2-nistp256@openssh.com";
            let last = inside
                .windows(name.len())
                .rposition(|bytes| bytes == name)
                .unwrap();
            inside[last + name.len() + 3] += 5;
            fs::write(
                folder.join(format!("malformed-{kind}-trailer-inside.bin")),
                inside,
            )
            .unwrap();
        }
        key.take("hand");
        key.put("touchless");
        let untouched = key.sign().signature;
        fs::write(
            folder.join(format!("user_not_present-{kind}.bin")),
            untouched,
        )
        .unwrap();
    }
}
