//! One request to an ssh-agent, and its answer (OpenSSH, PROTOCOL.agent; draft-ietf-sshm-ssh-agent
//! sections 3, 3.6 and 5.1). Each message is a length of 4 bytes and that many bytes, of which the
//! first is its type.

use usher_base::DecodeError;
use usher_base::codec::{self, Bytes, Reader, messages, put_string};

/// Longest answer in bytes, not counting the length before it. An RSA signature of 4,096 bits has 537.
pub const MAX_AGENT_ANSWER: usize = 4096;

const IDENTITIES_REQUEST: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;

/// The flag of a request for an RSA signature with SHA-512 (draft-ietf-sshm-ssh-agent section 3.6.1). Without
/// a flag agents sign with SHA-1.
const RSA_SHA2_512: u32 = 4;
const RSA: &[u8] = b"ssh-rsa";

/// The request for a signature by the key `public_key` (RFC 4253 section 6.6) over `data`, with its
/// length. RSA keys are to sign with SHA-512.
#[must_use]
pub fn sign_request(public_key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut message = vec![SIGN_REQUEST];
    put_string(&mut message, public_key);
    put_string(&mut message, data);
    let is_rsa = kind_of(public_key).is_ok_and(|kind| kind == RSA);
    let flags = if is_rsa { RSA_SHA2_512 } else { 0 };
    message.extend_from_slice(&flags.to_be_bytes());
    let mut out = Vec::with_capacity(4 + message.len());
    put_string(&mut out, &message);
    out
}

/// The fault of an agent's signature, by its algorithm alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureFault {
    /// SHA-1.
    #[error(
        "the agent has signed with SHA-1 (ssh-rsa), although rsa-sha2-512 was requested: use an agent \
         that supports this request (RFC 8332), such as OpenSSH's ssh-agent from 7.2 on, or an \
         Ed25519 key"
    )]
    Sha1,
    /// Another algorithm.
    #[error(
        "the agent has signed with {found}, although {requested} was requested: use another agent, \
         such as OpenSSH's ssh-agent"
    )]
    Algorithm {
        /// The signature's algorithm.
        found: String,
        /// The algorithm that [`sign_request`] asks for.
        requested: String,
    },
    /// The bytes are no signature.
    #[error("the agent's answer is not a signature ({0}): use another agent")]
    Form(#[from] DecodeError),
}

/// Checks only the algorithm of an agent's signature: it must be the one that [`sign_request`] asks for with
/// this key.
///
/// # Errors
/// [`SignatureFault`].
pub fn check_algorithm(public_key: &[u8], signature: &[u8]) -> Result<(), SignatureFault> {
    let requested = match kind_of(public_key)? {
        RSA => b"rsa-sha2-512",
        kind => kind,
    };
    match kind_of(signature)? {
        found if found == requested => Ok(()),
        RSA => Err(SignatureFault::Sha1),
        found => Err(SignatureFault::Algorithm {
            found: found.escape_ascii().to_string(),
            requested: requested.escape_ascii().to_string(),
        }),
    }
}

/// The name with which a key or a signature begins.
fn kind_of(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    Reader::new(bytes).string(MAX_KIND)
}

/// Longest name of an algorithm (RFC 4251 section 6).
const MAX_KIND: usize = 64;

/// The request for the list of the agent's keys, with its length.
#[must_use]
pub fn identities_request() -> Vec<u8> {
    let mut out = Vec::new();
    put_string(&mut out, &[IDENTITIES_REQUEST]);
    out
}

/// Longest list of keys in bytes, not counting the length before it; OpenSSH has the same limit.
pub const MAX_IDENTITIES_ANSWER: usize = 256 * 1024;

