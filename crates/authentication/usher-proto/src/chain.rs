//! The hash chain of a session (Lamport, "Password authentication with insecure communication",
//! CACM 24(11), 1981; netAuth section on successive connections).
//!
//! `h[i] = SHA-256("usher-chain-1" || salt || be32(i) || h[i+1])`, cut to 16 bytes. The user signs
//! the anchor `h[0]`; a chain of length n has the elements `h[1]` to `h[n]`, and `h[n+1]` is the
//! secret seed. The client reveals the elements in ascending order. A server that has seen `h[i]`
//! can check `h[i+1]` but not compute it. Salt and position are hashed in, so neither tables nor
//! elements of other chains or positions help. The 49 bytes of input take one compression of
//! SHA-256.

use std::fmt;
use subtle::ConstantTimeEq;
use usher_base::codec::fields;
use usher_base::sha256;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::Refusal;

/// Bytes of a chain element: it fits, with its kind and id, into 20 bytes of TCP option.
pub const CHAIN_ELEMENT_SIZE: usize = 16;

/// Longest chain. Making one takes 65,537 hashes, about 10 ms.
pub const MAX_CHAIN_LENGTH: u32 = 65_536;

/// How far an element may be ahead of the last accepted one, because elements in between were drawn and never
/// arrived. Bounds the keeper's work at 64 hashes an announcement.
pub const MAX_CHAIN_GAP: u32 = 64;

const DOMAIN: &Domain = b"usher-chain-1";

/// Elements that are computed together. A chain keeps one value for each block, and computes the
/// block's elements from it with as many hashes.
const BLOCK: u32 = 64;

type Value = [u8; CHAIN_ELEMENT_SIZE];
pub(crate) type Domain = [u8; 13];

/// `h[index]` from `h[index + 1]`, of a chain whose elements have `N` bytes, at most 16.
pub(crate) fn step<const N: usize>(
    domain: &Domain,
    salt: &Value,
    index: u32,
    next: &[u8; N],
) -> [u8; N] {
    const { assert!(N <= CHAIN_ELEMENT_SIZE) };
    let digest = sha256(&[domain, salt, &index.to_be_bytes(), next]);
    let mut value = [0; N];
    value.copy_from_slice(&digest[..N]);
    value
}

/// A chain whose elements have `N` bytes, on the client's side. All values are wiped when it is
/// dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct HashChain<const N: usize> {
    #[zeroize(skip)]
    domain: &'static Domain,
    anchor: [u8; N],
    salt: Value,
    length: u32,
    /// The value after each block: at `k` stands `h[(k + 1) * BLOCK + 1]`, and last the seed.
    checkpoints: Vec<[u8; N]>,
}

impl<const N: usize> HashChain<N> {
    /// Computes a chain. A length outside 1..=[`MAX_CHAIN_LENGTH`] becomes the nearer bound.
    pub(crate) fn new(domain: &'static Domain, length: u32, seed: [u8; N], salt: Value) -> Self {
        let length = length.clamp(1, MAX_CHAIN_LENGTH);
        // Sized at once: a vector that grows leaves copies behind that are never wiped.
        let mut checkpoints = Vec::with_capacity(length.div_ceil(BLOCK) as usize);
        checkpoints.push(seed);
        let mut anchor = seed;
        for index in (0..=length).rev() {
            anchor = step(domain, &salt, index, &anchor);
            if index > 1 && (index - 1).is_multiple_of(BLOCK) {
                checkpoints.push(anchor);
            }
        }
        checkpoints.reverse();
        Self {
            domain,
            anchor,
            salt,
            length,
            checkpoints,
        }
    }

    /// The value at position 0, which goes into the statement.
    #[must_use]
    pub fn anchor(&self) -> [u8; N] {
        self.anchor
    }

    /// Number of elements in the whole chain.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Number of blocks; the last may be shorter.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.length.div_ceil(BLOCK)
    }

    /// Block `number`, from 0: up to 64 elements, from position `number * 64 + 1` on. Empty beyond
    /// the end.
    #[must_use]
    pub fn block(&self, number: u32) -> Zeroizing<Vec<[u8; N]>> {
        let mut values = Zeroizing::new(Vec::with_capacity(BLOCK as usize));
        let Some(mut value) = self.checkpoints.get(number as usize).copied() else {
            return values;
        };
        let before = number * BLOCK;
        for index in (before + 1..=self.length.min(before + BLOCK)).rev() {
            value = step(self.domain, &self.salt, index, &value);
            values.push(value);
        }
        values.reverse();
        value.zeroize();
        values
    }
}

impl<const N: usize> fmt::Debug for HashChain<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HashChain")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// One element of a chain: the credential of one connection.
///
/// The first one to show it gets that connection, so `Debug` hides the value.
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

/// The chain whose elements announcements spend. As an iterator it yields each element once, in
/// order.
///
/// Not `Clone`: two holders would spend the same element.
pub struct Chain {
    values: HashChain<CHAIN_ELEMENT_SIZE>,
    /// Position of the last element that was drawn; 0 before the first.
    drawn: u32,
    block: Zeroizing<Vec<Value>>,
}

