//! The public keys that identify a user on this host: the lines of `authorized_keys`.

use std::collections::BTreeMap;

use usher_base::UserName;
use usher_policy::Name;
use usher_proto::Principals;
use usher_proto::key::KEY_FINGERPRINT_SIZE;
use usher_proto::key::{self, is_security_key, require_suitable};
use usher_proto::ssh_key::{self, HashAlg, PublicKey};

use crate::error::{ConfigurationError, KeyProblem};
use crate::key_options::{self, KeyOptions};

/// SHA-256 of a key's wire form (RFC 4253, section 6.6); `ssh-keygen -l` shows it.
pub type Fingerprint = [u8; KEY_FINGERPRINT_SIZE];

/// A key of a user's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserKey {
    /// The key, with its comment.
    pub key: PublicKey,
    /// The key's fingerprint, by which sessions name the key.
    pub fingerprint: Fingerprint,
    /// The key's purpose; none: no particular one.
    pub purpose: Option<Name>,
    /// The options of the key's line.
    pub options: KeyOptions,
}

impl UserKey {
    /// The time when the key's sessions must end: `end`, or earlier when the key expires earlier.
    #[must_use]
    pub fn latest(&self, end: u64) -> u64 {
        self.options.expires.map_or(end, |expires| expires.min(end))
    }

    /// Whether a certificate of this authority lets its holder act as the user.
    #[must_use]
    pub fn admits(&self, user: &UserName, principals: &Principals) -> bool {
        principals.names().any(|name| self.trusts(user, name))
    }

    /// Whether this authority is trusted to name the principal for the user.
    #[must_use]
    pub fn trusts(&self, user: &UserName, principal: &str) -> bool {
        match &self.options.principals {
            Some(admitted) => admitted.has(principal),
            None => principal == user.as_str(),
        }
    }

    /// The principals that this authority is trusted to name for the user.
    #[must_use]
    pub fn trusted<'k>(&'k self, user: &'k UserName) -> Vec<&'k str> {
        match &self.options.principals {
            Some(admitted) => admitted.names().collect(),
            None => vec![user.as_str()],
        }
    }

    /// Whether the key has expired at this time, in seconds since 1970.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        self.options.expires.is_some_and(|expires| expires <= now)
    }
}

/// The fingerprint of a key.
pub fn fingerprint(key: &PublicKey) -> Fingerprint {
    match key.fingerprint(HashAlg::Sha256) {
        ssh_key::Fingerprint::Sha256(bytes) => bytes,
        _ => unreachable!("asked for SHA-256"),
    }
}

/// The file name of a user's list of keys. In other lists' names, a dot and the purpose follow.
pub const LIST: &str = "authorized_keys";

/// The file name of a list.
#[must_use]
pub fn list_name(purpose: Option<&Name>) -> String {
    purpose.map_or_else(|| LIST.to_owned(), |purpose| format!("{LIST}.{purpose}"))
}

/// The file name of a private key that the signer keeps. No user's name has an `@`.
#[must_use]
pub fn private_key_name(user: &UserName, purpose: Option<&Name>) -> String {
    purpose.map_or_else(|| user.to_string(), |purpose| format!("{user}@{purpose}"))
}

/// Parses an authorized_keys-style list, of keys for `purpose`.
///
/// # Errors
/// Names the first line that is not a key Usher takes.
pub fn parse_keys(
    user: &UserName,
    purpose: Option<&Name>,
    text: &str,
) -> Result<Vec<UserKey>, ConfigurationError> {
    let mut keys = Vec::new();
    for (number, line) in key_lines(text) {
        let (key, options) = parse_line(line).map_err(|reason| ConfigurationError::Line {
            list: format!("{user}: {}", list_name(purpose)),
            line: number,
            reason,
        })?;
        keys.push(UserKey {
            fingerprint: fingerprint(&key),
            key,
            purpose: purpose.cloned(),
            options,
        });
    }
    Ok(keys)
}

/// The lines of a list with their numbers from 1, without blank lines and comments.
pub fn key_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(str::trim).zip(1..);
    lines
        .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
        .map(|(line, number)| (number, line))
}

fn parse_line(line: &str) -> Result<(PublicKey, KeyOptions), KeyProblem> {
    let (key, options) = match key::parse_line(line) {
        Ok(key) => (key, KeyOptions::default()),
        Err(error) => {
            let (options, key) = key_options::split(line);
            let key = key::parse_line(key).map_err(|_| KeyProblem::NotAKey(error))?;
            (key, KeyOptions::parse(options)?)
        }
    };
    require_suitable(key.key_data())?;
    if options.authority && is_security_key(&key.algorithm()) {
        return Err(KeyProblem::Authority);
    }
    Ok((key, options))
}

