//! The signed request for a session.

use std::io;

use usher_proto::ssh_key::{HashAlg, PrivateKey};
use usher_proto::{
    Authenticator, Chain, HostPublicKey, NAMESPACE, SessionId, Statement, session_id,
};

use super::{Identity, now, random};
use crate::error::{Attempt, LabError};
use crate::host::Host;

/// A requested session: a statement that a test may alter, and the chain that belongs to it.
#[derive(Debug)]
pub struct Asked {
    /// The statement that the user signs.
    pub statement: Statement,
    /// The chain of elements.
    pub chain: Chain,
}

impl Asked {
    /// A valid statement: of `user`, from the host of this key, to a service of `server` at `port`,
    /// for an hour.
    ///
    /// # Errors
    /// When a name is malformed, or the server has no key.
    pub fn right(
        user: &str,
        service: &str,
        client: HostPublicKey,
        server: &Host,
        port: u16,
        chain_length: u32,
    ) -> Result<Self, LabError> {
        let name = |error: usher_base::NameError| LabError::System {
            what: "a name".into(),
            error: io::Error::other(error),
        };
        let chain = Chain::generate(chain_length, random(), random());
        let now = now();
        let statement = Statement {
            user: user.parse().map_err(name)?,
            service: service.parse().map_err(name)?,
            client_host_key: client,
            server_host_key: Identity::of(server)?.public(),
            server: (server.ipv4(), port).into(),
            issued: now,
            expires: now + 3600,
            nonce: random(),
            chain_anchor: chain.anchor(),
            token_anchor: [0; 11],
            chain_length: chain.length(),
            chain_salt: chain.salt(),
        };
        Ok(Self { statement, chain })
    }

    /// Signs it.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn sign(&self, key: &PrivateKey) -> Result<Authenticator, LabError> {
        sign_bytes(self.statement.encode(), key, NAMESPACE)
    }
}

/// Signs bytes that need not be a statement, in a namespace that need not be Usher's.
///
/// # Errors
/// When the key cannot sign.
pub fn sign_bytes(
    statement: Vec<u8>,
    key: &PrivateKey,
    namespace: &str,
) -> Result<Authenticator, LabError> {
    use ssh_encoding::Encode;
    let sign = || -> Result<Vec<u8>, usher_proto::ssh_key::Error> {
        let mut blob = Vec::new();
        key.sign(namespace, HashAlg::Sha512, &statement)?
            .encode(&mut blob)?;
        Ok(blob)
    };
    let signature = sign()
        .map_err(io::Error::other)
        .attempt(|| "cannot sign".into())?;
    Ok(Authenticator {
        statement,
        signature,
    })
}

/// The id of the session an authenticator opens.
#[must_use]
pub fn id_of(authenticator: &Authenticator) -> SessionId {
    session_id(&authenticator.statement)
}
