//! One request to an ssh-agent, and its answer (OpenSSH, PROTOCOL.agent; draft-ietf-sshm-ssh-agent
//! sections 3, 3.6 and 5.1). Each message is a length of 4 bytes and that many bytes, of which the
//! first is its type.

use usher_base::DecodeError;
use usher_base::codec::{self, Bytes, Reader, messages, put_string};

/// Longest answer in bytes, after its length. The longest kind of signature has about 130.
pub const MAX_AGENT_ANSWER: usize = 4096;

const IDENTITIES_REQUEST: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;

/// The request for a signature by the key `public_key` (RFC 4253 section 6.6) over `data`, with its
/// length. It sets no flags, which only RSA has.
#[must_use]
pub fn sign_request(public_key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut message = vec![SIGN_REQUEST];
    put_string(&mut message, public_key);
    put_string(&mut message, data);
    message.extend_from_slice(&0_u32.to_be_bytes());
    let mut out = Vec::with_capacity(4 + message.len());
    put_string(&mut out, &message);
    out
}

/// The request for the list of the agent's keys, with its length.
#[must_use]
pub fn identities_request() -> Vec<u8> {
    let mut out = Vec::new();
    put_string(&mut out, &[IDENTITIES_REQUEST]);
    out
}

/// Longest list of keys in bytes, after its length; OpenSSH has the same limit.
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
        // Its comment.
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
        /// It did not sign: it lacks the key, or its user has refused.
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
