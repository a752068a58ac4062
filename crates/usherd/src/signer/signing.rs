//! Signs for a user, with the private key that the signer keeps or by the user's ssh-agent.

use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_local::signing_key::{Credential, SigningKey};
use usher_policy::Name;
use usher_proto::Certificate;
use usher_proto::authenticator::Authenticator;
use usher_proto::refusal::Refusal;
use usher_proto::ssh_key::PublicKey;
use usher_proto::statement::Statement;

use super::Signer;
use super::loans::AgentPermit;
use super::sessions::Pair;

/// The user's key, ready to sign: a private key, or an agent's.
pub struct ReadyKey {
    kind: Kind,
    certificate: Option<Box<Certificate>>,
    /// The fault of a certificate that is not used: the server may know the key itself.
    unused: Option<Refusal>,
}

enum Kind {
    /// A private key.
    Key(Box<usher_proto::ssh_key::PrivateKey>),
    /// An agent, which may be used now.
    Agent(PublicKey, AgentPermit),
}

impl ReadyKey {
    /// The key of the user of `pair` for `purpose`. Waits for an agent.
    ///
    /// # Errors
    /// [`Refusal::NoPrivateKey`], [`Refusal::AgentUnavailable`], [`Refusal::Overloaded`].
    pub async fn take(
        signer: &Signer,
        pair: &Pair,
        purpose: Option<&Name>,
    ) -> Result<Self, Refusal> {
        let Credential { key, certificate } = signer.keys.load(&pair.key.user, purpose)?;
        // Without a usable certificate, use the key alone: ssh(1), too, tries the key after its certificate.
        let checked = certificate.as_ref().map(|found| found.check(unix_time()));
        let unused = checked.and_then(Result::err);
        if let Some(refusal) = unused {
            tracing::info!(name: events::KEY_REFUSED, user = %pair.key.user, reason = refusal.name(),
                "the user's certificate is not used, only the key: {refusal}");
        }
        let certificate = certificate.filter(|_| unused.is_none());
        let kind = match key {
            SigningKey::Private(key) => Kind::Key(key),
            SigningKey::Agent(key) => Kind::Agent(key, signer.loans.permit(pair.uid).await?),
        };
        Ok(Self {
            kind,
            certificate,
            unused,
        })
    }

    /// The reason that the user learns when the server refuses to open a session: the fault of the
    /// certificate, if the server would have needed one.
    pub fn reason(unused: Option<Refusal>, refusal: Refusal) -> Refusal {
        match (unused, refusal) {
            // The server's policy decides which of these it discloses: see Refusal::disclosed.
            (
                Some(fault),
                Refusal::UnknownKey | Refusal::UnknownUser | Refusal::NotAuthenticated,
            ) => fault,
            _ => refusal,
        }
    }

    /// The fault of the user's certificate, which is then not used.
    pub fn unused(&self) -> Option<Refusal> {
        self.unused
    }

    /// The latest end of a session that this key opens: `end`, or its certificate's end if that is earlier.
    pub fn latest(&self, end: u64) -> u64 {
        let certificate = self.certificate.as_ref();
        certificate.map_or(end, |certificate| certificate.valid_before.min(end))
    }

    /// Whether an agent signs, which may ask the user to touch a security key.
    pub fn is_agent(&self) -> bool {
        matches!(self.kind, Kind::Agent(..))
    }

    /// Signs.
    ///
    /// # Errors
    /// [`Refusal::NoPrivateKey`] when the key cannot be used, [`Refusal::AgentUnavailable`] when the
    /// agent is gone, [`Refusal::AgentRefused`] when it does not sign with the registered key.
    pub async fn sign(
        self,
        user: &UserName,
        statement: &Statement,
    ) -> Result<Authenticator, Refusal> {
        let signed = match self.kind {
            Kind::Key(key) => Authenticator::sign(statement, &key).map_err(|error| {
                tracing::warn!(%user, %error, "cannot sign");
                Refusal::NoPrivateKey
            }),
            Kind::Agent(key, permit) => {
                let public_key = key.to_bytes().map_err(|error| {
                    tracing::warn!(%user, %error, "cannot sign");
                    Refusal::NoPrivateKey
                })?;
                let statement = statement.encode();
                let signature = permit.ask(public_key, statement.clone()).await?;
                Authenticator::from_signature(statement, &key, &signature).map_err(|refusal| {
                    tracing::warn!(name: events::KEY_REFUSED, %user, reason = refusal.name(),
                        "the user's agent did not answer with a signature by the registered key: {refusal}");
                    Refusal::AgentRefused
                })
            }
        }?;
        match self.certificate {
            Some(certificate) => signed.with_certificate(&certificate),
            None => Ok(signed),
        }
    }
}
