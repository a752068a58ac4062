//! The signed log: every authentication, kept as the bytes that the client signed, and the end of
//! every session, which the log signs.
//!
//! Records stand in a Merkle tree (RFC 6962, section 2.1) whose size and root the log signs
//! (C2SP tlog-checkpoint); on disk they are entry bundles and hash tiles (C2SP tlog-tiles). The
//! formats are told byte by byte in `docs/PROTOCOL.md`, section "The log".
//!
//! [`Log`] appends, with the log's key; one process at a time. [`Reader`] needs no key, and may
//! read while a log appends. What neither can know is which history others have been shown: keep
//! a checkpoint elsewhere and give it to [`Reader::verify`].
//!
//! What is promised under failure is said at [`Log::append`].
#![forbid(unsafe_code)]

mod bundle;
mod checkpoint;
mod durable;
mod error;
mod layout;
pub mod merkle;
mod reader;
mod recovery;
mod verify;
mod writer;

pub use checkpoint::{
    Checkpoint, CheckpointError, MAX_CHECKPOINT, SignedCheckpoint, SigningKey, VerifyingKey,
};
pub use error::{Damage, LogError};
pub use reader::Reader;
pub use usher_proto::log_record::{
    AuthenticationRecord, EndRecord, Record, RecordError, Says, Verified,
};
pub use verify::Report;
pub use writer::{Appended, Log, SignedRecord};
