//! Checks an authenticator: all checks of a new session, in the order that discloses least to an
//! attacker: form, binding to the two hosts, freshness, signature; only then the user's existence and
//! the policy.

use usher_local::checked::Checked;
use usher_proto::authenticator::Authenticator;
use usher_proto::log_record::Verified;
use usher_proto::opening::Opening;
use usher_proto::refusal::Refusal;
use usher_proto::statement::Statement;

use crate::opening::{Claim, permitted};

/// Checks an authenticator, whose statement is decoded already. Returns the opening of its session, and the
/// key that signed, in its wire form (RFC 4253 section 6.6), or its certificate.
///
/// # Errors
/// The first check that fails.
pub fn authenticate(
    checked: &Checked,
    claim: &Claim<'_>,
    authenticator: &Authenticator,
    statement: &Statement,
) -> Result<(Opening, Vec<u8>), Refusal> {
    let expected = claim.expectation(&checked.policy, &statement.server_host_key);
    statement.check(&expected)?;
    let signed = authenticator.verify_signature()?;
    let verified = Verified {
        statement: statement.clone(),
        key: signed.key,
        certificate: signed.certificate,
    };
    // A certificate's contents are no secret to its holder.
    let opening = Opening::new(verified, claim.now)?;
    permitted(checked, claim, &opening)?;
    Ok((opening, signed.public_key))
}
