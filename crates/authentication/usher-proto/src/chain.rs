//! The hash chain of a session (Lamport, "Password authentication with insecure communication",
//! CACM 24(11), 1981; netAuth section on successive connections).
//!
//! `h[i] = SHA-256("usher-chain-1" || salt || be32(i) || h[i+1])`, cut to 16 bytes. `h[0]` is the
//! anchor, which the user signs; a chain of length n has the elements `h[1]` to `h[n]`, and
//! `h[n+1]` is the secret seed. The client reveals the elements in ascending order. Whoever has
//! seen `h[i]` can check `h[i+1]` but not make it, not even the server. Salt and position are
//! hashed in so that no table and no element of another chain or place helps. The 49 bytes of
//! input are one compression of SHA-256.

use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;
use usher_base::codec::fields;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a chain element: what fits, with its kind and id, into 20 bytes of TCP option.
pub const CHAIN_ELEMENT_SIZE: usize = 16;

/// Longest chain. Making one of this length takes 65,537 hashes, about 10 ms.
pub const MAX_CHAIN_LENGTH: u32 = 65_536;

/// How far an element may be ahead of the last accepted one: elements that were drawn but never
/// reached the server. Bounds the verifier's work at 64 hashes an announcement.
pub const MAX_CHAIN_GAP: u32 = 64;

const DOMAIN: &[u8; 13] = b"usher-chain-1";

/// Elements between two kept checkpoints of the client's chain: memory is length/64 + 64 elements
/// in place of length, every 64th element costs 64 hashes.
pub(crate) const CHECKPOINT_DISTANCE: u32 = 64;

type Value = [u8; CHAIN_ELEMENT_SIZE];

/// `h[index]` from `h[index + 1]`.
fn step(salt: &Value, index: u32, next: &Value) -> Value {
    hash(DOMAIN, salt, index, next)
}

/// One step of a chain whose elements have `N` bytes, at most 16.
pub(crate) fn hash<const N: usize>(
    domain: &[u8; 13],
    salt: &[u8; CHAIN_ELEMENT_SIZE],
    index: u32,
    next: &[u8; N],
) -> [u8; N] {
    const { assert!(N <= CHAIN_ELEMENT_SIZE) };
    let digest = Sha256::new()
        .chain_update(domain)
        .chain_update(salt)
        .chain_update(index.to_be_bytes())
        .chain_update(next)
        .finalize();
    let mut value = [0; N];
    value.copy_from_slice(&digest[..N]);
    value
}

/// The anchor of a chain, and the values that its blocks of [`CHECKPOINT_DISTANCE`] elements are
/// computed from: `checkpoints[k]` is `h[(k + 1) * CHECKPOINT_DISTANCE + 1]`, the last is the seed.
pub(crate) fn checkpoints<const N: usize>(
    length: u32,
    seed: [u8; N],
    step: impl Fn(u32, &[u8; N]) -> [u8; N],
) -> ([u8; N], Vec<[u8; N]>) {
    // Sized at once: a vector that grows leaves copies behind that nobody wipes.
    let mut checkpoints = Vec::with_capacity(length.div_ceil(CHECKPOINT_DISTANCE) as usize);
    checkpoints.push(seed);
    let mut value = seed;
    for index in (0..=length).rev() {
        value = step(index, &value);
        if index > 1 && (index - 1).is_multiple_of(CHECKPOINT_DISTANCE) {
            checkpoints.push(value);
        }
    }
    checkpoints.reverse();
    (value, checkpoints)
}

/// The values of a block, in order of position, from its checkpoint. `given` elements stand before
/// it.
pub(crate) fn block<const N: usize>(
    given: u32,
    length: u32,
    checkpoint: &[u8; N],
    step: impl Fn(u32, &[u8; N]) -> [u8; N],
) -> Vec<[u8; N]> {
    let last = length.min(given + CHECKPOINT_DISTANCE);
    let mut values = Vec::with_capacity(CHECKPOINT_DISTANCE as usize);
    let mut value = *checkpoint;
    for index in (given + 1..=last).rev() {
        value = step(index, &value);
        values.push(value);
    }
    values.reverse();
    value.zeroize();
    values
}

