//! The writing task: it writes many records with one wait for the disk. It uses the daemon's only thread,
//! because all other work waits for the records anyway. A thread of its own would cost each first connection
//! two hand-overs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_log::{Log, LogError, RecordError, SignedRecord};
use usher_proto::opening::{Authentication, Opening};
use usher_proto::recorder::{Keep, RecorderRequest};
use usher_proto::refusal::Refusal;
use usher_proto::session_end::SessionEnd;

use super::tell;
use crate::start::StartError;

/// Limit of records that may wait for the disk; more are refused with [`Refusal::Overloaded`].
const WAITING: usize = 4096;
/// Limit of records that are written together.
const TOGETHER: usize = 256;

/// The handle that passes records to the writing task.
pub struct Writer {
    waiting: mpsc::Sender<QueuedRecord>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    records: AtomicU64,
    authentications: AtomicU64,
    ends: AtomicU64,
    refused: AtomicU64,
    /// The reason that the last attempt to write failed, if it did.
    failing: Mutex<Option<String>>,
}

struct QueuedRecord {
    request: u64,
    record: Unwritten,
    replies: mpsc::Sender<Vec<u8>>,
}

enum Unwritten {
    Authentication(SignedRecord),
    /// An end that the owner of the log must sign.
    End(SessionEnd),
}

impl Writer {
    /// Makes a writer and its writing task. The task ends with the error if the log cannot be continued.
    pub fn new(log: Log) -> (Self, impl Future<Output = StartError>) {
        let (sender, waiting) = mpsc::channel(WAITING);
        let counts = Arc::new(Counts::default());
        counts.set_records(&log);
        let writing = write(log, waiting, Arc::clone(&counts));
        let failure = async { StartError::Log(writing.await.unwrap_or(LogError::Unknown)) };
        let writer = Self {
            waiting: sender,
            counts,
        };
        (writer, failure)
    }

    /// Passes a record to the writing task, which sends the verdict to `replies` when the record is on disk.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when too many records wait. For an authentication also [`Refusal::Malformed`]
    /// if it is no record, has no valid signature or differs from the claim; and the refusals of
    /// certificates.
    pub fn write_records(
        &self,
        asked: RecorderRequest,
        replies: mpsc::Sender<Vec<u8>>,
    ) -> Result<(), Refusal> {
        let record = match asked.keep {
            Keep::Authentication(authentication) => check_claim(&authentication)
                .map(Unwritten::Authentication)
                .inspect_err(|_| {
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                })?,
            Keep::End(end) => Unwritten::End(end),
        };
        let entry = QueuedRecord {
            request: asked.request,
            record,
            replies,
        };
        self.waiting
            .try_send(entry)
            .map_err(|_| Refusal::Overloaded)
    }

    /// The number of records in the log.
    pub fn records(&self) -> u64 {
        self.counts.records.load(Ordering::Relaxed)
    }

    /// The reason that records cannot be kept, if there is one.
    pub fn trouble(&self) -> Option<String> {
        let failing = self.counts.failing.lock();
        let reason = failing.as_ref()?;
        Some(format!(
            "the last record could not be kept, and without a record no session is opened: {reason}"
        ))
    }

    /// The counters, by name: records in the log; and since the recorder began, authentications and ends
    /// that were kept, and failed attempts.
    pub fn numbers(&self) -> [(&'static str, u64); 4] {
        let counts = &self.counts;
        [
            ("records", &counts.records),
            ("authentications", &counts.authentications),
            ("ends", &counts.ends),
            ("refused", &counts.refused),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

impl Counts {
    fn set_records(&self, log: &Log) {
        let size = log.checkpoint().checkpoint().size;
        self.records.store(size, Ordering::Relaxed);
    }

    /// Counts new records in the log, and how many of them are ends.
    fn kept(&self, log: &Log, records: u64, ends: u64) {
        self.set_records(log);
        self.authentications
            .fetch_add(records - ends, Ordering::Relaxed);
        self.ends.fetch_add(ends, Ordering::Relaxed);
    }
}

/// The record, if its client has signed exactly the claim. The comparison comes before any write:
/// otherwise a subverted verifier could record old signatures again and again.
fn check_claim(claimed: &Authentication) -> Result<SignedRecord, Refusal> {
    let (record, says) = SignedRecord::new(&claimed.record).map_err(|error| {
        if let RecordError::Malformed(error) = error {
            return error.into();
        }
        tracing::error!(%error, "refused a record");
        Refusal::Malformed
    })?;
    let signed = Opening::new(says, unix_time())?;
    if signed != claimed.opening {
        tracing::error!(user = %claimed.opening.statement.user, signed_by = %signed.statement.user,
            "cannot record a session: the verifier does not say what was signed");
        return Err(Refusal::Malformed);
    }
    Ok(record)
}

/// Writes until all writers are gone, or returns the error if the log cannot be continued.
async fn write(
    mut log: Log,
    mut waiting: mpsc::Receiver<QueuedRecord>,
    counts: Arc<Counts>,
) -> Option<LogError> {
    let mut entries = Vec::new();
    while waiting.recv_many(&mut entries, TOGETHER).await > 0 {
        let (records, tellers): (Vec<_>, Vec<_>) = entries
            .drain(..)
            .map(|entry| (entry.record, (entry.request, entry.replies)))
            .unzip();
        let is_end = |record: &&Unwritten| matches!(record, Unwritten::End(_));
        let ends = records.iter().filter(is_end).count() as u64;
        let count = records.len() as u64;
        let outcome = append(&mut log, records);
        *counts.failing.lock() = outcome.as_ref().err().map(ToString::to_string);
        let verdict = match &outcome {
            Ok(()) => {
                counts.kept(&log, count, ends);
                Ok(())
            }
            Err(error) => {
                tracing::error!(name: events::RECORD_FAILED, %error, records = count,
                    "cannot append records to the log");
                counts.refused.fetch_add(count, Ordering::Relaxed);
                Err(Refusal::RecorderUnavailable)
            }
        };
        for (request, replies) in tellers {
            tell(&replies, request, verdict);
        }
        // The error ends this process: only opening the log anew determines what is on the disk.
        if let Err(error) = outcome
            && !error.is_full()
        {
            return Some(error);
        }
    }
    None
}

fn append(log: &mut Log, records: Vec<Unwritten>) -> Result<(), LogError> {
    let signed = records.into_iter().map(|record| match record {
        Unwritten::Authentication(record) => Ok(record),
        Unwritten::End(end) => log.sign_end(&end),
    });
    let signed: Vec<SignedRecord> = signed.collect::<Result<_, _>>()?;
    log.append(&signed).map(drop)
}
