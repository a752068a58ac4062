//! Faults of a configuration.

use std::io;
use std::path::PathBuf;

use usher_base::UserName;
use usher_policy::{Need, PolicyError};
use usher_proto::key::UnsuitableKey;
use usher_proto::{RevokedKeysError, ssh_key};

use crate::key_options::OptionProblem;
use crate::paths;

/// Largest policy file or key list read.
pub const MAX_FILE: u64 = 1 << 20;

/// A configuration that cannot be read, checked or written. Most begin with the path at fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// A file cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// A file is larger than [`MAX_FILE`].
    #[error("{0}: the file is larger than {MAX_FILE} bytes")]
    TooLarge(PathBuf),
    /// The file of the applied configuration is damaged.
    #[error("{0}: not an applied configuration ({1}); run `usher policy apply` to rewrite it")]
    Damaged(PathBuf, serde_json::Error),
    /// Received bytes are not a configuration.
    #[error("not a configuration in the form of {path}: {0}", path = paths::APPLIED)]
    Unreadable(serde_json::Error),
    /// A folder's name below the users' directory is not a user name.
    #[error("{0}: not a user name; remove or rename the folder")]
    NotAUser(PathBuf),
    /// A list of keys has a purpose that no policy can name.
    #[error(
        "{user}: authorized_keys.{found}: {found:?} cannot be a purpose of keys: {}; rename the \
         file",
        usher_policy::InvalidName
    )]
    KeysFor {
        /// The user of the list.
        user: UserName,
        /// The purpose in its name.
        found: String,
    },
    /// A line of a list of keys is no public key that Usher takes.
    #[error("{list} line {line}: {reason}")]
    Line {
        /// The list: its path, or its user and name.
        list: String,
        /// Line, from 1.
        line: usize,
        /// Its fault.
        reason: KeyProblem,
    },
    /// A fault of a user's keys in a copy of another host's files, after the copy's directory of users.
    #[error("{0}/{1}")]
    UserOfCopy(PathBuf, Box<ConfigurationError>),
    /// The list of revoked keys is damaged.
    #[error("{0}: {1}")]
    RevokedKeys(PathBuf, RevokedKeysError),
    /// The policy says something that this version cannot enforce.
    #[error(
        "{}: {} needs {}, which this version does not have; keep such blocks in a file whose name \
         does not end in .policy (`usher policy check FILE` reads it)", .0.place, .0.says, .0.needs
    )]
    NotEnforced(Box<Need>),
    /// The policy has errors.
    #[error("the policy has {} error(s)", .0.len())]
    Policy(Vec<PolicyError>),
}

/// The fault of a line of a key list.
#[derive(Debug, thiserror::Error)]
pub enum KeyProblem {
    /// The line's key does not parse.
    #[error(
        "not an OpenSSH public key ({0}); give one a line (Ed25519, ECDSA or RSA), as ssh-keygen \
         writes it to the .pub file"
    )]
    NotAKey(ssh_key::Error),
    /// Neither a user nor an authority may have this key.
    #[error(transparent)]
    Unsuitable(#[from] UnsuitableKey),
    /// An authority on a security key.
    #[error("Usher does not take an authority on a security key; use an Ed25519, ECDSA or RSA key")]
    Authority,
    /// The line has options, which this file cannot have.
    #[error("this file has no options, as for sshd; give one public key a line")]
    OptionsOfAnAuthority,
    /// An option before the key is wrong.
    #[error(transparent)]
    Option(#[from] OptionProblem),
}
