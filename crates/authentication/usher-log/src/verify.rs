//! Verifies that a log is unchanged: every record, every hash, the checkpoint, and one kept elsewhere.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::thread;

use crate::bundle::{self, Entries, read_up_to};
use crate::checkpoint::{Checkpoint, SignedCheckpoint, VerifyingKey, size_of_note};
use crate::error::{At, Damage, LogError};
use crate::keys::{Keys, Signers};
use crate::layout::Layout;
use crate::merkle::{Frontier, HASH_SIZE, Hash, TILE_SIZE, TILE_WIDTH, leaf_hash};
use crate::reader::Reader;
use usher_proto::log_record::{Record, RecordError, Says};

/// Limit of differences between records and leaf hashes that are examined to find exchanged
/// records.
const MAX_DIFFERENCES: usize = 1 << 16;

/// Copies of a log's checkpoint and key that an auditor keeps where the log's host cannot write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept<'a> {
    /// An earlier checkpoint, which the log must continue.
    pub checkpoint: Option<&'a str>,
    /// The log's key, or a former one from which changes lead to it.
    pub key: Option<&'a VerifyingKey>,
}

/// The result for a log without damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The log's newest checkpoint.
    pub checkpoint: SignedCheckpoint,
    /// The key that signed that checkpoint.
    pub key: VerifyingKey,
    /// The records that changed the log's key, the oldest first.
    pub key_changes: Vec<u64>,
    /// Records of the kept checkpoint, with which the log is consistent.
    pub kept: Option<u64>,
    /// Bytes after the last record of the checkpoint: an append under way, or one that a crash has
    /// cut short (a torn tail). Opening the log to append takes up whole records of it and cuts off
    /// the rest.
    pub tail: u64,
}

impl Reader {
    /// Checks everything: each record's form and signature, the tree over them, the stored
    /// hashes, the checkpoint, each change of the log's key, and that the log continues the kept
    /// checkpoint, under the kept key.
    ///
    /// Only the kept checkpoint protects against a holder of the log's key.
    ///
    /// # Errors
    /// [`LogError::Damaged`] with the first damage found; [`LogError::File`].
    pub fn verify(&self, kept: Kept<'_>) -> Result<Report, LogError> {
        self.verify_with(kept, |_, _| Ok(()))
    }

