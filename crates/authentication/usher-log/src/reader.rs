//! Reading a log. The reader needs no private key and takes no lock, because records under a
//! checkpoint never change.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base64ct::{Base64, Encoding};

use crate::bundle::{self, Entries};
use crate::checkpoint::{
    Checkpoint, CheckpointError, MAX_CHECKPOINT, SignedCheckpoint, VerifyingKey,
};
use crate::error::{At, Damage, LogError};
use crate::layout::Layout;
use crate::merkle::{
    self, Frontier, HASH_SIZE, Hash, Node, TILE_HEIGHT, TILE_WIDTH, leaf_hash, verify_inclusion,
};
use usher_proto::LogKey;
use usher_proto::log_record::{Record, RecordError};

/// A log opened for reading.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(crate) layout: Layout,
}

impl Reader {
    /// The log in a directory.
    ///
    /// # Errors
    /// [`LogError::NoLog`], [`LogError::File`], [`Damage::VerifierKey`].
    pub fn open(directory: &Path) -> Result<Self, LogError> {
        let reader = Self {
            layout: Layout::new(directory),
        };
        reader.verifying_key()?;
        Ok(reader)
    }

    /// The log's public key, as its directory has it.
    ///
    /// # Errors
    /// [`LogError::NoLog`], [`LogError::File`], [`Damage::VerifierKey`].
    pub fn verifying_key(&self) -> Result<VerifyingKey, LogError> {
        read_verifier_key(&self.layout)
    }

    /// The log's newest checkpoint.
    ///
    /// # Errors
    /// [`LogError::File`]; [`Damage::Checkpoint`] when it is not by the log's key.
    pub fn checkpoint(&self) -> Result<SignedCheckpoint, LogError> {
        self.signed().map(|(_, checkpoint)| checkpoint)
    }

    /// The newest checkpoint, and the key that signed it.
    pub(crate) fn signed(&self) -> Result<(VerifyingKey, SignedCheckpoint), LogError> {
        let mut key = self.verifying_key()?;
        loop {
            let read = read_checkpoint(&self.layout, &key);
            let Err(LogError::Damaged(Damage::Checkpoint(_, CheckpointError::Signature(_)))) = read
            else {
                return Ok((key, read?));
            };
            // The key may have been changed since it was read.
            let now = self.verifying_key()?;
            if now == key {
                return Ok((key, read?));
            }
            key = now;
        }
    }

    /// The key that signs the ends of sessions at this index, and the index of the record up to which it
    /// signs. Reads from `index` on, up to the next change; [`Reader::verify`] checks earlier keys.
    ///
    /// # Errors
    /// Those of [`Reader::prove_inclusion`], about the change.
    pub fn key_at(&self, index: u64) -> Result<(LogKey, u64), LogError> {
        let (key, checkpoint) = self.signed()?;
        let size = checkpoint.checkpoint().size;
        let mut from = index;
        while from < size {
            let end = size.min((from / TILE_WIDTH + 1) * TILE_WIDTH);
            for (index, record) in (from..).zip(self.records(from..end)?) {
                if let Record::KeyChange(record) = record {
                    let forged = |error| self.layout.forged(index, error);
                    let change = record.verify().map_err(forged)?;
                    if change.index != index {
                        return Err(forged(RecordError::UnsignedChange).into());
                    }
                    // The log itself has accepted only the changes that its checkpoint covers.
                    self.prove_inclusion(index, checkpoint.checkpoint())?;
                    return Ok((change.former, index));
                }
            }
            from = end;
        }
        Ok((key.public_key(), u64::MAX))
    }

    /// The records of a range of indexes, in order. This does not check them against the tree:
    /// [`Reader::verify`] does.
    ///
    /// # Errors
    /// [`LogError::NoRecord`] when the range ends after the newest checkpoint's last record;
    /// [`LogError::Damaged`] when one is missing or unreadable.
    pub fn records(&self, range: Range<u64>) -> Result<Vec<Record>, LogError> {
        let size = self.checkpoint()?.checkpoint().size;
        if range.end > size {
            return Err(LogError::NoRecord {
                index: range.start.max(size),
                size,
            });
        }
        let mut records = Vec::new();
        let mut index = range.start;
        while index < range.end {
            let number = index / TILE_WIDTH;
            let place = self.layout.bundle(number);
            let bytes = bundle::read_bundle(&place).at(&place)?;
            let mut entries = Entries::new(&bytes);
            let end = range.end.min((number + 1) * TILE_WIDTH);
            for at in number * TILE_WIDTH..end {
                let entry = entries.next().ok_or_else(|| Damage::Truncated {
                    index: at,
                    size,
                    place: place.clone(),
                })?;
                if at < index {
                    continue;
                }
                let record =
                    Record::decode(entry).map_err(|error| self.layout.forged(at, error.into()))?;
                records.push(record);
            }
            index = end;
        }
        Ok(records)
    }

