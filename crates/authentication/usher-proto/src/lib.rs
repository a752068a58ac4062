//! Usher's wire formats, the authenticator and the hash chain.
//!
//! No I/O, no clock, no randomness, no unsafe code: functions take bytes, times and seeds as arguments
//! and return values or typed errors. `docs/PROTOCOL.md` describes the formats byte by byte. Change a
//! format only together with that document and the fuzzers' corpus. All decoders keep these rules:
//!
//! - They compare a length with its limit and with the input *before* they allocate or copy.
//! - Every format is canonical: if `decode(x)` returns a value, encoding that value returns `x`. They
//!   refuse trailing bytes, set padding and second spellings of a value.
//! - They never panic.
//!
//! Encoders never fail and never cut anything: a value beyond its limits (a list of nine addresses, a
//! statement of a megabyte) encodes to bytes that the decoder refuses.
//!
//! Room: touches nothing outside its arguments. Every part of authentication may use it.
#![forbid(unsafe_code)]

mod verification;

pub mod agent;
pub mod authenticator;
pub mod calls;
pub mod certificate;
pub mod chain;
pub mod frame;
pub mod handshake;
pub mod host_key;
pub mod keeper_record;
pub mod key;
pub mod key_change;
pub mod krl;
pub mod lending;
pub mod local;
pub mod log_record;
pub mod opening;
pub mod program_end;
pub mod recorder;
pub mod refusal;
pub mod relay;
pub mod session_end;
pub mod session_id;
pub mod session_request;
pub mod sshsig;
pub mod statement;
pub mod token;

pub use agent::{AgentAnswer, MAX_AGENT_ANSWER};
pub use authenticator::{Authenticator, NAMESPACE, SignError};
pub use calls::{
    CallReply, CallRequest, ConnectionInfo, MAX_CALL_PACKET, MAX_GROUPS, ReservationId,
};
pub use certificate::{
    Certificate, Certified, MAX_CERTIFICATE_SIZE, MAX_PRINCIPALS_SIZE, Principals,
};
pub use chain::{
    CHAIN_ELEMENT_SIZE, Chain, ChainElement, ChainTip, MAX_CHAIN_GAP, MAX_CHAIN_LENGTH,
};
pub use frame::{ClientBody, ClientFrame, FRAME_LENGTH_SIZE, FrameBuffer, MAX_FRAME, ServerFrame};
pub use handshake::{HandshakeSide, MAX_HANDSHAKE_MESSAGE, check_handshake_message};
pub use host_key::{HOST_KEY_SIZE, HOST_KEY_SPKI_SIZE, HostKeyError, HostPublicKey, MAX_HOST_KEYS};
pub use keeper_record::{
    KEEPER_RECORD_SIZE, KeeperBody, KeeperReply, KeeperRequest, MAX_KEEPER_REQUEST,
};
pub use key::KEY_FINGERPRINT_SIZE;
pub use key_change::{KEY_CHANGE_NAMESPACE, KeyChange, LogKey, MAX_KEY_CHANGE_SIZE};
pub use krl::{MAX_REVOKED_KEYS, RevokedKeys, RevokedKeysError};
pub use lending::{FromLender, MAX_LENDING_PACKET, ToLender};
pub use local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};
pub use log_record::{MAX_LOG_RECORD, MAX_PUBLIC_KEY_SIZE};
pub use opening::{Authentication, Opening};
pub use program_end::ProgramEnd;
pub use recorder::{
    Keep, MAX_RECORDER_PACKET, RECORDER_REPLY_SIZE, RecorderReply, RecorderRequest,
};
pub use refusal::{Fault, Refusal};
pub use relay::{MAX_CONTROL_ADDRESSES, MAX_RELAY_PACKET, RelayReply, RelayRequest};
pub use session_end::{MAX_SESSION_END_SIZE, SESSION_END_NAMESPACE, SessionEnd};
pub use session_id::{SESSION_ID_SIZE, SessionId, session_id};
pub use session_request::{Announcement, Notice, SessionRequest, Verdict};
pub use sshsig::{MAX_SIGNATURE_SIZE, Signed};
pub use statement::{
    Expectation, MAX_STATEMENT_SIZE, NONCE_SIZE, STATEMENT_MAGIC, STATEMENT_VERSION, Statement,
};
pub use token::{TokenChain, TokenElement, TokenKey, TokenSlot};

// Public functions have its types.
pub use ssh_key;
