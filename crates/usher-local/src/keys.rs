//! The public keys by which a user is known on this host: the lines of `authorized_keys`.

use usher_proto::keeper_record::KEY_FINGERPRINT_SIZE;
use usher_proto::name::UserName;
use usher_proto::ssh_key::{Algorithm, Error, HashAlg, PublicKey};

use crate::applied::ConfigurationError;
use crate::key_options::{self, KeyOptions, OptionProblem};

/// SHA-256 of a key's wire form (RFC 4253 section 6.6), as `ssh-keygen -l` shows it.
pub type Fingerprint = [u8; KEY_FINGERPRINT_SIZE];

/// A key of a user's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserKey {
    /// The key, with its comment.
    pub key: PublicKey,
    /// Its fingerprint, by which sessions name it.
    pub fingerprint: Fingerprint,
    /// What the line says of it.
    pub options: KeyOptions,
}

impl UserKey {
    /// When what it opens ends at the latest, which otherwise would at `end`.
    #[must_use]
    pub fn latest(&self, end: u64) -> u64 {
        self.options.expires.map_or(end, |expires| expires.min(end))
    }

    /// Whether it has expired at this time, in seconds since 1970.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        self.options.expires.is_some_and(|expires| expires <= now)
    }
}

/// What is wrong with a line of a key list.
#[derive(Debug, thiserror::Error)]
pub enum KeyProblem {
    /// It does not parse.
    #[error(
        "not an OpenSSH public key ({0}); give one a line (Ed25519 or ECDSA), as ssh-keygen writes \
         it to the .pub file"
    )]
    NotAKey(Error),
    /// Its algorithm is not taken.
    #[error("{0} keys are not taken; use an Ed25519 or ECDSA key")]
    Algorithm(String),
    /// What stands before it is not taken.
    #[error(transparent)]
    Option(#[from] OptionProblem),
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
    let (key, options) = match (PublicKey::from_openssh(line), key_options::split(line)) {
        (Ok(key), _) => (key, KeyOptions::default()),
        (Err(error), (options, key)) => match PublicKey::from_openssh(key) {
            Ok(key) => (key, KeyOptions::parse(options)?),
            Err(_) => return Err(KeyProblem::NotAKey(error)),
        },
    };
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => {}
        other => return Err(KeyProblem::Algorithm(other.to_string())),
    }
    let fingerprint =
        fingerprint(&key).ok_or_else(|| KeyProblem::Algorithm(key.algorithm().to_string()))?;
    Ok(UserKey {
        key,
        fingerprint,
        options,
    })
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

    #[test]
    fn a_key_has_its_options_or_none_and_wrong_ones_are_named() {
        let alice = "alice".parse().unwrap();
        let list = format!("{KEY}\nexpiry-time=\"19700102Z\",restrict\t {KEY} alice@laptop\n");
        let keys = parse_keys(&alice, &list).unwrap();
        assert_eq!(keys[0].options, KeyOptions::default());
        assert_eq!(keys[1].options.expires, Some(86_400));
        assert_eq!(keys[0].fingerprint, keys[1].fingerprint);
        assert!(keys[1].has_expired(86_400) && !keys[1].has_expired(86_399));
        assert!(!keys[0].has_expired(u64::MAX));
        let wrong = format!("{list}command=\"x\" {KEY}\n");
        match parse_keys(&alice, &wrong) {
            Err(ConfigurationError::Key {
                line: 3,
                reason: KeyProblem::Option(OptionProblem::NotTaken { .. }),
                ..
            }) => {}
            other => panic!("{other:?}"),
        }
    }
}
