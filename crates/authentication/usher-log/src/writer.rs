//! Appending to a log.

use std::collections::BTreeMap;

use crate::bundle;
use crate::checkpoint::{CheckpointError, SignedCheckpoint, SigningKey};
use crate::durable::{self, Written};
use crate::error::LogError;
use crate::layout::{Layout, Lock, cut_off};
use crate::merkle::{Frontier, HASH_SIZE, Hash, TILE_SIZE, TILE_WIDTH, leaf_hash};
use usher_base::DecodeError;
use usher_proto::SessionEnd;
use usher_proto::log_record::{Record, RecordError, Verified};

/// A record with a valid signature, which may go into the log.
#[derive(Clone, Debug)]
pub struct SignedRecord {
    entry: Vec<u8>,
}

impl SignedRecord {
    /// Checks the record of an authentication, and also returns its contents.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not such a record, or its signature is invalid.
    pub fn new(entry: &[u8]) -> Result<(Self, Verified), RecordError> {
        let Record::Authentication(record) = Record::decode(entry)? else {
            return Err(DecodeError::UnknownType.into());
        };
        let says = record.verify()?;
        let entry = entry.to_vec();
        Ok((Self { entry }, says))
    }

    /// Makes the record of a session's end, signed with the key of the log that it is for.
    ///
    /// # Errors
    /// [`CheckpointError::Signing`]; no known input causes it.
    pub fn of_end(end: &SessionEnd, log: &SigningKey) -> Result<Self, CheckpointError> {
        let entry = Record::End(log.sign_end(end)?).encode();
        Ok(Self { entry })
    }
}

/// The result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Index of the first record appended; the others follow.
    pub first: u64,
    /// The log's state with the appended records: the client's receipt, if it wants one.
    pub checkpoint: SignedCheckpoint,
}

/// The keys of whoever appends to a log: its key, and perhaps the one that is to take its place, or has
/// done so already.
pub struct SigningKeys {
    pub(crate) present: SigningKey,
    pub(crate) next: Option<SigningKey>,
}

impl SigningKeys {
    /// Adds the next key.
    ///
    /// # Errors
    /// [`LogError::NextKeyOfOther`]: then there is none.
    pub fn add_next(&mut self, next: SigningKey) -> Result<(), LogError> {
        let [log, other] = [&self.present, &next].map(|key| key.verifying_key().origin());
        if log != other {
            let [log, next] = [log, other].map(str::to_owned);
            return Err(LogError::NextKeyOfOther { log, next });
        }
        self.next = Some(next);
        Ok(())
    }
}

impl From<SigningKey> for SigningKeys {
    fn from(present: SigningKey) -> Self {
        Self {
            present,
            next: None,
        }
    }
}

/// Writes the file with the log's public key beside the present one.
pub(crate) fn prepare_verifier_key(layout: &Layout, key: &SigningKey) -> Result<(), LogError> {
    let text = format!("{}\n", key.verifying_key());
    durable::prepare(&layout.verifier_key(), text.as_bytes())
}

/// A log that can be appended to, by one process at a time.
#[derive(Debug)]
pub struct Log {
    pub(crate) layout: Layout,
    pub(crate) key: SigningKey,
    /// The key that is to take the place of `key`.
    pub(crate) next: Option<SigningKey>,
    pub(crate) tree: Frontier,
    pub(crate) checkpoint: SignedCheckpoint,
    /// Bytes of the last bundle that the checkpoint covers.
    pub(crate) bundle_length: u64,
    /// Set after a failure that leaves the contents of the disk unknown.
    pub(crate) unknown: bool,
    /// Held as long as the log is open.
    pub(crate) _lock: Lock,
}

