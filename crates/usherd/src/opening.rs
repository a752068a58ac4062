//! May this session be opened? The verifier asks, which answers the network, and the keeper asks
//! again, which goes by its own policy, and has the recorder say whether this was signed.

use usher_local::checked::Checked;
use usher_policy::Service;
use usher_proto::host_key::HostPublicKey;
use usher_proto::name::HostName;
use usher_proto::opening::Opening;
use usher_proto::refusal::Refusal;
use usher_proto::statement::Expectation;

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
    /// Its key.
    pub host_key: &'a HostPublicKey,
    /// This host's key.
    pub own_key: &'a HostPublicKey,
    /// Seconds since 1970.
    pub now: u64,
}

impl Claim<'_> {
    /// What is expected of the statement.
    pub fn expectation(&self) -> Expectation<'_> {
        Expectation {
            now: self.now,
            client_host_key: self.host_key,
            server_host_key: self.own_key,
            maximum_age: MAXIMUM_AGE,
            maximum_skew: MAXIMUM_SKEW,
            maximum_lifetime: MAXIMUM_LIFETIME,
        }
    }
}

/// The service, and when the session ends at the latest, by what the policy says of its user, key
/// and certificate.
///
/// # Errors
/// The first check that fails. Whether there is such a service, who has not authenticated does not
/// learn: the key is asked for first.
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
