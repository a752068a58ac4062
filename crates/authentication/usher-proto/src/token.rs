//! Tokens in SYNs: a token proves that a connection belongs to a session, without a message on the
//! control channel.
//!
//! Tokens spend a second hash chain of the session, whose anchor the user signs beside the first
//! one's: `t[i] = SHA-256("usher-token-1" || salt || be32(i) || t[i+1])`, cut to 11 bytes; otherwise
//! as in [`crate::chain`]. Each connection spends one element. It travels in a TCP option of the SYN
//! (RFC 6994, experiment 0x5573): 20 bytes with kind and length, of which 16 are ours:
//!
//! ```text
//! be24 slot | u8 position, its low byte | (element, then a zero byte) XOR mask
//! ```
//!
//! The mask is the first 12 bytes of SipHash-2-4-128 (Aumasson and Bernstein, 2012) under the
//! session's token key over the connection's endpoints ([`usher_base::ConnectionTuple::encode`]) and
//! the four bytes before it. So an observer cannot move the element to another connection, and a forgery
//! without the key fails at the zero byte 255 times in 256, before anything is hashed. Slot and key
//! come over the control channel when the session is opened. The slot is the server's number for the
//! session.

use std::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::chain::{Domain, HashChain};
use usher_base::DecodeError;
use usher_base::codec::{Codec, Reader, plain_bytes};

/// Bytes of an element of the token chain. Finding `t[i+1]` from `t[i]` takes about 2^88 hashes for
/// each element of each session.
pub const TOKEN_ELEMENT_SIZE: usize = 11;

/// Bytes of the key that masks elements, and of the chain's salt.
pub const TOKEN_KEY_SIZE: usize = 16;

const DOMAIN: &Domain = b"usher-token-1";

/// An element's bytes.
pub type TokenElement = [u8; TOKEN_ELEMENT_SIZE];

plain_bytes! {
    /// The key that masks a session's tokens: random, chosen by the client, known to both hosts.
    #[derive(Clone, PartialEq, Eq, Hash, Zeroize, ZeroizeOnDrop)]
    pub struct TokenKey([u8; TOKEN_KEY_SIZE]);
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenKey(..)")
    }
}

/// The server's number for a session in tokens: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSlot(u32);

impl TokenSlot {
    /// Number of slots.
    pub const COUNT: u32 = 1 << 24;

    /// A slot; none for a number beyond [`Self::COUNT`].
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number < Self::COUNT {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl Codec for TokenSlot {
    fn put(value: &Self, out: &mut Vec<u8>) {
        u32::put(&value.0, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        Self::new(reader.u32()?).ok_or(DecodeError::Malformed { field })
    }
}

/// The client's token chain. The kernel spends its elements block by block.
pub type TokenChain = HashChain<TOKEN_ELEMENT_SIZE>;

impl TokenChain {
    /// Computes a chain of `length` elements, from a secret seed and a public salt that come fresh
    /// from the system's random generator. A length outside 1..=[`MAX_CHAIN_LENGTH`] becomes the
    /// nearer bound.
    ///
    /// [`MAX_CHAIN_LENGTH`]: crate::MAX_CHAIN_LENGTH
    #[must_use]
    pub fn generate(length: u32, seed: TokenElement, salt: [u8; TOKEN_KEY_SIZE]) -> Self {
        Self::new(DOMAIN, length, seed, salt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::step;

    #[test]
    fn the_elements_hash_to_the_anchor_one_after_the_other() {
        for length in [1, 63, 64, 65, 200] {
            let chain = TokenChain::generate(length, [3; 11], [5; 16]);
            let blocks: Vec<_> = (0..chain.blocks())
                .flat_map(|number| chain.block(number).to_vec())
                .collect();
            assert_eq!(blocks.len(), length as usize);
            assert!(chain.block(chain.blocks()).is_empty());
            let mut last = chain.anchor();
            for (index, element) in (0..).zip(&blocks) {
                assert_eq!(step(DOMAIN, &[5; 16], index, element), last);
                last = *element;
            }
        }
    }

    #[test]
    fn fixed_vectors() {
        // Computed independently, by Python's hashlib: docs/PROTOCOL.md has the same values.
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let chain = TokenChain::generate(2, [0; 11], [0; 16]);
        assert_eq!(hex(&chain.anchor()), "e99694878e7525ee2e11b3");
        assert_eq!(hex(&chain.block(0)[0]), "df7060542286fd69a5b990");
    }
}
