//! The token in the SYN: what proves, without a word on the control channel, that a connection is
//! one of a session's.
//!
//! A session has a second hash chain for it, whose anchor the user signs beside the first one's:
//! `t[i] = SHA-256("usher-token-1" || salt || be32(i) || t[i+1])`, cut to 11 bytes; otherwise as in
//! [`crate::chain`]. Each connection spends one element. It travels in a TCP option of the SYN (RFC
//! 6994, experiment [`TOKEN_EXPERIMENT`]), 20 bytes with kind and length, of which 16 are ours:
//!
//! ```text
//! be24 slot | u8 position, its low byte | (element, then a zero byte) XOR mask
//! ```
//!
//! The mask is the first 12 bytes of SipHash-2-4-128 (Aumasson and Bernstein, 2012) under the
//! session's token key over the connection's two ends ([`ConnectionTuple::encode`]) and the four
//! bytes before it. So an observer cannot move the element to another connection, and what somebody
//! makes up without the key fails at the zero byte 255 times in 256, before anything is hashed.
//! Slot and key come over the control channel when the session is opened; the slot is the server's
//! name for the session.

use std::fmt;

use siphasher::sip128::SipHasher24;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::chain::{CHECKPOINT_DISTANCE, MAX_CHAIN_LENGTH, block, checkpoints, hash};
use usher_base::codec::{Codec, Reader, plain_bytes};
use usher_base::{ConnectionTuple, DecodeError};

/// The TCP option's kind: experimental (RFC 4727).
pub const TOKEN_OPTION_KIND: u8 = 253;

/// The TCP option's length, kind and length included: what fits beside the options of Linux's SYN.
pub const TOKEN_OPTION_SIZE: u8 = 20;

/// The experiment's identifier in the option (RFC 6994).
pub const TOKEN_EXPERIMENT: u16 = 0x5573;

/// Bytes of a [`Token`] in the option.
pub const TOKEN_SIZE: usize = 16;

/// Bytes of an element of the token chain. Nobody finds `t[i+1]` from `t[i]` in fewer than some
/// 2^88 hashes, for one element of one session.
pub const TOKEN_ELEMENT_SIZE: usize = 11;

/// Bytes of the secret that masks elements, and of the chain's salt.
pub const TOKEN_KEY_SIZE: usize = 16;

/// Elements in a block of the client's chain.
pub const TOKEN_BLOCK: u32 = CHECKPOINT_DISTANCE;

/// How far a token may be ahead of the newest accepted one. Bounds the server's work at so many
/// hashes a SYN; such a distance and [`TOKENS_BEHIND`] together are told by one byte.
pub const TOKENS_AHEAD: u32 = 128;

/// How far a token may be behind the newest accepted one, when it has not been used.
pub const TOKENS_BEHIND: u32 = 127;

const DOMAIN: &[u8; 13] = b"usher-token-1";
const MASK_SIZE: usize = TOKEN_ELEMENT_SIZE + 1;

/// An element's bytes.
pub type TokenElement = [u8; TOKEN_ELEMENT_SIZE];

/// `t[index]` from `t[index + 1]`.
#[must_use]
pub fn token_step(salt: &[u8; TOKEN_KEY_SIZE], index: u32, next: &TokenElement) -> TokenElement {
    hash(DOMAIN, salt, index, next)
}

/// What masks a session's tokens: chosen at random by the client, known to the two hosts.
#[derive(Clone, PartialEq, Eq, Hash, Zeroize, ZeroizeOnDrop)]
pub struct TokenKey([u8; TOKEN_KEY_SIZE]);

impl TokenKey {
    /// A key.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; TOKEN_KEY_SIZE]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; TOKEN_KEY_SIZE] {
        &self.0
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenKey(..)")
    }
}

/// The server's name for a session in tokens: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSlot(u32);

impl TokenSlot {
    /// Slots there are.
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

plain_bytes!(TokenKey);

impl Codec for TokenSlot {
    fn put(value: &Self, out: &mut Vec<u8>) {
        u32::put(&value.0, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        Self::new(reader.u32()?).ok_or(DecodeError::Malformed { field })
    }
}

/// What a SYN carries, in the clear.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Whose.
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
    /// The bytes of the option that are ours, for this connection and no other.
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

    /// Reads the bytes of an option that came with this connection's SYN. None when they were not
    /// made for it with this key; when they are, the element may still be anything.
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

/// The client's token chain: gives its elements by blocks, of which the kernel spends one after the
/// other.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct TokenChain {
    anchor: TokenElement,
    salt: [u8; TOKEN_KEY_SIZE],
    length: u32,
    checkpoints: Vec<TokenElement>,
}

impl TokenChain {
    /// Computes a chain of `length` elements, from a secret seed and a public salt that come fresh
    /// from the system's random generator. A length outside 1..=[`MAX_CHAIN_LENGTH`] is moved to
    /// the nearer bound.
    #[must_use]
    pub fn generate(length: u32, seed: TokenElement, salt: [u8; TOKEN_KEY_SIZE]) -> Self {
        let length = length.clamp(1, MAX_CHAIN_LENGTH);
        let (anchor, checkpoints) =
            checkpoints(length, seed, |index, next| token_step(&salt, index, next));
        Self {
            anchor,
            salt,
            length,
            checkpoints,
        }
    }

    /// `t[0]`, which goes into the statement.
    #[must_use]
    pub fn anchor(&self) -> TokenElement {
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
        self.length.div_ceil(TOKEN_BLOCK)
    }

    /// Block `number`, from 0: the elements at positions `number * TOKEN_BLOCK + 1` on. Empty
    /// beyond the end.
    #[must_use]
    pub fn block(&self, number: u32) -> Zeroizing<Vec<TokenElement>> {
        let checkpoint = usize::try_from(number)
            .ok()
            .and_then(|number| self.checkpoints.get(number));
        Zeroizing::new(checkpoint.map_or_else(Vec::new, |checkpoint| {
            block(
                number * TOKEN_BLOCK,
                self.length,
                checkpoint,
                |index, next| token_step(&self.salt, index, next),
            )
        }))
    }
}

impl fmt::Debug for TokenChain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TokenChain")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_made_up_without_the_key_is_found_at_once_but_for_one_in_256() {
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
                assert_eq!(token_step(&[5; 16], index, element), last);
                last = *element;
            }
        }
    }

    #[test]
    fn fixed_vectors() {
        // Computed independently, by Python's hashlib and a SipHash written from its paper:
        // docs/PROTOCOL.md gives the same values.
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
