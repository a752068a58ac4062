//! Is this authenticator good? All checks of a new session, in the order that tells an attacker
//! least: form, binding to the two hosts, freshness, signature; only then whether the user exists
//! and what the policy says.

use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_local::keys::{self, Fingerprint};
use usher_proto::Certified;
use usher_proto::authenticator::Authenticator;
use usher_proto::host_key::HostPublicKey;
use usher_proto::keeper_record::KeeperRequest;
use usher_proto::name::HostName;
use usher_proto::refusal::Refusal;
use usher_proto::session_id::session_id;
use usher_proto::statement::{Expectation, Statement};

/// How old an authenticator may be when it arrives, seconds. It travels on an open channel, so
/// this is about clocks and not about distance.
pub const MAXIMUM_AGE: u64 = 60;
/// How far the client's clock may be ahead, seconds.
pub const MAXIMUM_SKEW: u64 = 30;
/// Longest session anybody may ask for, seconds; a service's `session` makes it shorter.
pub const MAXIMUM_LIFETIME: u64 = 7 * 24 * 3600;

/// Who asks, from where.
pub struct Claim<'a> {
    /// The host at the other end of the channel.
    pub host: &'a HostName,
    /// Its key, proven by the handshake.
    pub host_key: &'a HostPublicKey,
    /// This host's key.
    pub own_key: &'a HostPublicKey,
    /// Seconds since 1970.
    pub now: u64,
}

/// A refused authenticator: why, and of whom it speaks as far as that could be read.
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// What it says, unproven.
    pub statement: Option<Box<Statement>>,
}

/// What a good authenticator leads to.
pub struct Granted<F> {
    /// Makes the keeper's request that opens the session, of the request's number.
    pub open: F,
    /// The key that signed, in its wire form (RFC 4253 section 6.6), or its certificate.
    pub public_key: Vec<u8>,
}

/// Checks an authenticator and makes the record that opens its session.
///
/// # Errors
/// The first check that fails.
pub fn authenticate(
    (applied, checked): &(Applied, Checked),
    claim: &Claim<'_>,
    authenticator: &Authenticator,
) -> Result<Granted<impl FnOnce(u64) -> KeeperRequest + use<>>, Refused> {
    let statement = Statement::decode(&authenticator.statement).map_err(|error| Refused {
        refusal: error.into(),
        statement: None,
    })?;
    match check(applied, checked, claim, authenticator, &statement) {
        Ok(Permitted {
            expires,
            key_fingerprint,
            certificate,
            public_key,
        }) => {
            let session = session_id(&authenticator.statement);
            let host = claim.host.clone();
            let open = move |request| KeeperRequest::Open {
                request,
                session,
                user: statement.user,
                service: statement.service,
                host,
                key_fingerprint,
                chain_anchor: statement.chain_anchor,
                token_anchor: statement.token_anchor,
                chain_salt: statement.chain_salt,
                chain_length: statement.chain_length,
                expires,
                certificate,
            };
            Ok(Granted { open, public_key })
        }
        Err(refusal) => Err(Refused {
            refusal,
            statement: Some(Box::new(statement)),
        }),
    }
}

/// What all checks have permitted.
struct Permitted {
    /// When the session ends, in seconds since 1970.
    expires: u64,
    /// Of the key that signed.
    key_fingerprint: Fingerprint,
    /// By which it is the user's, where it is not listed itself.
    certificate: Option<Certified>,
    /// Its wire form, or the certificate's.
    public_key: Vec<u8>,
}

/// All checks.
fn check(
    applied: &Applied,
    checked: &Checked,
    claim: &Claim<'_>,
    authenticator: &Authenticator,
    statement: &Statement,
) -> Result<Permitted, Refusal> {
    statement.check(&Expectation {
        now: claim.now,
        client_host_key: claim.host_key,
        server_host_key: claim.own_key,
        maximum_age: MAXIMUM_AGE,
        maximum_skew: MAXIMUM_SKEW,
        maximum_lifetime: MAXIMUM_LIFETIME,
    })?;
    let signed = authenticator.verify_signature()?;
    let key_fingerprint = keys::fingerprint(&signed.key);
    // What the certificate says of itself is no secret to its holder.
    let certificate = match &signed.certificate {
        Some(certificate) => {
            certificate.check(claim.now)?;
            Some(certificate.certified()?)
        }
        None => None,
    };
    // Whether there is such a service, who has not authenticated does not learn.
    let service = checked.policy.services.get(&statement.service);
    let purpose = service.and_then(|service| service.keys.as_ref());
    let admitted_until = checked.admitted_until(
        &statement.user,
        &key_fingerprint,
        certificate.as_ref(),
        purpose,
        (claim.now, statement.expires),
    )?;
    if applied.is_disabled(&statement.user) {
        return Err(Refusal::DisabledUser);
    }
    let (service, until) = checked.service_permits(
        &statement.service,
        &statement.user,
        certificate.as_ref(),
        claim.host,
        claim.now,
    )?;
    let own_addresses = checked
        .policy
        .host_by_key(claim.own_key)
        .map(|host| host.addresses.as_slice());
    if statement.server.port() != service.listen
        || own_addresses.is_some_and(|own| !own.contains(&statement.server.ip()))
    {
        return Err(Refusal::WrongServerAddress);
    }
    Ok(Permitted {
        expires: admitted_until
            .min(until)
            .min(statement.issued + service.session.as_secs()),
        key_fingerprint,
        certificate,
        public_key: signed.public_key()?,
    })
}
