//! Tokens in SYNs, in Rust: the kernel's programs have to make and read the same bytes
//! (docs/PROTOCOL.md, "Token in the SYN").
#![allow(dead_code, reason = "every test binary uses a part of it")]

use siphasher::sip128::SipHasher24;
use usher_base::ConnectionTuple;
use usher_proto::TokenSlot;
use usher_proto::token::{TOKEN_ELEMENT_SIZE, TOKEN_KEY_SIZE, TokenElement};

/// The TCP option's kind: experimental (RFC 4727).
pub const TOKEN_OPTION_KIND: u8 = 253;

/// The TCP option's length, kind and length included. It fits beside the options of a Linux SYN.
pub const TOKEN_OPTION_SIZE: u8 = 20;

/// The experiment's identifier in the option (RFC 6994).
pub const TOKEN_EXPERIMENT: u16 = 0x5573;

/// Bytes of a [`Token`] in the option.
pub const TOKEN_SIZE: usize = 16;

/// Elements in a block of the client's chain.
pub const TOKEN_BLOCK: u32 = 64;

const MASK_SIZE: usize = TOKEN_ELEMENT_SIZE + 1;

/// The contents of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The session's slot.
    pub slot: TokenSlot,
    /// The low byte of the element's place in the chain.
    pub position: u8,
    /// The element.
    pub element: TokenElement,
}

impl Token {
    /// Our bytes of the option, masked for this connection.
    pub fn encode(
        &self,
        key: &[u8; TOKEN_KEY_SIZE],
        connection: &ConnectionTuple,
    ) -> [u8; TOKEN_SIZE] {
        let [_, slot @ ..] = self.slot.number().to_be_bytes();
        let mut bytes = [0; TOKEN_SIZE];
        bytes[..3].copy_from_slice(&slot);
        bytes[3] = self.position;
        bytes[4..4 + TOKEN_ELEMENT_SIZE].copy_from_slice(&self.element);
        apply_mask(&mut bytes, key, connection);
        bytes
    }

    /// Reads our bytes of the option in this connection's SYN. None if they were not made for this connection
    /// with this key. The element is not checked.
    pub fn decode(
        bytes: &[u8; TOKEN_SIZE],
        key: &[u8; TOKEN_KEY_SIZE],
        connection: &ConnectionTuple,
    ) -> Option<Self> {
        let mut clear = *bytes;
        apply_mask(&mut clear, key, connection);
        let mut element = [0; TOKEN_ELEMENT_SIZE];
        element.copy_from_slice(&clear[4..4 + TOKEN_ELEMENT_SIZE]);
        let slot = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        (clear[TOKEN_SIZE - 1] == 0).then_some(Self {
            slot: TokenSlot::new(slot)?,
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
