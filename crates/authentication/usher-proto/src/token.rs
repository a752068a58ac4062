//! Tokens in SYNs: a token proves that a connection belongs to a session, without a message on the
//! control channel.
//!
//! Tokens spend a second hash chain of the session, whose anchor the user signs beside the first
//! one's: `t[i] = SHA-256("usher-token-1" || salt || be32(i) || t[i+1])`, cut to 11 bytes; otherwise
//! as in [`crate::chain`]. Each connection spends one element. It travels in a TCP option of the SYN
//! (RFC 6994, experiment [`TOKEN_EXPERIMENT`]): 20 bytes with kind and length, of which 16 are ours:
//!
//! ```text
//! be24 slot | u8 position, its low byte | (element, then a zero byte) XOR mask
//! ```
//!
//! The mask is the first 12 bytes of SipHash-2-4-128 (Aumasson and Bernstein, 2012) under the
//! session's token key over the connection's endpoints ([`ConnectionTuple::encode`]) and the four
//! bytes before it. So an observer cannot move the element to another connection, and a forgery
//! without the key fails at the zero byte 255 times in 256, before anything is hashed. Slot and key
//! come over the control channel when the session is opened. The slot is the server's number for the
//! session.

use std::fmt;

use siphasher::sip128::SipHasher24;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::chain::{BLOCK, Domain, HashChain};
use usher_base::codec::{Codec, Reader, plain_bytes};
use usher_base::{ConnectionTuple, DecodeError};

/// The TCP option's kind: experimental (RFC 4727).
pub const TOKEN_OPTION_KIND: u8 = 253;

/// The TCP option's length, kind and length included. It fits beside the options of a Linux SYN.
pub const TOKEN_OPTION_SIZE: u8 = 20;

/// The experiment's identifier in the option (RFC 6994).
pub const TOKEN_EXPERIMENT: u16 = 0x5573;

/// Bytes of a [`Token`] in the option.
pub const TOKEN_SIZE: usize = 16;

/// Bytes of an element of the token chain. Finding `t[i+1]` from `t[i]` takes about 2^88 hashes for
/// each element of each session.
pub const TOKEN_ELEMENT_SIZE: usize = 11;

/// Bytes of the key that masks elements, and of the chain's salt.
pub const TOKEN_KEY_SIZE: usize = 16;

/// Elements in a block of the client's chain.
pub const TOKEN_BLOCK: u32 = BLOCK;

const DOMAIN: &Domain = b"usher-token-1";
const MASK_SIZE: usize = TOKEN_ELEMENT_SIZE + 1;

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

/// The contents of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The session's slot.
    pub slot: TokenSlot,
    /// The low byte of the element's place in the chain.
    pub position: u8,
    /// The element.
    pub element: TokenElement,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Token")
            .field("slot", &self.slot)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Our bytes of the option, masked for this connection.
    #[must_use]
    pub fn encode(
        &self,
        key: &[u8; TOKEN_KEY_SIZE],
        connection: &ConnectionTuple,
    ) -> [u8; TOKEN_SIZE] {
        let [_, slot @ ..] = self.slot.0.to_be_bytes();
        let mut bytes = [0; TOKEN_SIZE];
        bytes[..3].copy_from_slice(&slot);
        bytes[3] = self.position;
        bytes[4..4 + TOKEN_ELEMENT_SIZE].copy_from_slice(&self.element);
        apply_mask(&mut bytes, key, connection);
        bytes
    }

    /// Reads our bytes of the option in this connection's SYN. None when they were not made for it
    /// with this key. The element is not checked.
    #[must_use]
    pub fn decode(
        bytes: &[u8; TOKEN_SIZE],
        key: &[u8; TOKEN_KEY_SIZE],
        connection: &ConnectionTuple,
    ) -> Option<Self> {
        let mut clear = *bytes;
        apply_mask(&mut clear, key, connection);
        let mut element = [0; TOKEN_ELEMENT_SIZE];
        element.copy_from_slice(&clear[4..4 + TOKEN_ELEMENT_SIZE]);
        bool::from(clear[TOKEN_SIZE - 1].ct_eq(&0)).then_some(Self {
            slot: TokenSlot(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])),
            position: bytes[3],
            element,
        })
    }
}

fn apply_mask(
    bytes: &mut [u8; TOKEN_SIZE],
    key: &[u8; TOKEN_KEY_SIZE],
    connection: &ConnectionTuple,
) {
    let (head, masked) = bytes.split_at_mut(TOKEN_SIZE - MASK_SIZE);
    let mut message = Vec::with_capacity(40);
    message.extend_from_slice(&connection.encode());
    message.extend_from_slice(head);
    let mask = SipHasher24::new_with_key(key).hash(&message).as_bytes();
    for (byte, mask) in masked.iter_mut().zip(mask) {
        *byte ^= mask;
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

    const KEY: [u8; 16] = [7; 16];

    fn connection() -> ConnectionTuple {
        let [client, server] = ["10.0.0.2:40000", "10.0.0.1:143"].map(|end| end.parse().unwrap());
        ConnectionTuple::new(client, server).unwrap()
    }

    fn token() -> Token {
        Token {
            slot: TokenSlot::new(0x01_0203).unwrap(),
            position: 4,
            element: [9; 11],
        }
    }

    #[test]
    fn a_token_is_read_for_its_connection_with_its_key_only() {
        let bytes = token().encode(&KEY, &connection());
        assert_eq!(bytes[..4], [1, 2, 3, 4]);
        assert_eq!(Token::decode(&bytes, &KEY, &connection()), Some(token()));
        let read = |bytes: &[u8; 16], key: &[u8; 16], connection: &ConnectionTuple| {
            Token::decode(bytes, key, connection).is_some_and(|read| read == token())
        };
        assert!(!read(&bytes, &[8; 16], &connection()));
        let mut other = connection();
        other.client.set_port(40001);
        assert!(!read(&bytes, &KEY, &other));
        for byte in 0..TOKEN_SIZE {
            let mut moved = bytes;
            moved[byte] ^= 1;
            assert!(!read(&moved, &KEY, &connection()), "{byte}");
        }
    }

    #[test]
    fn a_forged_token_passes_the_mask_once_in_256() {
        let readable = (0..=u16::MAX)
            .filter(|guess| {
                let mut bytes = [0; TOKEN_SIZE];
                bytes[14..].copy_from_slice(&guess.to_be_bytes());
                Token::decode(&bytes, &KEY, &connection()).is_some()
            })
            .count();
        assert_eq!(readable, 256);
    }

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
        // Computed independently, by Python's hashlib and a SipHash written from its paper:
        // docs/PROTOCOL.md has the same values.
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let chain = TokenChain::generate(2, [0; 11], [0; 16]);
        assert_eq!(hex(&chain.anchor()), "e99694878e7525ee2e11b3");
        assert_eq!(hex(&chain.block(0)[0]), "df7060542286fd69a5b990");
        assert_eq!(
            hex(&token().encode(&KEY, &connection())),
            "01020304e7fc9abdb6441d57c5282463"
        );
    }
}