/// One element of a chain: the credential of one connection.
///
/// Worth one connection to whoever has it first, so `Debug` does not show the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainElement {
    /// Place in the chain, 1 to the chain's length.
    pub position: u32,
    /// `h[position]`.
    pub value: [u8; CHAIN_ELEMENT_SIZE],
}

fields! { ChainElement { position: u32, value: [u8; CHAIN_ELEMENT_SIZE] } }

impl fmt::Debug for ChainElement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ChainElement")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// The client's side of a chain: gives out each element once, in order.
///
/// Neither `Clone` nor readable out of order: two holders would spend the same element. All
/// values are wiped when it is dropped. As an iterator it yields the elements that remain.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Chain {
    anchor: Value,
    salt: Value,
    length: u32,
    /// Position of the last element given out; 0 before the first.
    given: u32,
    /// See [`checkpoints`].
    checkpoints: Vec<Value>,
    /// The current block's values, in order of position.
    block: Vec<Value>,
}

impl Chain {
    /// Computes a chain of `length` elements.
    ///
    /// `seed` and `salt` must come fresh from the system's random generator: the seed is the
    /// secret that all elements follow from, the salt is public. A length outside
    /// 1..=[`MAX_CHAIN_LENGTH`] is moved to the nearer bound.
    #[must_use]
    pub fn generate(
        length: u32,
        seed: [u8; CHAIN_ELEMENT_SIZE],
        salt: [u8; CHAIN_ELEMENT_SIZE],
    ) -> Self {
        let length = length.clamp(1, MAX_CHAIN_LENGTH);
        let (anchor, checkpoints) =
            checkpoints(length, seed, |index, next| step(&salt, index, next));
        Self {
            anchor,
            salt,
            length,
            given: 0,
            checkpoints,
            block: Vec::new(),
        }
    }

    /// `h[0]`, which goes into the statement.
    #[must_use]
    pub fn anchor(&self) -> [u8; CHAIN_ELEMENT_SIZE] {
        self.anchor
    }

    /// Number of elements in the whole chain.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The public salt.
    #[must_use]
    pub fn salt(&self) -> [u8; CHAIN_ELEMENT_SIZE] {
        self.salt
    }

    /// Number of elements not yet given out.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.length - self.given
    }

    /// Computes the values of the block that begins after `given` elements.
    fn fill_block(&mut self) {
        self.block.zeroize();
        let checkpoint = (self.given / CHECKPOINT_DISTANCE) as usize;
        let salt = self.salt;
        self.block = block(
            self.given,
            self.length,
            &self.checkpoints[checkpoint],
            |index, next| step(&salt, index, next),
        );
    }
}

impl Iterator for Chain {
    type Item = ChainElement;

    /// Gives out the next element; nothing when the chain is used up.
    fn next(&mut self) -> Option<ChainElement> {
        if self.given == self.length {
            return None;
        }
        let offset = self.given % CHECKPOINT_DISTANCE;
        if offset == 0 {
            self.fill_block();
        }
        self.given += 1;
        Some(ChainElement {
            position: self.given,
            value: self.block[offset as usize],
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.remaining() as usize;
        (remaining, Some(remaining))
    }
}

impl ExactSizeIterator for Chain {}

impl fmt::Debug for Chain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Chain")
            .field("length", &self.length)
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}

/// Why an element does not advance a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ChainError {
    /// The position is not after the last accepted one.
    #[error("the chain element was used before")]
    Replayed,
    /// The position is beyond the chain's length.
    #[error("the chain element lies beyond the end of the chain")]
    Exhausted,
    /// The position is more than [`MAX_CHAIN_GAP`] after the last accepted one.
    #[error("the chain element is more than {MAX_CHAIN_GAP} positions ahead of the last one")]
    GapTooLarge,
    /// The value does not hash to the last accepted one.
    #[error("the chain element does not belong to this chain")]
    Mismatch,
}

