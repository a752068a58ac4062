//! Errors of the log.

use std::io;
use std::path::PathBuf;

use crate::checkpoint::CheckpointError;
use usher_proto::log_record::RecordError;

/// An operation on a log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A file cannot be read or written.
    #[error("{0}: {1}{remedy}", remedy = remedy(.1))]
    File(PathBuf, io::Error),
    /// This directory has no log.
    #[error("{0}: no log here (no file `verifier-key`); name the directory of one")]
    NoLog(PathBuf),
    /// Another process appends to the log.
    #[error("{0}: another process appends to this log; end that one first")]
    Locked(PathBuf),
    /// The log belongs to another key.
    #[error(
        "{path}: this log belongs to {found}, and the given key is {given}; use the log's own \
         key, or begin another log in an empty directory"
    )]
    OtherKey {
        /// The log's public key file.
        path: PathBuf,
        /// The key in that file.
        found: String,
        /// The public side of the given key.
        given: String,
    },
    /// The next key has another name than the log.
    #[error(
        "the next key of the log is of {next}, and the log is {log}: remove the next key, and make one \
         with the log's name as its comment (usher log new-key)"
    )]
    NextKeyOfOther {
        /// The log's name.
        log: String,
        /// The name that the next key has.
        next: String,
    },
    /// The log's last record changes its key to one that is missing.
    #[error(
        "{path}: the change of this log's key to {next} is not finished: bring that key back, as \
         /etc/usher/next_log_key, and start the recorder again"
    )]
    UnfinishedChange {
        /// The log's public key file.
        path: PathBuf,
        /// The next key.
        next: String,
    },
    /// A checkpoint or the end of a session could not be signed; nothing was appended.
    #[error(transparent)]
    Signing(CheckpointError),
    /// After an earlier failure the contents of the disk are unknown.
    #[error(
        "an earlier write to the log failed and the contents of the disk are unknown; open the \
         log anew to find out"
    )]
    Unknown,
    /// There is no such record.
    #[error("there is no record {index}: the log has {size} records, starting at 0")]
    NoRecord {
        /// The requested record.
        index: u64,
        /// Records in the log.
        size: u64,
    },
    /// The log was changed.
    #[error(transparent)]
    Damaged(#[from] Damage),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room: until then nothing new is logged, and the log keeps its records"
        }
        io::ErrorKind::PermissionDenied => {
            "; only root and the recorder's account may use the log. If the recorder is refused, the log \
             belongs to another account, as after a restore: `usher init` gives it back"
        }
        _ => "",
    }
}

impl LogError {
    /// Whether the disk is full, which is temporary.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File(_, error) if matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ))
    }
}

