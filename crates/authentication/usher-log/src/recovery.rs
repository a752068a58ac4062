//! Opening a log: checks it against its checkpoint, and takes up what a crash left behind.

use std::path::Path;

use crate::bundle::{self, Entries, read_up_to};
use crate::checkpoint::{SignedCheckpoint, SigningKey};
use crate::durable::{self, Written};
use crate::error::{At, Damage, LogError};
use crate::layout::{Layout, Lock, cut_bundles, cut_tiles};
use crate::merkle::{Frontier, Hash, TILE_HEIGHT, TILE_SIZE, TILE_WIDTH, leaf_hash};
use crate::reader::{Reader, read_checkpoint, read_verifier_key, stored_hashes};
use crate::writer::{Log, SigningKeys, prepare_verifier_key};
use usher_proto::LogKey;
use usher_proto::log_record::{Record, RecordError, Says};

impl Log {
    /// Opens the log in a directory, or begins one if there is none. Continues it with the next key if
    /// that has taken the present one's place already; else see [`Log::change_key`].
    ///
    /// This repairs what a crash left behind: it takes up whole records with valid signatures that
    /// the checkpoint does not have yet, and cuts off anything after them.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when the last records, the hashes or the checkpoint differ from what
    /// the key has signed: such a log accepts no appends, so that the key never vouches for two
    /// histories. [`LogError::OtherKey`], [`LogError::UnfinishedChange`], [`LogError::Locked`],
    /// [`LogError::File`].
    pub fn open(directory: &Path, keys: impl Into<SigningKeys>) -> Result<Self, LogError> {
        let layout = Layout::new(directory);
        durable::make_directory(directory)?;
        let lock = Lock::take(&layout)?;
        let (key, next) = key_of(&layout, keys.into())?;
        let checkpoint = checkpoint_of(&layout, &key)?;
        let mut log = Self {
            layout,
            key,
            next,
            tree: Frontier::default(),
            checkpoint,
            bundle_length: 0,
            unknown: false,
            _lock: lock,
        };
        // The change comes first, so that no record beyond the checkpoint gets between a change and its end.
        finish_change(&mut log)?;
        recover(&mut log)?;
        Ok(log)
    }
}

/// The key of the log in this directory, and the one that is still to take its place. A new log gets the
/// present one.
fn key_of(
    layout: &Layout,
    keys: SigningKeys,
) -> Result<(SigningKey, Option<SigningKey>), LogError> {
    let SigningKeys { present, next } = keys;
    let next = next.filter(|next| next.verifying_key() != present.verifying_key());
    let found = match read_verifier_key(layout) {
        Err(LogError::NoLog(_)) => {
            prepare_verifier_key(layout, &present)?;
            durable::publish(&layout.verifier_key())?;
            return Ok((present, next));
        }
        found => found?,
    };
    if found == *present.verifying_key() {
        return Ok((present, next));
    }
    match next {
        Some(next) if found == *next.verifying_key() => Ok((next, None)),
        _ => Err(LogError::OtherKey {
            path: layout.verifier_key(),
            found: found.to_string(),
            given: present.verifying_key().to_string(),
        }),
    }
}

/// Finishes a change of key whose record is the log's last one, if a crash has cut the change short.
fn finish_change(log: &mut Log) -> Result<(), LogError> {
    let Some(last) = log.checkpoint.checkpoint().size.checked_sub(1) else {
        return Ok(());
    };
    let reader = Reader {
        layout: log.layout.clone(),
    };
    let Record::KeyChange(record) = reader.record(last)? else {
        return Ok(());
    };
    let forged = |error| log.layout.forged(last, error);
    let change = record.verify().map_err(forged)?;
    let key = log.key.verifying_key().public_key();
    if change.next == key {
        return Ok(());
    }
    if change.former != key || change.index != last {
        return Err(forged(RecordError::UnsignedChange).into());
    }
    match log.next.take() {
        Some(next) if change.next == next.verifying_key().public_key() => {
            prepare_verifier_key(&log.layout, &next)?;
            log.finish_change(next)
        }
        _ => Err(LogError::UnfinishedChange {
            path: log.layout.verifier_key(),
            next: log
                .key
                .verifying_key()
                .with(change.next)
                .map_err(LogError::Signing)?
                .to_string(),
        }),
    }
}

/// The checkpoint of the log in this directory, or of an empty log if there is none.
fn checkpoint_of(layout: &Layout, key: &SigningKey) -> Result<SignedCheckpoint, LogError> {
    let path = layout.checkpoint();
    // A log that has lost its checkpoint must not begin anew: the key would vouch for unchecked
    // records.
    if !path.try_exists().at(&path)? && !layout.tiles().try_exists().at(&path)? {
        let empty = key
            .sign(&Frontier::default(), None)
            .map_err(LogError::Signing)?;
        durable::prepare(&path, empty.note().as_bytes())?;
        durable::publish(&path)?;
        durable::sync_directory(layout.directory())?;
    }
    read_checkpoint(layout, key.verifying_key())
}

