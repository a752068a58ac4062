//! The bytes of tokens, without the kernel.
//!
//! Threat model: A8, A13

#[path = "world/token.rs"]
mod token;

use token::{TOKEN_SIZE, Token};
use usher_base::ConnectionTuple;
use usher_proto::TokenSlot;

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
fn a_token_has_the_bytes_of_the_document() {
    // Computed independently, by Python's hashlib and a SipHash written from its paper:
    // docs/PROTOCOL.md has the same value.
    let hex = token().encode(&KEY, &connection());
    let hex = hex.map(|byte| format!("{byte:02x}")).concat();
    assert_eq!(hex, "01020304e7fc9abdb6441d57c5282463");
}