impl From<ChainError> for crate::Refusal {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::Replayed => Self::ChainReplayed,
            ChainError::Exhausted => Self::ChainExhausted,
            ChainError::GapTooLarge => Self::ChainGap,
            ChainError::Mismatch => Self::ChainMismatch,
        }
    }
}

/// The server's side of a chain: the last accepted element. Starts as position 0 with the anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChainTip {
    /// Position of the last accepted element; 0 before the first.
    pub position: u32,
    /// `h[position]`.
    pub value: [u8; CHAIN_ELEMENT_SIZE],
}

impl ChainTip {
    /// The tip of a chain of which no element has been accepted yet.
    #[must_use]
    pub const fn at_anchor(anchor: [u8; CHAIN_ELEMENT_SIZE]) -> Self {
        Self {
            position: 0,
            value: anchor,
        }
    }

    /// The tip after `element`; elements between the two are thereby spent. The caller stores
    /// the result before it acts on it. On failure nothing changes: the old tip stays valid.
    ///
    /// Costs at most [`MAX_CHAIN_GAP`] hashes; the comparison takes constant time.
    ///
    /// # Errors
    /// [`ChainError`], checked in the order [`Replayed`](ChainError::Replayed),
    /// [`Exhausted`](ChainError::Exhausted), [`GapTooLarge`](ChainError::GapTooLarge),
    /// [`Mismatch`](ChainError::Mismatch).
    pub fn advance(
        &self,
        salt: &[u8; CHAIN_ELEMENT_SIZE],
        length: u32,
        element: &ChainElement,
    ) -> Result<ChainTip, ChainError> {
        if element.position <= self.position {
            return Err(ChainError::Replayed);
        }
        if element.position > length {
            return Err(ChainError::Exhausted);
        }
        if element.position - self.position > MAX_CHAIN_GAP {
            return Err(ChainError::GapTooLarge);
        }
        let mut value = element.value;
        for index in (self.position..element.position).rev() {
            value = step(salt, index, &value);
        }
        if bool::from(value.ct_eq(&self.value)) {
            Ok(Self {
                position: element.position,
                value: element.value,
            })
        } else {
            Err(ChainError::Mismatch)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: Value = *b"sixteen byte see";
    const SALT: Value = *b"and sixteen salt";

    /// The definition, written the slow way.
    fn reference(length: u32) -> Vec<Value> {
        let mut values = vec![SEED];
        for index in (0..=length).rev() {
            let mut input = b"usher-chain-1".to_vec();
            input.extend_from_slice(&SALT);
            input.extend_from_slice(&index.to_be_bytes());
            input.extend_from_slice(values.last().unwrap());
            assert!(input.len() <= 55, "more than one compression");
            values.push(Sha256::digest(&input)[..16].try_into().unwrap());
        }
        values.reverse();
        values
    }

    #[test]
    fn the_elements_are_those_of_the_definition() {
        for length in [1, 2, 63, 64, 65, 127, 128, 129, 1000] {
            let expected = reference(length);
            let mut chain = Chain::generate(length, SEED, SALT);
            assert_eq!(chain.anchor(), expected[0]);
            for position in 1..=length {
                let element = chain.next().unwrap();
                assert_eq!(element.position, position);
                assert_eq!(
                    element.value, expected[position as usize],
                    "{position} of {length}"
                );
                assert_eq!(chain.remaining(), length - position);
            }
            assert_eq!(chain.next(), None);
        }
    }

    #[test]
    fn a_fixed_vector() {
        // Computed independently: docs/PROTOCOL.md gives the same values.
        let mut chain = Chain::generate(2, [0; 16], [0; 16]);
        let hex = |value: Value| crate::SessionId::from_bytes(value).to_string();
        assert_eq!(hex(chain.anchor()), "439fa8925151cc82ce268b25888e23f6");
        assert_eq!(
            hex(chain.next().unwrap().value),
            "9c6f9bbf40959d0c148a0f7cb6bbcb7c"
        );
        assert_eq!(
            hex(chain.next().unwrap().value),
            "a87a0c4955e77ddae7c765b4b500f72e"
        );
    }

    #[test]
    fn lengths_out_of_bounds_move_to_the_bound() {
        assert_eq!(Chain::generate(0, SEED, SALT).length(), 1);
        assert_eq!(
            Chain::generate(u32::MAX, SEED, SALT).length(),
            MAX_CHAIN_LENGTH
        );
    }

    #[test]
    fn every_element_advances_the_tip_once() {
        let chain = Chain::generate(200, SEED, SALT);
        let mut tip = ChainTip::at_anchor(chain.anchor());
        for element in chain {
            let next = tip.advance(&SALT, 200, &element).unwrap();
            assert_eq!(
                next.advance(&SALT, 200, &element),
                Err(ChainError::Replayed)
            );
            tip = next;
        }
        assert_eq!(tip.position, 200);
    }

    #[test]
    fn a_gap_of_64_is_accepted_and_65_is_not() {
        let chain = Chain::generate(200, SEED, SALT);
        let tip = ChainTip::at_anchor(chain.anchor());
        let elements: Vec<_> = chain.collect();
        assert_eq!(tip.advance(&SALT, 200, &elements[63]).unwrap().position, 64);
        assert_eq!(
            tip.advance(&SALT, 200, &elements[64]),
            Err(ChainError::GapTooLarge)
        );
    }

    #[test]
    fn forged_moved_and_foreign_elements_are_refused() {
        let mut chain = Chain::generate(20, SEED, SALT);
        let tip = ChainTip::at_anchor(chain.anchor());
        let first = chain.next().unwrap();
        tip.advance(&SALT, 20, &first).unwrap();

        for bit in 0..128 {
            let mut forged = first;
            forged.value[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(tip.advance(&SALT, 20, &forged), Err(ChainError::Mismatch));
        }
        let moved = ChainElement {
            position: 2,
            ..first
        };
        assert_eq!(tip.advance(&SALT, 20, &moved), Err(ChainError::Mismatch));
        let zeroth = ChainElement {
            position: 0,
            value: chain.anchor(),
        };
        assert_eq!(tip.advance(&SALT, 20, &zeroth), Err(ChainError::Replayed));
        assert_eq!(tip.advance(&[0; 16], 20, &first), Err(ChainError::Mismatch));
        assert_eq!(tip.advance(&SALT, 0, &first), Err(ChainError::Exhausted));
        let foreign = Chain::generate(20, *b"another byte see", SALT)
            .next()
            .unwrap();
        assert_eq!(tip.advance(&SALT, 20, &foreign), Err(ChainError::Mismatch));
    }

    #[test]
    fn positions_at_the_end_of_the_number_range_do_not_overflow() {
        let tip = ChainTip {
            position: u32::MAX - 1,
            value: [7; 16],
        };
        let element = ChainElement {
            position: u32::MAX,
            value: [8; 16],
        };
        assert_eq!(
            tip.advance(&SALT, u32::MAX, &element),
            Err(ChainError::Mismatch)
        );
        assert_eq!(tip.advance(&SALT, 20, &element), Err(ChainError::Exhausted));
    }

    #[test]
    fn debug_shows_no_values() {
        let mut chain = Chain::generate(3, SEED, SALT);
        assert_eq!(format!("{chain:?}"), "Chain { length: 3, given: 0, .. }");
        assert_eq!(
            format!("{:?}", chain.next().unwrap()),
            "ChainElement { position: 1, .. }"
        );
    }
}
