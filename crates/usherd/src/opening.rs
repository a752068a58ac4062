//! Decides whether a session may be opened. The verifier, which answers the network, asks first. The
//! keeper asks again, by its own policy, and has the recorder confirm the signature.

use usher_base::HostName;
use usher_local::checked::Checked;
use usher_policy::{Policy, Service};
use usher_proto::host_key::HostPublicKey;
use usher_proto::opening::Opening;
use usher_proto::refusal::Refusal;
use usher_proto::statement::Expectation;

/// The greatest age of an authenticator on arrival, in seconds. An authenticator travels on an open channel,
/// so this allows for differing clocks, not for distance.
pub const MAXIMUM_AGE: u64 = 60;
/// How far the client's clock may be ahead, in seconds.
pub const MAXIMUM_SKEW: u64 = 30;
/// The longest session that a client may request, in seconds; a service's `session` shortens it.
pub const MAXIMUM_LIFETIME: u64 = 7 * 24 * 3600;

/// The host that asks for a session, and the present time.
pub struct Claim<'a> {
    /// The host at the other end of the channel.
    pub host: &'a HostName,
    /// Its keys: for the verifier, the channel's key; for the keeper, which does not know that, all keys of
    /// the host.
    pub host_keys: &'a [HostPublicKey],
    /// This host's key.
    pub own_key: &'a HostPublicKey,
    /// Seconds since 1970.
    pub now: u64,
}

impl Claim<'_> {
    /// The values that a statement must have. `server` is the host key for which it is signed, which must be
    /// one of the keys in this host's block: while the key is replaced, the client may have signed for the
    /// other one.
    pub fn expectation<'a>(
        &'a self,
        policy: &'a Policy,
        server: &HostPublicKey,
    ) -> Expectation<'a> {
        // Usually the statement is for `own_key`, and no block has to be searched for.
        let is_other = server != self.own_key;
        let own = is_other.then(|| policy.host_by_key(self.own_key)).flatten();
        Expectation {
            now: self.now,
            client_host_keys: self.host_keys,
            server_host_keys: own.map_or(std::slice::from_ref(self.own_key), |own| &own.keys),
            maximum_age: MAXIMUM_AGE,
            maximum_skew: MAXIMUM_SKEW,
            maximum_lifetime: MAXIMUM_LIFETIME,
        }
    }
}

/// Returns the service, and the latest end of the session, by the policy's rules about its user, key
/// and certificate.
///
/// # Errors
/// The first check that fails. The key is checked first, so a client that has not authenticated does
/// not learn whether the service exists.
pub fn permitted<'c>(
    checked: &'c Checked,
    claim: &Claim<'_>,
    opening: &Opening,
) -> Result<(&'c Service, u64), Refusal> {
    let statement = &opening.statement;
    let certificate = opening.certificate.as_ref();
    let service = checked.policy.services.get(&statement.service);
    let purpose = service.and_then(|service| service.keys.as_ref());
    let admitted_until = checked.admitted_until(
        &statement.user,
        &opening.key_fingerprint,
        certificate,
        purpose,
        (claim.now, statement.expires),
    )?;
    if checked.disabled.contains(&statement.user) {
        return Err(Refusal::DisabledUser);
    }
    let (service, until) = checked.service_permits(
        &statement.service,
        &statement.user,
        certificate,
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
    let asked_until = statement.issued + service.session.as_secs();
    Ok((service, admitted_until.min(until).min(asked_until)))
}
