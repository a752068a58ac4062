//! The messages that the holder of a host key signs for the process that speaks TLS.
//!
//! The keeper (server side) and the signer (client side) hold the host key; the verifier and the
//! courier speak TLS and hold no key. The holder signs only messages in the form of a TLS 1.3
//! CertificateVerify of its own side. So a subverted TLS process can make handshakes while it lives,
//! but no other signature: no authenticator, no SSH, no IKE, none of the other side.

use usher_base::DecodeError;

/// The side of a TLS connection that signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandshakeSide {
    /// The verifier's side; the keeper signs.
    Server,
    /// The courier's side; the signer signs.
    Client,
}

impl HandshakeSide {
    /// RFC 8446 section 4.4.3.
    const fn context(self) -> &'static [u8; 33] {
        match self {
            Self::Server => b"TLS 1.3, server CertificateVerify",
            Self::Client => b"TLS 1.3, client CertificateVerify",
        }
    }
}

/// Longest message that may be signed, in bytes, with a transcript hash of 48 (SHA-384).
pub const MAX_HANDSHAKE_MESSAGE: usize = PREFIX + 48;

const PADDING: usize = 64;
const PREFIX: usize = PADDING + 33 + 1;

/// Checks that the message is one that a TLS 1.3 CertificateVerify of this side signs: 64 spaces, the side's
/// context string, a zero, and a transcript hash of 32 or 48 bytes.
///
/// # Errors
/// [`DecodeError::Truncated`], [`DecodeError::Oversized`] or [`DecodeError::Malformed`]: the
/// message must not be signed.
pub fn check_handshake_message(side: HandshakeSide, message: &[u8]) -> Result<(), DecodeError> {
    if message.len() < PREFIX + 32 {
        return Err(DecodeError::Truncated);
    }
    if message.len() > MAX_HANDSHAKE_MESSAGE {
        return Err(DecodeError::Oversized);
    }
    let (padding, rest) = message.split_at(PADDING);
    if padding.iter().any(|&byte| byte != b' ') {
        return Err(DecodeError::Malformed {
            field: "handshake padding",
        });
    }
    let (context, rest) = rest.split_at(side.context().len());
    if context != side.context() || rest[0] != 0 {
        return Err(DecodeError::Malformed {
            field: "handshake context",
        });
    }
    match rest.len() - 1 {
        32 | 48 => Ok(()),
        _ => Err(DecodeError::Malformed {
            field: "handshake transcript hash",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(context: &str, hash: usize) -> Vec<u8> {
        let mut message = vec![b' '; 64];
        message.extend_from_slice(context.as_bytes());
        message.push(0);
        message.resize(message.len() + hash, 0xab);
        message
    }

    const SERVER: &str = "TLS 1.3, server CertificateVerify";
    const CLIENT: &str = "TLS 1.3, client CertificateVerify";

    #[test]
    fn each_side_signs_its_own_handshakes() {
        for hash in [32, 48] {
            check_handshake_message(HandshakeSide::Server, &message(SERVER, hash)).unwrap();
            check_handshake_message(HandshakeSide::Client, &message(CLIENT, hash)).unwrap();
        }
    }

    #[test]
    fn the_example_of_rfc_8446_is_signed() {
        // Section 4.4.3: 64 times 0x20, the server's context, 0, a hash of 01 repeated 32 times.
        let mut example = message(SERVER, 0);
        example.resize(example.len() + 32, 1);
        check_handshake_message(HandshakeSide::Server, &example).unwrap();
    }

    #[test]
    fn neither_side_signs_for_the_other() {
        let context = Err(DecodeError::Malformed {
            field: "handshake context",
        });
        assert_eq!(
            check_handshake_message(HandshakeSide::Server, &message(CLIENT, 32)),
            context
        );
        assert_eq!(
            check_handshake_message(HandshakeSide::Client, &message(SERVER, 32)),
            context
        );
    }

    #[test]
    fn nothing_else_is_signed() {
        for side in [HandshakeSide::Server, HandshakeSide::Client] {
            let context = if side == HandshakeSide::Server {
                SERVER
            } else {
                CLIENT
            };
            for hash in (0..=64).filter(|hash| ![32, 48].contains(hash)) {
                check_handshake_message(side, &message(context, hash)).unwrap_err();
            }
            // Every byte before the transcript hash counts.
            for position in 0..PREFIX {
                let mut changed = message(context, 32);
                changed[position] ^= 1;
                check_handshake_message(side, &changed).unwrap_err();
            }
            check_handshake_message(side, b"SSHSIG").unwrap_err();
            check_handshake_message(side, b"").unwrap_err();
        }
    }
}