/// Brings a log that has only its checkpoint up to the state of the disk.
fn recover(log: &mut Log) -> Result<(), LogError> {
    let checkpoint = log.checkpoint.checkpoint();
    let size = checkpoint.size;
    let number = size / TILE_WIDTH;
    let mut tree = upper_levels(&log.layout, size)?;

    let path = log.layout.bundle(number);
    let bytes = bundle::read_bundle(&path).at(&path)?;
    let mut entries = Entries::new(&bytes);
    let mut leaves = Vec::new();
    while tree.size() < size {
        let entry = entries.next().ok_or_else(|| Damage::Truncated {
            index: tree.size(),
            size,
            place: path.clone(),
        })?;
        leaves.push(leaf_hash(entry));
        tree.push_subtree(0, leaf_hash(entry), |_, _, _| {});
    }
    if tree.root() != checkpoint.root {
        let place = log.layout.directory().to_owned();
        return Err(Damage::Rewritten(place).into());
    }
    log.tree = tree;
    log.bundle_length = entries.offset() as u64;

    let tail = Tail::read(log, size, &bytes[entries.offset()..])?;
    let mut written = Vec::new();
    if !tail.leaves.is_empty() {
        for bundle in number..=(size + tail.leaves.len() as u64 - 1) / TILE_WIDTH {
            let path = log.layout.bundle(bundle);
            written.push(Written::existing(path, log.layout.directory())?);
        }
    }
    let end = size + tail.leaves.len() as u64;
    let length = if end / TILE_WIDTH == number {
        log.bundle_length + tail.length
    } else {
        tail.length
    };
    cut_bundles(&log.layout, end, length)?;
    cut_tiles(&log.layout, size)?;
    restore_leaf_hashes(&log.layout, number, &leaves)?;
    for path in [log.layout.checkpoint(), log.layout.verifier_key()] {
        durable::cut(&durable::prepared(&path), 0)?;
    }
    if tail.leaves.is_empty() {
        return Ok(());
    }
    log.seal(&written, &tail.leaves, length, None)
}

/// The right edge of a tree of `size` leaves, without the leaves of its last bundle.
fn upper_levels(layout: &Layout, size: u64) -> Result<Frontier, LogError> {
    let mut tree = Frontier::default();
    for level in (1..u64::BITS / TILE_HEIGHT).rev() {
        let count = size >> (level * TILE_HEIGHT);
        for hash in stored_hashes(layout, level, count / TILE_WIDTH * TILE_WIDTH, count)? {
            tree.push_subtree(level * TILE_HEIGHT, hash, |_, _, _| {});
        }
    }
    Ok(tree)
}

/// Whole records after those of the checkpoint, which a crash has kept out of it.
///
/// They may have been acknowledged, because an append does not wait for the checkpoint's new name. So
/// the log takes them up, and cuts off only a torn one. Their signatures distinguish a record from
/// the debris that a file system leaves in a file that it had no time to write.
struct Tail {
    leaves: Vec<Hash>,
    /// The bytes of the tail in the last bundle that it reaches.
    length: u64,
}

impl Tail {
    fn read(log: &Log, size: u64, rest: &[u8]) -> Result<Self, LogError> {
        let key = log.key.verifying_key().public_key();
        let mut tail = Self {
            leaves: Vec::new(),
            length: 0,
        };
        let mut bytes = rest.to_vec();
        loop {
            let mut entries = Entries::new(&bytes);
            while let Some(entry) = entries.next() {
                if !is_genuine(entry, key) {
                    break;
                }
                tail.leaves.push(leaf_hash(entry));
                tail.length = entries.offset() as u64;
                if (size + tail.leaves.len() as u64).is_multiple_of(TILE_WIDTH) {
                    break;
                }
            }
            let end = size + tail.leaves.len() as u64;
            let filled = !tail.leaves.is_empty() && end.is_multiple_of(TILE_WIDTH);
            if !filled || tail.length == 0 {
                return Ok(tail);
            }
            tail.length = 0;
            let path = log.layout.bundle(end / TILE_WIDTH);
            bytes = bundle::read_bundle(&path).at(&path)?;
        }
    }
}

/// Whether a record may have been acknowledged without a checkpoint. A change of key never is.
fn is_genuine(entry: &[u8], key: LogKey) -> bool {
    match Record::decode(entry).map(|record| record.verify()) {
        Ok(Ok(Says::Authentication(_))) => true,
        Ok(Ok(Says::End(end))) => end.key == key,
        _ => false,
    }
}

/// Rewrites the leaf hashes of the last bundle where they differ from the bundle's own, because
/// appending does not wait for them.
fn restore_leaf_hashes(layout: &Layout, number: u64, leaves: &[Hash]) -> Result<(), LogError> {
    let path = layout.tile(0, number);
    let bytes = leaves.concat();
    if read_up_to(&path, TILE_SIZE).at(&path)? == bytes {
        return Ok(());
    }
    durable::write_at(path, 0, &bytes, layout.directory()).map(drop)
}