impl Chain {
    /// Computes a chain of `length` elements.
    ///
    /// `seed` and `salt` must come fresh from the system's random generator: all elements follow
    /// from the seed, which is secret; the salt is public. A length outside
    /// 1..=[`MAX_CHAIN_LENGTH`] becomes the nearer bound.
    #[must_use]
    pub fn generate(
        length: u32,
        seed: [u8; CHAIN_ELEMENT_SIZE],
        salt: [u8; CHAIN_ELEMENT_SIZE],
    ) -> Self {
        Self {
            values: HashChain::new(DOMAIN, length, seed, salt),
            drawn: 0,
            block: Zeroizing::default(),
        }
    }

    /// `h[0]`, which goes into the statement.
    #[must_use]
    pub fn anchor(&self) -> [u8; CHAIN_ELEMENT_SIZE] {
        self.values.anchor
    }

    /// Number of elements in the whole chain.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.values.length
    }

    /// The public salt.
    #[must_use]
    pub fn salt(&self) -> [u8; CHAIN_ELEMENT_SIZE] {
        self.values.salt
    }

    /// Number of elements left.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.length() - self.drawn
    }
}

impl Iterator for Chain {
    type Item = ChainElement;

    fn next(&mut self) -> Option<ChainElement> {
        if self.remaining() == 0 {
            return None;
        }
        let offset = self.drawn % BLOCK;
        if offset == 0 {
            self.block = self.values.block(self.drawn / BLOCK);
        }
        self.drawn += 1;
        Some(ChainElement {
            position: self.drawn,
            value: self.block[offset as usize],
        })
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Chain")
            .field("length", &self.length())
            .field("drawn", &self.drawn)
            .finish_non_exhaustive()
    }
}

/// The server's side of a chain: the last accepted element, at first the anchor.
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

    /// The tip after `element`, which also spends all elements before it. The caller stores the
    /// result before it acts on it. On failure the old tip stays valid.
    ///
    /// Takes at most [`MAX_CHAIN_GAP`] hashes and compares in constant time.
    ///
    /// # Errors
    /// In this order: [`Refusal::ChainReplayed`] for a position that is not after the last accepted
    /// one, [`Refusal::ChainExhausted`] for one beyond the chain's length, [`Refusal::ChainGap`] for
    /// one more than [`MAX_CHAIN_GAP`] ahead, [`Refusal::ChainMismatch`] for a value that does not
    /// hash to the last accepted one.
    pub fn advance(
        &self,
        salt: &[u8; CHAIN_ELEMENT_SIZE],
        length: u32,
        element: &ChainElement,
    ) -> Result<ChainTip, Refusal> {
        if element.position <= self.position {
            return Err(Refusal::ChainReplayed);
        }
        if element.position > length {
            return Err(Refusal::ChainExhausted);
        }
        if element.position - self.position > MAX_CHAIN_GAP {
            return Err(Refusal::ChainGap);
        }
        let mut value = element.value;
        for index in (self.position..element.position).rev() {
            value = step(DOMAIN, salt, index, &value);
        }
        if bool::from(value.ct_eq(&self.value)) {
            Ok(Self {
                position: element.position,
                value: element.value,
            })
        } else {
            Err(Refusal::ChainMismatch)
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

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
        // Computed independently: docs/PROTOCOL.md has the same values.
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
                Err(Refusal::ChainReplayed)
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
            Err(Refusal::ChainGap)
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
            assert_eq!(tip.advance(&SALT, 20, &forged), Err(Refusal::ChainMismatch));
        }
        let moved = ChainElement {
            position: 2,
            ..first
        };
        assert_eq!(tip.advance(&SALT, 20, &moved), Err(Refusal::ChainMismatch));
        let zeroth = ChainElement {
            position: 0,
            value: chain.anchor(),
        };
        assert_eq!(tip.advance(&SALT, 20, &zeroth), Err(Refusal::ChainReplayed));
        assert_eq!(
            tip.advance(&[0; 16], 20, &first),
            Err(Refusal::ChainMismatch)
        );
        assert_eq!(tip.advance(&SALT, 0, &first), Err(Refusal::ChainExhausted));
        let foreign = Chain::generate(20, *b"another byte see", SALT)
            .next()
            .unwrap();
        assert_eq!(
            tip.advance(&SALT, 20, &foreign),
            Err(Refusal::ChainMismatch)
        );
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
            Err(Refusal::ChainMismatch)
        );
        assert_eq!(
            tip.advance(&SALT, 20, &element),
            Err(Refusal::ChainExhausted)
        );
    }

    #[test]
    fn debug_shows_no_values() {
        let mut chain = Chain::generate(3, SEED, SALT);
        assert_eq!(format!("{chain:?}"), "Chain { length: 3, drawn: 0, .. }");
        assert_eq!(
            format!("{:?}", chain.next().unwrap()),
            "ChainElement { position: 1, .. }"
        );
    }
}
