//! One request to an ssh-agent, and its answer (OpenSSH, PROTOCOL.agent; draft-ietf-sshm-ssh-agent
//! sections 3, 3.6 and 5.1). Each message is a length of 4 bytes and that many bytes, of which the
//! first is its type.

use usher_base::DecodeError;
use usher_base::codec::{self, Bytes, messages, put_string};

/// Longest answer in bytes, after its length. The longest kind of signature has about 130.
pub const MAX_AGENT_ANSWER: usize = 4096;

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

/// The length of an answer in bytes, from the 4 bytes before it.
///
/// # Errors
/// [`DecodeError::Oversized`] above [`MAX_AGENT_ANSWER`].
pub fn answer_length(prefix: [u8; 4]) -> Result<usize, DecodeError> {
    usize::try_from(u32::from_be_bytes(prefix))
        .ok()
        .filter(|&length| length <= MAX_AGENT_ANSWER)
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