    /// As [`Reader::verify`], and also passes each valid record to `look`: its index and contents.
    /// `look` runs on all processors, in no order.
    ///
    /// # Errors
    /// Those of [`Reader::verify`], and the error of the first record that `look` refuses.
    pub fn verify_with(
        &self,
        kept: Kept<'_>,
        look: impl Fn(u64, &Says) -> Result<(), Damage> + Sync,
    ) -> Result<Report, LogError> {
        let (key, checkpoint) = self.signed()?;
        // Which key must have signed the kept checkpoint is known only after the walk.
        let kept_size = kept.checkpoint.map(size_of_note).transpose();
        let kept_size = kept_size.map_err(Damage::KeptCheckpoint)?;
        let size = checkpoint.checkpoint().size;
        if let (Some(kept_size), Some(note)) = (kept_size, kept.checkpoint)
            && kept_size > size
        {
            // If the log was set back behind a change of key, the kept key may be a later one.
            let opened = key.open(note);
            opened
                .or_else(|error| kept.key.ok_or(error)?.open(note))
                .map_err(Damage::KeptCheckpoint)?;
            return Err(Damage::Behind {
                kept: kept_size,
                size,
            }
            .into());
        }
        let mut walk = Walk::new(size, kept_size);
        let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
        let bundles = size.div_ceil(TILE_WIDTH);
        let mut next = 0;
        while next < bundles && walk.end.is_none() {
            let batch: Vec<u64> = (next..bundles.min(next + threads)).collect();
            next += threads;
            let read = thread::scope(|scope| {
                let workers: Vec<_> = batch
                    .iter()
                    .map(|number| scope.spawn(|| Bundle::read(self, *number, size, &look)))
                    .collect();
                let joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
                joined.collect::<Vec<_>>()
            });
            for bundle in read {
                walk.take(bundle.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
        }
        let key_changes = walk.judge(self, checkpoint.checkpoint(), &key, kept)?;
        let tail = self.tail(size, walk.last_bundle_length)?;
        Ok(Report {
            checkpoint,
            key,
            key_changes,
            kept: kept_size,
            tail,
        })
    }

    /// Bytes after the last record.
    fn tail(&self, size: u64, last_bundle_length: u64) -> Result<u64, LogError> {
        let place = self.layout.bundle(size / TILE_WIDTH);
        match fs::metadata(&place) {
            Ok(data) if size.is_multiple_of(TILE_WIDTH) => Ok(data.len()),
            Ok(data) => Ok(data.len().saturating_sub(last_bundle_length)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error).at(&place),
        }
    }
}

/// One bundle and its hash tile, read and checked.
struct Bundle {
    leaves: Vec<Hash>,
    /// The stored leaf hashes; fewer if the tile is short.
    stored: Vec<Hash>,
    /// Bytes up to the end of the last record.
    length: u64,
    /// The first fault of the file itself.
    end: Option<Damage>,
    /// The first record that is malformed or refused.
    refused: Option<Damage>,
    /// The ends and changes of key among the records with valid signatures; none if the bundle or its stored
    /// hashes are wrong.
    signers: Signers,
}

impl Bundle {
    fn read(
        reader: &Reader,
        number: u64,
        size: u64,
        look: &impl Fn(u64, &Says) -> Result<(), Damage>,
    ) -> Result<Self, LogError> {
        let place = reader.layout.bundle(number);
        let bytes = bundle::read_bundle(&place).at(&place)?;
        let first = number * TILE_WIDTH;
        let end = size.min(first + TILE_WIDTH);
        let mut bundle = Self {
            leaves: Vec::new(),
            stored: stored(reader, number, end - first)?,
            length: 0,
            end: None,
            refused: None,
            signers: Signers::default(),
        };
        let mut entries = Entries::new(&bytes);
        for index in first..end {
            let Some(entry) = entries.next() else {
                bundle.end = Some(Damage::Truncated { index, size, place });
                return Ok(bundle);
            };
            bundle.leaves.push(leaf_hash(entry));
            bundle.length = entries.offset() as u64;
        }
        if end == first + TILE_WIDTH && entries.offset() != bytes.len() {
            let index = end - 1;
            bundle.end = Some(Damage::Surplus { index, place });
        } else if bundle.leaves == bundle.stored {
            // Otherwise a fault is known already, and checking signatures would only take time.
            let signers = &mut bundle.signers;
            bundle.refused = look_at(&bytes, first..end, &reader.layout, signers, look).err();
        }
        Ok(bundle)
    }
}

/// Checks each record, and returns the first without a valid signature, or that `look` refuses. Notes
/// what keys of the log have signed.
fn look_at(
    bytes: &[u8],
    indexes: Range<u64>,
    layout: &Layout,
    signers: &mut Signers,
    look: &impl Fn(u64, &Says) -> Result<(), Damage>,
) -> Result<(), Damage> {
    let mut refused = Ok(());
    for (index, entry) in indexes.zip(Entries::new(bytes)) {
        let says = match verified(entry) {
            Ok(says) => says,
            Err(error) => {
                refused = refused.and(Err(layout.forged(index, error)));
                continue;
            }
        };
        signers.note(index, &says);
        if refused.is_ok() {
            refused = look(index, &says);
        }
    }
    refused
}

fn verified(entry: &[u8]) -> Result<Says, RecordError> {
    Record::decode(entry)?.verify()
}

/// The stored leaf hashes of a bundle, up to `count`; missing ones are left out.
fn stored(reader: &Reader, number: u64, count: u64) -> Result<Vec<Hash>, LogError> {
    let hashes = tile(reader, 0, number)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    Ok(hashes.into_iter().take(count).collect())
}

/// The whole hashes of a tile, at most as many as a tile can have.
fn tile(reader: &Reader, level: u32, number: u64) -> Result<Vec<Hash>, LogError> {
    let place = reader.layout.tile(level, number);
    let bytes = read_up_to(&place, TILE_SIZE).at(&place)?;
    Ok(bytes.as_chunks::<HASH_SIZE>().0.to_vec())
}

/// The state gathered on the way through the log.
struct Walk {
    kept_size: Option<u64>,
    /// The tree over the records, and its root at the kept checkpoint's size.
    records: Frontier,
    kept_root: Option<Hash>,
    /// The tree over the stored leaf hashes.
    stored: Frontier,
    /// The hashes above the leaves that the tiles should have, by level from 1.
    upper: Vec<Vec<Hash>>,
    /// Records whose hash differs from the stored one, with the record's hash.
    differences: Vec<(u64, Hash)>,
    /// The stored hashes at the indexes of `differences`.
    expected: HashSet<Hash>,
    last_bundle_length: u64,
    end: Option<Damage>,
    refused: Option<Damage>,
    signers: Signers,
}

impl Walk {
    fn new(size: u64, kept_size: Option<u64>) -> Self {
        let records = Frontier::default();
        debug_assert!(kept_size.is_none_or(|kept| kept <= size));
        Self {
            kept_size,
            kept_root: (kept_size == Some(0)).then(|| records.root()),
            stored: Frontier::default(),
            records,
            upper: Vec::new(),
            differences: Vec::new(),
            expected: HashSet::new(),
            last_bundle_length: 0,
            end: None,
            refused: None,
            signers: Signers::default(),
        }
    }

    fn take(&mut self, mut bundle: Bundle) {
        if self.end.is_some() {
            return;
        }
        let has_change = bundle.signers.has_change();
        let upper = &mut self.upper;
        for (offset, leaf) in bundle.leaves.iter().enumerate() {
            let stored = bundle.stored.get(offset);
            if stored != Some(leaf) && self.differences.len() < MAX_DIFFERENCES {
                self.differences.push((self.records.size(), *leaf));
                self.expected.extend(stored);
            }
            if has_change {
                let records = &self.records;
                bundle
                    .signers
                    .compare_root(records.size(), || records.root());
            }
            self.records.push(*leaf, |level, _, hash| {
                let Some(above) = (level as usize).checked_sub(1) else {
                    return;
                };
                if upper.len() == above {
                    upper.push(Vec::new());
                }
                upper[above].push(*hash);
            });
            if Some(self.records.size()) == self.kept_size {
                self.kept_root = Some(self.records.root());
            }
        }
        for hash in bundle.stored {
            self.stored.push(hash, |_, _, _| {});
        }
        self.last_bundle_length = bundle.length;
        self.refused = self.refused.take().or(bundle.refused);
        self.signers.append(bundle.signers);
        self.end = bundle.end;
    }

    /// The first fault, the most certain one if there are several; or the records that changed the
    /// log's key.
    fn judge(
        &self,
        reader: &Reader,
        checkpoint: &Checkpoint,
        key: &VerifyingKey,
        kept: Kept<'_>,
    ) -> Result<Vec<u64>, LogError> {
        if self.end.is_none() && self.records.root() == checkpoint.root {
            // The leaf hashes come first: where they are wrong, no signature was checked.
            self.judge_leaves(reader)?;
            let (keys, wrong) = self.signers.judge(key.public_key(), checkpoint.size);
            self.judge_kept(reader, key, &keys, kept)?;
            if let Some(refused) = &self.refused {
                return Err(refused.clone().into());
            }
            if let Some((index, error)) = wrong {
                return Err(reader.layout.forged(index, error).into());
            }
            self.judge_tiles(reader)?;
            return Ok(keys.former.iter().map(|(index, _)| *index).collect());
        }
        // Leaf hashes whose root is the checkpoint's are genuine, and identify the record that is
        // not. If a file ends early, this holds up to there.
        if let Some((index, hash)) = self.differences.first() {
            let place = reader.layout.bundle(index / TILE_WIDTH);
            let index = *index;
            let genuine = self.end.is_some() || self.stored.root() == checkpoint.root;
            if genuine && self.expected.contains(hash) {
                return Err(Damage::Reordered { index, place }.into());
            }
            if genuine {
                return Err(Damage::Edited { index, place }.into());
            }
        }
        Err(match (&self.end, &self.refused) {
            (Some(end), _) => end.clone().into(),
            (None, Some(refused)) => refused.clone().into(),
            (None, None) => reader.rewritten(),
        })
    }

    /// Compares the log, whose records are those of the checkpoint, with what the auditor has kept.
    fn judge_kept(
        &self,
        reader: &Reader,
        key: &VerifyingKey,
        keys: &Keys,
        kept: Kept<'_>,
    ) -> Result<(), LogError> {
        if let (Some(note), Some(size)) = (kept.checkpoint, self.kept_size) {
            let opened = key.with(keys.of_size(size)).and_then(|key| key.open(note));
            let opened = opened.map_err(Damage::KeptCheckpoint)?;
            if self.kept_root != Some(opened.checkpoint().root) {
                return Err(Damage::Inconsistent(size).into());
            }
        }
        match kept.key {
            Some(known) if known.origin() != key.origin() || !keys.has(known.public_key()) => {
                Err(Damage::OtherKey {
                    place: reader.layout.verifier_key(),
                    found: key.to_string(),
                    kept: known.to_string(),
                }
                .into())
            }
            _ => Ok(()),
        }
    }

    /// Checks the stored hashes of the records, which are those of the checkpoint.
    fn judge_leaves(&self, reader: &Reader) -> Result<(), LogError> {
        match self.differences.first() {
            Some((index, _)) => {
                Err(Damage::HashTile(reader.layout.tile(0, index / TILE_WIDTH)).into())
            }
            None => Ok(()),
        }
    }

    /// Checks the hashes above those of the records. The records are valid.
    fn judge_tiles(&self, reader: &Reader) -> Result<(), LogError> {
        let bad = |place: PathBuf| Err(Damage::HashTile(place).into());
        for (level, hashes) in (1..).zip(&self.upper) {
            for (number, expected) in (0..).zip(hashes.chunks(TILE_WIDTH as usize)) {
                if !tile(reader, level, number)?.starts_with(expected) {
                    return bad(reader.layout.tile(level, number));
                }
            }
        }
        Ok(())
    }
}