/// The first fault found in a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Records are missing at the end of a bundle.
    #[error(
        "{place}: truncated: record {index} is missing or cut off, and the checkpoint has {size} \
         records"
    )]
    Truncated {
        /// The first record that is not whole.
        index: u64,
        /// Records of the checkpoint.
        size: u64,
        /// The bundle.
        place: PathBuf,
    },
    /// The log's checkpoint is older than the kept one.
    #[error(
        "truncated: the kept checkpoint has {kept} records, the log {size}: the records from \
         {size} on were taken out"
    )]
    Behind {
        /// Records of the kept checkpoint.
        kept: u64,
        /// Records of the log.
        size: u64,
    },
    /// A record differs from the logged one.
    #[error("{place}: edited: record {index} differs from the logged one")]
    Edited {
        /// The record.
        index: u64,
        /// Its bundle.
        place: PathBuf,
    },
    /// Another record of this log is in a record's place.
    #[error(
        "{place}: reordered: another record of this log is in the place of record {index}; \
         records were exchanged or taken out"
    )]
    Reordered {
        /// The place.
        index: u64,
        /// Its bundle.
        place: PathBuf,
    },
    /// A full bundle has bytes after its last record.
    #[error("{place}: edited: there are bytes after record {index}, the last of this file")]
    Surplus {
        /// The last record of this bundle.
        index: u64,
        /// The bundle.
        place: PathBuf,
    },
    /// The log's key vouches for a record that neither a client nor the log signed.
    #[error("{place}: forged: record {index} is in the log without a valid signature: {error}")]
    Forged {
        /// The record.
        index: u64,
        /// Its bundle.
        place: PathBuf,
        /// Its fault.
        error: RecordError,
    },
    /// The auditor's list does not have a record's key for its user.
    #[error(
        "forged: record {index} names {user} and is signed by {fingerprint}, which is not a \
         known key of {user}{}",
        if *.is_known { "" } else { ": there is none, add a line if this user is expected" }
    )]
    UnknownSigner {
        /// The record.
        index: u64,
        /// The user in the record.
        user: String,
        /// The key that signed it.
        fingerprint: String,
        /// Whether the auditor's list has any key of the user.
        is_known: bool,
    },
    /// The records and the hash tiles agree with each other but not with the checkpoint.
    #[error(
        "{0}: rewritten: the records are not those of the checkpoint; the first wrong one is \
         unknown"
    )]
    Rewritten(PathBuf),
    /// The records are valid, but a file of hashes does not match them.
    #[error("{0}: edited: these are not the hashes of the records, which are intact")]
    HashTile(PathBuf),
    /// The log's own checkpoint is invalid.
    #[error("{0}: {1}")]
    Checkpoint(PathBuf, CheckpointError),
    /// The file with the log's public key is invalid.
    #[error("{0}: {1}")]
    VerifierKey(PathBuf, CheckpointError),
    /// The log's key is not the kept one, and no changes lead from one to the other.
    #[error(
        "{place}: the log's key is {found}, the kept one {kept}, and no change of key in the log leads \
         from the kept one to the log's: this is not the log whose key you kept"
    )]
    OtherKey {
        /// The log's public key file.
        place: PathBuf,
        /// The key in that file.
        found: String,
        /// The key that is known from elsewhere.
        kept: String,
    },
    /// The kept checkpoint is not by this log's key.
    #[error(
        "the kept checkpoint: {0}: it belongs to another log, or the log did not have that key when it had so \
         many records"
    )]
    KeptCheckpoint(CheckpointError),
    /// The log's history differs from the kept checkpoint's.
    #[error(
        "not consistent with the kept checkpoint: the first {0} records are not those that \
         it vouches for; a holder of the log's key rewrote the log"
    )]
    Inconsistent(u64),
}

impl Damage {
    /// One word for programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Truncated { .. } | Self::Behind { .. } => "truncated",
            Self::Edited { .. } | Self::Surplus { .. } | Self::HashTile { .. } => "edited",
            Self::Reordered { .. } => "reordered",
            Self::Forged { .. } | Self::UnknownSigner { .. } => "forged",
            Self::Rewritten { .. } => "rewritten",
            Self::Checkpoint { .. } | Self::VerifierKey { .. } | Self::OtherKey { .. } => {
                "checkpoint"
            }
            Self::KeptCheckpoint(_) => "kept_checkpoint",
            Self::Inconsistent { .. } => "inconsistent",
        }
    }

    /// The first record concerned, if it is known.
    #[must_use]
    pub fn index(&self) -> Option<u64> {
        match self {
            Self::Truncated { index, .. }
            | Self::Edited { index, .. }
            | Self::Reordered { index, .. }
            | Self::Surplus { index, .. }
            | Self::Forged { index, .. }
            | Self::UnknownSigner { index, .. }
            | Self::Behind { size: index, .. } => Some(*index),
            Self::Rewritten { .. }
            | Self::HashTile { .. }
            | Self::Checkpoint { .. }
            | Self::VerifierKey { .. }
            | Self::OtherKey { .. }
            | Self::KeptCheckpoint(_)
            | Self::Inconsistent { .. } => None,
        }
    }
}

/// Adds the file to an I/O error.
pub(crate) trait At<T> {
    fn at(self, path: &std::path::Path) -> Result<T, LogError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &std::path::Path) -> Result<T, LogError> {
        self.map_err(|error| LogError::File(path.to_owned(), error))
    }
}
