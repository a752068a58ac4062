//! Values that the tests share.
#![allow(dead_code, reason = "each test program uses its own part")]

pub mod arbitrary;
pub mod ssh_keygen;

use ssh_encoding::pem::PemLabel;
use ssh_encoding::{Decode, DecodePem, Reader};
use usher_base::ConnectionTuple;
use usher_proto::ssh_key::PrivateKey;
use usher_proto::ssh_key::private::Ed25519Keypair;
use usher_proto::{
    Announcement, Authenticator, Chain, ClientBody, ClientFrame, HostPublicKey, SessionId,
    SessionRequest, Statement, TokenKey, session_id,
};

/// The clock of the fixed examples.
pub const NOW: u64 = 1_800_000_000;

/// A session that no statement made.
pub const SESSION: SessionId = SessionId::from_bytes([0xaa; 16]);

/// A user's key, the same in every run.
pub fn user_key() -> PrivateKey {
    Ed25519Keypair::from_seed(&[7; 32]).into()
}

/// A statement that a verifier with `client_key`, `server_key` and `NOW` accepts.
pub fn statement() -> Statement {
    let chain = Chain::generate(1024, [1; 16], [2; 16]);
    Statement {
        user: "alice".parse().unwrap(),
        service: "imap".parse().unwrap(),
        client_host_key: client_key(),
        server_host_key: server_key(),
        server: "192.0.2.2:143".parse().unwrap(),
        issued: NOW,
        expires: NOW + 3600,
        nonce: [3; 16],
        chain_anchor: chain.anchor(),
        token_anchor: [4; 11],
        chain_length: chain.length(),
        chain_salt: chain.salt(),
    }
}

pub fn client_key() -> HostPublicKey {
    HostPublicKey::from_bytes([0xc1; 32])
}

pub fn server_key() -> HostPublicKey {
    HostPublicKey::from_bytes([0x5e; 32])
}

pub fn connection() -> ConnectionTuple {
    ConnectionTuple::new(
        "192.0.2.1:40000".parse().unwrap(),
        "192.0.2.2:143".parse().unwrap(),
    )
    .unwrap()
}

pub fn announcement() -> Announcement {
    let element = Chain::generate(1024, [1; 16], [2; 16]).next().unwrap();
    Announcement {
        element,
        connection: connection(),
    }
}

pub fn authenticator() -> Authenticator {
    Authenticator::sign(&statement(), &user_key()).unwrap()
}

/// The binary form of an armoured signature.
pub fn blob(pem: &str) -> Vec<u8> {
    Blob::decode_pem(pem).unwrap().0
}

/// Bytes under the label of a signature.
struct Blob(Vec<u8>);

impl PemLabel for Blob {
    const PEM_LABEL: &'static str = "SSH SIGNATURE";
}

impl Decode for Blob {
    type Error = ssh_encoding::Error;

    fn decode(reader: &mut impl Reader) -> ssh_encoding::Result<Self> {
        let mut bytes = vec![0; reader.remaining_len()];
        reader.read(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// One of every client frame.
pub fn client_frames() -> Vec<(&'static str, ClientFrame)> {
    let session = session_id(&statement().encode());
    let open = |first| ClientBody::Open {
        authenticator: authenticator(),
        first,
    };
    let about = |asked| ClientBody::Session(session, asked);
    [
        ("open", 1, open(Some(announcement()))),
        (
            "announce",
            2,
            about(SessionRequest::Announce(announcement())),
        ),
        ("withdraw", 3, about(SessionRequest::Withdraw(connection()))),
        ("close", 4, about(SessionRequest::Close)),
        ("ping", u64::MAX, ClientBody::Ping),
        ("renew", 5, open(None)),
        (
            "tokens",
            6,
            about(SessionRequest::Tokens(TokenKey::from_bytes([9; 16]))),
        ),
        (
            "reauthenticate",
            7,
            about(SessionRequest::Reauthenticate(announcement().element)),
        ),
    ]
    .map(|(name, request, body)| (name, ClientFrame { request, body }))
    .into()
}