/// Whether the agent's answer to [`identities_request`], without its length, lists this key.
///
/// # Errors
/// [`DecodeError`]; [`DecodeError::UnknownType`] for any other message.
pub fn lists(answer: &[u8], public_key: &[u8]) -> Result<bool, DecodeError> {
    let mut reader = Reader::bounded(answer, MAX_IDENTITIES_ANSWER)?;
    if reader.u8()? != IDENTITIES_ANSWER {
        return Err(DecodeError::UnknownType);
    }
    let count = reader.u32()?;
    let mut is_listed = false;
    for _ in 0..count {
        is_listed |= reader.string(MAX_IDENTITIES_ANSWER)? == public_key;
        // The key's comment.
        reader.string(MAX_IDENTITIES_ANSWER)?;
    }
    reader.finish()?;
    Ok(is_listed)
}

/// The length of an answer in bytes, from the 4 bytes before it.
///
/// # Errors
/// [`DecodeError::Oversized`] above `most`: [`MAX_AGENT_ANSWER`] or [`MAX_IDENTITIES_ANSWER`].
pub fn answer_length(prefix: [u8; 4], most: usize) -> Result<usize, DecodeError> {
    usize::try_from(u32::from_be_bytes(prefix))
        .ok()
        .filter(|&length| length <= most)
        .ok_or(DecodeError::Oversized)
}

messages! {
    /// Answers of an agent to [`sign_request`].
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum AgentAnswer {
        /// The agent did not sign: it lacks the key, or its user has refused.
        5 => Failure,
        /// A signature (RFC 4253 section 6.6; of a security key with flags and counter), unchecked.
        14 => Signature(signature: Vec<u8> as Bytes<MAX_AGENT_ANSWER>),
    }
}

impl AgentAnswer {
    /// Reads an answer that has no length before it.
    ///
    /// # Errors
    /// [`DecodeError`]; [`DecodeError::UnknownType`] for any other message.
    pub fn decode(answer: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(MAX_AGENT_ANSWER, answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key or a signature of this kind.
    fn of_kind(kind: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_string(&mut out, kind);
        put_string(&mut out, &[7; 9]);
        out
    }

    #[test]
    fn rsa_keys_are_to_sign_with_sha_512_and_others_as_they_do() {
        for (kind, flags) in [(RSA, 4), (b"ssh-ed25519", 0), (b"ecdsa-sha2-nistp521", 0)] {
            let request = sign_request(&of_kind(kind), b"data");
            assert_eq!(request[request.len() - 4..], [0, 0, 0, flags]);
        }
    }

    #[test]
    fn a_signature_by_another_algorithm_than_requested_is_refused() {
        let check =
            |key: &[u8], signature: &[u8]| check_algorithm(&of_kind(key), &of_kind(signature));
        assert_eq!(check(RSA, b"rsa-sha2-512"), Ok(()));
        assert_eq!(check(b"ssh-ed25519", b"ssh-ed25519"), Ok(()));
        assert_eq!(check(RSA, RSA), Err(SignatureFault::Sha1));
        for (key, other) in [
            (RSA, &b"rsa-sha2-256"[..]),
            (RSA, b"ssh-ed25519"),
            (b"ssh-ed25519", b"rsa-sha2-512"),
            (b"ecdsa-sha2-nistp521", b"ecdsa-sha2-nistp256"),
        ] {
            let refused = check(key, other);
            assert!(
                matches!(refused, Err(SignatureFault::Algorithm { .. })),
                "{refused:?}"
            );
        }
        let none = check_algorithm(&of_kind(RSA), &[]);
        assert!(matches!(none, Err(SignatureFault::Form(_))), "{none:?}");
    }

    #[test]
    fn a_list_of_keys_has_a_key_or_not_and_no_part_of_it_is_one() {
        let mut answer = vec![IDENTITIES_ANSWER];
        answer.extend(2_u32.to_be_bytes());
        for part in [&b"one"[..], b"comment", b"two", b""] {
            put_string(&mut answer, part);
        }
        assert_eq!(lists(&answer, b"two"), Ok(true));
        // A comment is no key.
        assert_eq!(lists(&answer, b"comment"), Ok(false));
        for length in 0..answer.len() {
            assert!(lists(&answer[..length], b"one").is_err(), "{length}");
        }
        answer.push(0);
        assert!(lists(&answer, b"one").is_err());
        assert_eq!(lists(&[5], b"one"), Err(DecodeError::UnknownType));
    }
}