/// The authorities in a list of public keys, one a line, by their fingerprints.
///
/// # Errors
/// The number from 1 of the first wrong line, and its fault.
pub fn parse_authorities(
    text: &str,
) -> Result<BTreeMap<Fingerprint, PublicKey>, (usize, KeyProblem)> {
    let mut authorities = BTreeMap::new();
    for (number, line) in key_lines(text) {
        let wrong = |reason| (number, reason);
        let (key, _) = parse_line(line).map_err(wrong)?;
        if key::parse_line(line).is_err() {
            return Err(wrong(KeyProblem::OptionsOfAnAuthority));
        }
        if is_security_key(&key.algorithm()) {
            return Err(wrong(KeyProblem::Authority));
        }
        authorities.insert(fingerprint(&key), key);
    }
    Ok(authorities)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_options::OptionProblem;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k";

    #[test]
    fn a_bad_key_line_is_named() {
        let alice = "alice".parse().unwrap();
        let good = format!("# comment\n\n{KEY} alice@laptop\n");
        let bad = format!("{good}nonsense\n");
        assert_eq!(parse_keys(&alice, None, &good).unwrap().len(), 1);
        match parse_keys(&alice, None, &bad) {
            Err(ConfigurationError::Line { line: 4, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blanks_before_a_key_are_not_counted() {
        let alice = "alice".parse().unwrap();
        let (kind, key) = KEY.split_once(' ').unwrap();
        let listed = |line: &str| parse_keys(&alice, None, line).map(|mut keys| keys.remove(0));
        let plain = listed(KEY).unwrap();
        for blanks in ["  ", "\t", "\t  "] {
            let line = format!("{kind}{blanks}{key}{blanks}");
            assert_eq!(listed(&line).unwrap(), plain, "{line:?}");
            assert_eq!(parse_authorities(&line).unwrap().len(), 1);
            let ends = listed(&format!("expiry-time=\"19700102Z\"{blanks}{line}")).unwrap();
            assert_eq!(ends.fingerprint, plain.fingerprint);
            assert_eq!(ends.options.expires, Some(86_400));
        }
    }

    #[test]
    fn authorities_are_keys_and_nothing_else() {
        let read = |text: &str| parse_authorities(text).map(|found| found.len());
        assert_eq!(read("# none\n\n").unwrap(), 0);
        assert_eq!(read(&format!("{KEY} ca\n{KEY}\n")).unwrap(), 1);
        for (line, text) in [(1, "nonsense"), (2, "#\ncert-authority "), (1, "restrict ")] {
            let (found, _) = parse_authorities(&format!("{text}{KEY}")).unwrap_err();
            assert_eq!(found, line);
        }
    }

    #[test]
    fn an_authority_is_on_no_security_key_and_a_users_key_may_be() {
        const SECURITY_KEY: &str = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2g\
                                    uY29tAAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7kAAAABHNzaDo=";
        let alice = "alice".parse().unwrap();
        let listed = |line: &str| parse_keys(&alice, None, line).map(|keys| keys.len());
        let among_all = |line: &str| parse_authorities(line).map(|found| found.len());
        assert_eq!(listed(SECURITY_KEY).unwrap(), 1);
        assert_eq!(listed(&format!("cert-authority {KEY}")).unwrap(), 1);
        assert!(matches!(
            listed(&format!("cert-authority {SECURITY_KEY}")),
            Err(ConfigurationError::Line {
                line: 1,
                reason: KeyProblem::Authority,
                ..
            })
        ));
        assert_eq!(among_all(KEY).unwrap(), 1);
        let refused = among_all(&format!("{KEY}\n{SECURITY_KEY}"));
        assert!(
            matches!(refused, Err((2, KeyProblem::Authority))),
            "{refused:?}"
        );
    }

    #[test]
    fn a_key_has_its_options_or_none_and_wrong_ones_are_named() {
        let alice = "alice".parse().unwrap();
        let list = format!("{KEY}\nexpiry-time=\"19700102Z\",restrict\t {KEY} alice@laptop\n");
        let keys = parse_keys(&alice, None, &list).unwrap();
        assert_eq!(keys[0].options, KeyOptions::default());
        assert_eq!(keys[1].options.expires, Some(86_400));
        assert_eq!(keys[0].fingerprint, keys[1].fingerprint);
        assert!(keys[1].has_expired(86_400) && !keys[1].has_expired(86_399));
        assert!(!keys[0].has_expired(u64::MAX));
        let wrong = format!("{list}command=\"x\" {KEY}\n");
        match parse_keys(&alice, None, &wrong) {
            Err(ConfigurationError::Line {
                line: 3,
                reason: KeyProblem::Option(OptionProblem::NotTaken { .. }),
                ..
            }) => {}
            other => panic!("{other:?}"),
        }
    }
}
