//! The public keys by which a user is known on this host: the lines of `authorized_keys`.

use usher_proto::keeper_record::KEY_FINGERPRINT_SIZE;
use usher_proto::name::UserName;
use usher_proto::ssh_key::{Algorithm, Error, HashAlg, PublicKey};

use crate::applied::ConfigurationError;

/// SHA-256 of a key's wire form (RFC 4253 section 6.6), as `ssh-keygen -l` shows it.
pub type Fingerprint = [u8; KEY_FINGERPRINT_SIZE];

/// A key of a user's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserKey {
    /// The key, with its comment.
    pub key: PublicKey,
    /// Its fingerprint, by which sessions name it.
    pub fingerprint: Fingerprint,
}

/// What is wrong with a line of a key list.
#[derive(Debug, thiserror::Error)]
pub enum KeyProblem {
    /// It does not parse.
    #[error("not an OpenSSH public key ({0})")]
    NotAKey(Error),
    /// Its algorithm is not taken.
    #[error("{0} keys are not taken")]
    Algorithm(String),
}

/// The fingerprint of a key; nothing for one that has no wire form.
pub fn fingerprint(key: &PublicKey) -> Option<Fingerprint> {
    key.fingerprint(HashAlg::Sha256).sha256()
}

/// Parses an authorized_keys-style list.
///
/// # Errors
/// Names the first line that is not a key Usher takes.
pub fn parse_keys(user: &UserName, text: &str) -> Result<Vec<UserKey>, ConfigurationError> {
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = parse_key(line).map_err(|reason| ConfigurationError::Key {
            user: user.clone(),
            line: index + 1,
            reason,
        })?;
        keys.push(key);
    }
    Ok(keys)
}

fn parse_key(line: &str) -> Result<UserKey, KeyProblem> {
    let key = PublicKey::from_openssh(line).map_err(KeyProblem::NotAKey)?;
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => {}
        other => return Err(KeyProblem::Algorithm(other.to_string())),
    }
    let fingerprint =
        fingerprint(&key).ok_or_else(|| KeyProblem::Algorithm(key.algorithm().to_string()))?;
    Ok(UserKey { key, fingerprint })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k";

    #[test]
    fn a_bad_key_line_is_named() {
        let alice = "alice".parse().unwrap();
        let good = format!("# comment\n\n{KEY} alice@laptop\n");
        let bad = format!("{good}nonsense\n");
        assert_eq!(parse_keys(&alice, &good).unwrap().len(), 1);
        match parse_keys(&alice, &bad) {
            Err(ConfigurationError::Key { line: 4, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
