//! What writes: many records, one wait for the disk. It waits on the daemon's one thread, whose
//! other work would be waiting for the records anyhow: a thread of its own costs each first
//! connection two hand-overs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use usher_local::clock::unix_time;
use usher_log::{Log, LogError, Record};
use usher_proto::opening::Opening;
use usher_proto::recorder::RecorderReply;
use usher_proto::refusal::Refusal;

use super::tell;
use crate::start::StartError;

/// Records that may wait for the disk; more are refused with [`Refusal::Overloaded`].
const WAITING: usize = 4096;
/// Records that are written together.
const TOGETHER: usize = 256;

/// What hands records to the writing task.
pub struct Pen {
    waiting: mpsc::Sender<Entry>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    records: AtomicU64,
    refused: AtomicU64,
}

struct Entry {
    request: u64,
    record: Record,
    replies: mpsc::Sender<RecorderReply>,
}

impl Pen {
    /// A pen, and what writes with it as long as it is run; that ends when the log cannot be gone on
    /// with, and says why.
    pub fn new(log: Log) -> (Self, impl Future<Output = StartError>) {
        let (sender, waiting) = mpsc::channel(WAITING);
        let counts = Arc::new(Counts::default());
        counts.set_records(&log);
        let writing = write(log, waiting, Arc::clone(&counts));
        let failure = async { StartError::Log(writing.await.unwrap_or(LogError::Unknown)) };
        let pen = Self {
            waiting: sender,
            counts,
        };
        (pen, failure)
    }

    /// Hands over a record; its verdict goes to `replies` when it is on the disk.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] for what is no record, [`Refusal::Overloaded`].
    pub fn write(
        &self,
        request: u64,
        record: Vec<u8>,
        replies: mpsc::Sender<RecorderReply>,
    ) -> Result<(), Refusal> {
        let record = Record::decode(&record)?;
        let entry = Entry {
            request,
            record,
            replies,
        };
        self.waiting
            .try_send(entry)
            .map_err(|_| Refusal::Overloaded)
    }

    /// Records in the log.
    pub fn records(&self) -> u64 {
        self.counts.records.load(Ordering::Relaxed)
    }

    /// Records that could not be kept since the recorder began.
    pub fn refused(&self) -> u64 {
        self.counts.refused.load(Ordering::Relaxed)
    }
}

impl Counts {
    fn set_records(&self, log: &Log) {
        let size = log.checkpoint().checkpoint().size;
        self.records.store(size, Ordering::Relaxed);
    }
}

/// Writes until there is nobody to write for, or the log cannot be gone on with: then its error.
async fn write(
    mut log: Log,
    mut waiting: mpsc::Receiver<Entry>,
    counts: Arc<Counts>,
) -> Option<LogError> {
    let mut entries = Vec::new();
    while waiting.recv_many(&mut entries, TOGETHER).await > 0 {
        let (mut records, mut tellers): (Vec<_>, Vec<_>) = entries
            .drain(..)
            .map(|entry| (entry.record, (entry.request, entry.replies)))
            .unzip();
        let outcome = loop {
            match log.append(&records) {
                // What nobody has signed is left out, and the others are not.
                Err(LogError::Record { position, error }) => {
                    tracing::error!(%error, "refused a record");
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    records.remove(position);
                    let (request, replies) = tellers.remove(position);
                    tell(&replies, request, Err(Refusal::Malformed));
                }
                outcome => break outcome,
            }
        };
        counts.set_records(&log);
        match outcome {
            Ok(appended) => {
                let now = unix_time();
                for ((request, replies), verified) in tellers.into_iter().zip(appended.verified) {
                    tell(&replies, request, Opening::new(verified, now).map(Box::new));
                }
            }
            Err(error) => {
                tracing::error!(%error, "authentications could not be kept");
                counts
                    .refused
                    .fetch_add(records.len() as u64, Ordering::Relaxed);
                for (request, replies) in tellers {
                    tell(&replies, request, Err(Refusal::RecorderUnavailable));
                }
                // Begun anew, the log finds out what is on the disk.
                if !error.is_full() {
                    return Some(error);
                }
            }
        }
    }
    None
}
