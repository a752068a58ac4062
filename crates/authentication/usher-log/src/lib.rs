//! The signed log keeps every authentication as the bytes that the client signed, and the end of
//! every session, which the log itself signs.
//!
//! The records form a Merkle tree (RFC 6962, section 2.1) whose size and root the log signs
//! (C2SP tlog-checkpoint); on disk they are entry bundles and hash tiles (C2SP tlog-tiles). The
//! formats are documented byte by byte in `docs/PROTOCOL.md`, section "The log".
//!
//! [`Log`] appends, with the log's key; one process at a time. [`Reader`] needs no key, and may
//! read while a log appends. Neither can know which history others have seen: keep a checkpoint
//! elsewhere and pass it to [`Reader::verify`].
//!
//! [`Log::append`] documents the guarantees under failure.
//!
//! Room: files of one log's directory. Only the recorder appends; `usher log` reads.
#![forbid(unsafe_code)]

mod bundle;
mod checkpoint;
mod durable;
mod error;
mod keys;
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
    AuthenticationRecord, EndRecord, KeyChangeRecord, Record, RecordError, Says, SignedEnd,
    Verified,
};
pub use verify::{Kept, Report};
pub use writer::{Appended, Log, SignedRecord, SigningKeys};