    /// One record, as [`Reader::records`].
    ///
    /// # Errors
    /// Those of [`Reader::records`].
    pub fn record(&self, index: u64) -> Result<Record, LogError> {
        let mut records = self.records(index..index.saturating_add(1))?;
        records
            .pop()
            .ok_or(LogError::NoRecord { index, size: index })
    }

    /// Proves that the tree of `checkpoint` has the record at `index`
    /// ([`merkle::verify_inclusion`]).
    ///
    /// # Errors
    /// [`LogError::NoRecord`]; [`LogError::Damaged`] when the log contradicts it.
    pub fn prove_inclusion(
        &self,
        index: u64,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<Hash>, LogError> {
        let size = checkpoint.size;
        if index >= size {
            return Err(LogError::NoRecord { index, size });
        }
        let record = self.record(index)?;
        let proof = merkle::prove_inclusion(index, size, |node| self.node(node))?;
        let leaf = leaf_hash(&record.encode());
        if !verify_inclusion(&leaf, index, size, &checkpoint.root, &proof) {
            return Err(self.rewritten());
        }
        Ok(proof)
    }

    /// A proof of a record that can be checked without the log (C2SP tlog-proof): its index, the
    /// inclusion proof, the newest checkpoint.
    ///
    /// # Errors
    /// Those of [`Reader::prove_inclusion`].
    pub fn tlog_proof(&self, index: u64) -> Result<String, LogError> {
        let checkpoint = self.checkpoint()?;
        let mut text = format!("c2sp.org/tlog-proof@v1\nindex {index}\n");
        for hash in self.prove_inclusion(index, checkpoint.checkpoint())? {
            text += &Base64::encode_string(&hash);
            text.push('\n');
        }
        text.push('\n');
        text += checkpoint.note();
        Ok(text)
    }

    /// The hash of a complete subtree, from the hash tiles.
    fn node(&self, node: Node) -> Result<Hash, LogError> {
        let below = node.height % TILE_HEIGHT;
        let level = node.height / TILE_HEIGHT;
        let (first, end) = (node.index << below, (node.index + 1) << below);
        let mut subtree = Frontier::default();
        for hash in stored_hashes(&self.layout, level, first, end)? {
            subtree.push_subtree(0, hash, |_, _, _| {});
        }
        Ok(subtree.root())
    }

    pub(crate) fn rewritten(&self) -> LogError {
        let place = self.layout.directory().to_owned();
        Damage::Rewritten(place).into()
    }
}

/// The hashes of one tile, from the `first` of its level up to `end`.
pub(crate) fn stored_hashes(
    layout: &Layout,
    level: u32,
    first: u64,
    end: u64,
) -> Result<Vec<Hash>, LogError> {
    if first == end {
        return Ok(Vec::new());
    }
    let place = layout.tile(level, first / TILE_WIDTH);
    let width = usize::try_from(end - first).unwrap_or(usize::MAX);
    let mut bytes = vec![0; width.saturating_mul(HASH_SIZE)];
    let offset = first % TILE_WIDTH * HASH_SIZE as u64;
    match File::open(&place).and_then(|file| file.read_exact_at(&mut bytes, offset)) {
        Ok(()) => {}
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
            ) =>
        {
            return Err(Damage::HashTile(place).into());
        }
        Err(error) => return Err(error).at(&place),
    }
    let (hashes, _) = bytes.as_chunks::<HASH_SIZE>();
    Ok(hashes.to_vec())
}

pub(crate) fn read_verifier_key(layout: &Layout) -> Result<VerifyingKey, LogError> {
    let place = layout.verifier_key();
    let text = match read_text(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(LogError::NoLog(layout.directory().to_owned()));
        }
        text => text.at(&place)?,
    };
    text.as_deref()
        .and_then(|text| text.strip_suffix('\n'))
        .ok_or(CheckpointError::VerifyingKey)
        .and_then(VerifyingKey::parse)
        .map_err(|error| Damage::VerifierKey(place, error).into())
}

pub(crate) fn read_checkpoint(
    layout: &Layout,
    key: &VerifyingKey,
) -> Result<SignedCheckpoint, LogError> {
    let place = layout.checkpoint();
    let text = match read_text(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CheckpointError::Missing),
        text => text.at(&place)?.ok_or(CheckpointError::Malformed),
    };
    text.and_then(|text| key.open(&text))
        .map_err(|error| Damage::Checkpoint(place, error).into())
}

/// Reads a small text file; none if it is too large or not text.
fn read_text(path: &Path) -> io::Result<Option<String>> {
    if fs::metadata(path)?.len() > MAX_CHECKPOINT as u64 {
        return Ok(None);
    }
    Ok(String::from_utf8(fs::read(path)?).ok())
}