impl Log {
    /// The log's state: its newest checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> &SignedCheckpoint {
        &self.checkpoint
    }

    /// Makes the record of a session's end, signed with the log's key. It is not in the log yet.
    ///
    /// # Errors
    /// [`LogError::Signing`].
    pub fn sign_end(&self, end: &SessionEnd) -> Result<SignedRecord, LogError> {
        SignedRecord::of_end(end, &self.key).map_err(LogError::Signing)
    }

    /// Appends records, all or none, and returns when they are durable. It waits for the disk once
    /// for the records and once for the checkpoint, however many records there are.
    ///
    /// Under failure: an error means that nothing was acknowledged. On a full disk
    /// ([`LogError::is_full`]) the written bytes are removed again, and once there is room the next
    /// append succeeds. After a failure to make something durable every further append is
    /// [`LogError::Unknown`], because the kernel may have dropped bytes that it could not write: open
    /// the log anew. Records of an append that a crash has cut short may appear in the log
    /// afterwards: they are signed.
    ///
    /// # Errors
    /// [`LogError::File`], [`LogError::Signing`], [`LogError::Unknown`].
    pub fn append(&mut self, records: &[SignedRecord]) -> Result<Appended, LogError> {
        self.append_with(records, None)
    }

    /// As [`Log::append`], with a checkpoint that `next` signs as well.
    fn append_with(
        &mut self,
        records: &[SignedRecord],
        next: Option<&SigningKey>,
    ) -> Result<Appended, LogError> {
        if self.unknown {
            return Err(LogError::Unknown);
        }
        let first = self.tree.size();
        if !records.is_empty() {
            let leaves = records.iter().map(|record| leaf_hash(&record.entry));
            let leaves: Vec<Hash> = leaves.collect();
            match self.write(records) {
                Ok((written, length)) => self.seal(&written, &leaves, length, next)?,
                Err(error) => {
                    self.take_back();
                    return Err(error);
                }
            }
        }
        Ok(Appended {
            first,
            checkpoint: self.checkpoint.clone(),
        })
    }

    /// Has the next key, if the log was opened with one, take the present one's place: appends a record
    /// that both sign, under a checkpoint that both sign. `now` is in seconds since 1970.
    ///
    /// Returns whether the key was changed, which is durable then. Under failure: as [`Log::append`]. A
    /// change that a crash has cut short is taken back or finished when the log is opened.
    ///
    /// # Errors
    /// Those of [`Log::append`]; [`LogError::Unknown`] if it is not known whether the key was changed.
    pub fn change_key(&mut self, now: u64) -> Result<bool, LogError> {
        let Some(next) = self.next.take() else {
            return Ok(false);
        };
        // A full disk shows here, before anything is changed.
        prepare_verifier_key(&self.layout, &next)?;
        let change = self.key.sign_change(&next, &self.tree, now);
        let entry = Record::KeyChange(change.map_err(LogError::Signing)?).encode();
        let appended = self.append_with(&[SignedRecord { entry }], Some(&next));
        let finished = appended.and_then(|_| self.finish_change(next));
        match finished {
            Err(_) if self.unknown => Err(LogError::Unknown),
            finished => finished.map(|()| true),
        }
    }

    /// The change's record is under the checkpoint: from now on the next key is the log's.
    pub(crate) fn finish_change(&mut self, next: SigningKey) -> Result<(), LogError> {
        let directory = self.layout.directory();
        // No file system has to keep the order of two renames.
        let published = durable::sync_directory(directory)
            .and_then(|()| durable::publish(&self.layout.verifier_key()))
            .and_then(|()| durable::sync_directory(directory));
        published.inspect_err(|_| self.unknown = true)?;
        self.key = next;
        Ok(())
    }

    /// Writes records after the last one. Returns the files, and the last bundle's new length.
    fn write(&self, records: &[SignedRecord]) -> Result<(Vec<Written>, u64), LogError> {
        let mut written = Vec::new();
        let mut index = self.tree.size();
        let mut offset = self.bundle_length;
        let mut rest = records;
        while !rest.is_empty() {
            let room = TILE_WIDTH - index % TILE_WIDTH;
            let count = rest.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (here, after) = rest.split_at(count);
            let mut bytes = Vec::new();
            for record in here {
                bundle::put_entry(&mut bytes, &record.entry);
            }
            let path = self.layout.bundle(index / TILE_WIDTH);
            let top = self.layout.directory();
            written.push(durable::write_at(path, offset, &bytes, top)?);
            index += count as u64;
            offset += bytes.len() as u64;
            if index.is_multiple_of(TILE_WIDTH) {
                offset = 0;
            }
            rest = after;
        }
        Ok((written, offset))
    }

    /// Makes written entries durable, adds their hashes, and signs and publishes the checkpoint
    /// that has them: from then on they are in the log.
    pub(crate) fn seal(
        &mut self,
        written: &[Written],
        leaves: &[Hash],
        bundle_length: u64,
        next: Option<&SigningKey>,
    ) -> Result<(), LogError> {
        let prepared = self.prepare(written, leaves, next);
        let (tree, checkpoint) = prepared.inspect_err(|_| self.take_back())?;
        // Readers may have seen this checkpoint, so it must stay.
        durable::publish(&self.layout.checkpoint()).inspect_err(|_| self.unknown = true)?;
        self.tree = tree;
        self.checkpoint = checkpoint;
        self.bundle_length = bundle_length;
        Ok(())
    }

    fn prepare(
        &mut self,
        written: &[Written],
        leaves: &[Hash],
        next: Option<&SigningKey>,
    ) -> Result<(Frontier, SignedCheckpoint), LogError> {
        self.sync(written)?;
        let mut tree = self.tree.clone();
        let mut tiles = BTreeMap::<(u32, u64), (u64, Vec<u8>)>::new();
        for leaf in leaves {
            tree.push(*leaf, |level, index, hash| {
                let place = (level, index / TILE_WIDTH);
                let offset = index % TILE_WIDTH * HASH_SIZE as u64;
                let (_, bytes) = tiles.entry(place).or_insert((offset, Vec::new()));
                bytes.extend_from_slice(hash);
            });
        }
        let mut last = Vec::new();
        for ((level, number), (offset, bytes)) in tiles {
            let end = offset + bytes.len() as u64;
            let path = self.layout.tile(level, number);
            let top = self.layout.directory();
            let tile = durable::write_at(path, offset, &bytes, top)?;
            // Opening the log recomputes the leaf hashes of the last bundle.
            if level > 0 || end == TILE_SIZE {
                last.push(tile.with_names(top));
            }
        }
        self.sync(&last)?;
        let checkpoint = self.key.sign(&tree, next).map_err(LogError::Signing)?;
        let path = self.layout.checkpoint();
        durable::prepare(&path, checkpoint.note().as_bytes())?;
        Ok((tree, checkpoint))
    }

    /// Returns when these files are on disk. After a failure their contents are unknown.
    fn sync(&mut self, written: &[Written]) -> Result<(), LogError> {
        let synced = written.iter().try_for_each(Written::sync);
        synced.inspect_err(|_| self.unknown = true)
    }

    /// Removes from the disk everything that the checkpoint does not have.
    fn take_back(&mut self) {
        if cut_off(&self.layout, self.tree.size(), self.bundle_length).is_err() {
            self.unknown = true;
        }
    }
}
