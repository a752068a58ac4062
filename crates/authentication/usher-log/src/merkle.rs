//! The Merkle tree of RFC 6962, section 2.1: hashes, roots, proofs.
//!
//! This module stores nothing: a growing tree is a [`Frontier`], and proofs are made from the hashes
//! of complete subtrees, which the caller looks up.

use sha2::{Digest, Sha256};

/// Bytes of a hash (SHA-256).
pub const HASH_SIZE: usize = 32;

/// A hash of the tree.
pub type Hash = [u8; HASH_SIZE];

/// Levels of the tree between two levels of tiles (C2SP tlog-tiles).
pub(crate) const TILE_HEIGHT: u32 = 8;

/// Hashes in a full tile, entries in a full bundle (C2SP tlog-tiles).
pub const TILE_WIDTH: u64 = 1 << TILE_HEIGHT;

/// Bytes of a full tile.
pub(crate) const TILE_SIZE: u64 = TILE_WIDTH * HASH_SIZE as u64;

/// Hash of a leaf: a byte 0 before it keeps a leaf from being read as an inner node.
#[must_use]
pub fn leaf_hash(entry: &[u8]) -> Hash {
    Sha256::new()
        .chain_update([0])
        .chain_update(entry)
        .finalize()
        .into()
}

/// Hash of an inner node.
#[must_use]
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Sha256::new()
        .chain_update([1])
        .chain_update(left)
        .chain_update(right)
        .finalize()
        .into()
}

/// Root of the empty tree.
#[must_use]
pub fn empty_root() -> Hash {
    Sha256::digest([]).into()
}

/// A complete subtree: 2^height leaves, the `index`-th of its height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Levels above the leaves.
    pub height: u32,
    /// The number of subtrees of this height to its left.
    pub index: u64,
}

/// The right edge of a tree: the complete subtrees that make it up, largest first. Appending needs
/// nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    peaks: Vec<(u32, Hash)>,
}

impl Frontier {
    /// Number of leaves.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends a leaf. Reports each hash that tiles store and that is now complete: its level of
    /// tiles, its index in that level, the hash.
    pub fn push(&mut self, leaf: Hash, mut stored: impl FnMut(u32, u64, &Hash)) {
        stored(0, self.size, &leaf);
        self.push_subtree(0, leaf, stored);
    }

    /// Appends a complete subtree of 2^height leaves, where the tree's size is a multiple of
    /// that.
    pub(crate) fn push_subtree(
        &mut self,
        mut height: u32,
        mut hash: Hash,
        mut stored: impl FnMut(u32, u64, &Hash),
    ) {
        debug_assert_eq!(self.size % (1 << height), 0, "a subtree on its own border");
        self.size += 1 << height;
        while let Some((_, left)) = self.peaks.pop_if(|(peak, _)| *peak == height) {
            hash = node_hash(&left, &hash);
            height += 1;
            if height.is_multiple_of(TILE_HEIGHT) {
                stored(height / TILE_HEIGHT, (self.size >> height) - 1, &hash);
            }
        }
        self.peaks.push((height, hash));
    }

    /// The root of the tree.
    #[must_use]
    pub fn root(&self) -> Hash {
        fold(self.peaks.iter().map(|(_, hash)| *hash))
    }
}

/// The hash over subtrees whose size decreases to the right.
fn fold(hashes: impl DoubleEndedIterator<Item = Hash>) -> Hash {
    hashes
        .rev()
        .reduce(|right, left| node_hash(&left, &right))
        .unwrap_or_else(empty_root)
}

/// The largest power of two smaller than `size`, which is at least 2.
fn split(size: u64) -> u64 {
    1 << (size - 1).ilog2()
}

/// The hash over the leaves from `begin` to `end`, a subtree of the tree's own shape.
fn range_hash<E>(
    begin: u64,
    end: u64,
    lookup: &mut impl FnMut(Node) -> Result<Hash, E>,
) -> Result<Hash, E> {
    let mut begin = begin;
    let mut hashes = Vec::new();
    while begin < end {
        let height = (end - begin).ilog2();
        hashes.push(lookup(Node {
            height,
            index: begin >> height,
        })?);
        begin += 1 << height;
    }
    Ok(fold(hashes.into_iter()))
}

/// Proves that the tree of `size` leaves has a given leaf at `index` (RFC 6962, section 2.1.1).
///
/// # Errors
/// Those of `lookup`, which gets complete subtrees below `size` only.
///
/// # Panics
/// When `index` is not below `size`.
pub fn prove_inclusion<E>(
    index: u64,
    size: u64,
    mut lookup: impl FnMut(Node) -> Result<Hash, E>,
) -> Result<Vec<Hash>, E> {
    assert!(index < size, "a leaf of the tree");
    let (mut begin, mut end) = (0, size);
    let mut proof = Vec::new();
    while end - begin > 1 {
        let middle = begin + split(end - begin);
        if index < middle {
            proof.push(range_hash(middle, end, &mut lookup)?);
            end = middle;
        } else {
            proof.push(range_hash(begin, middle, &mut lookup)?);
            begin = middle;
        }
    }
    proof.reverse();
    Ok(proof)
}

/// Whether `proof` shows that the tree of `size` leaves and this root has `leaf` at `index`
/// (RFC 9162, section 2.1.3.2).
#[must_use]
pub fn verify_inclusion(leaf: &Hash, index: u64, size: u64, root: &Hash, proof: &[Hash]) -> bool {
    if index >= size {
        return false;
    }
    let (mut node, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for step in proof {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(step, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, step);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && hash == *root
}
