//! Is this authenticator good? All checks of a new session, in the order that tells an attacker
//! least: form, binding to the two hosts, freshness, signature; only then whether the user exists
//! and what the policy says.

use usher_local::checked::Checked;
use usher_proto::authenticator::Authenticator;
use usher_proto::log_record::Verified;
use usher_proto::opening::Opening;
use usher_proto::refusal::Refusal;
use usher_proto::statement::Statement;

use crate::opening::{Claim, permitted};

/// A refused authenticator: why, and of whom it speaks as far as that could be read.
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// What it says, unproven.
    pub statement: Option<Box<Statement>>,
}

/// A good authenticator.
pub struct Granted {
    /// What it opens a session with.
    pub opening: Opening,
    /// The key that signed, in its wire form (RFC 4253 section 6.6), or its certificate.
    pub public_key: Vec<u8>,
}

/// Checks an authenticator.
///
/// # Errors
/// The first check that fails.
pub fn authenticate(
    checked: &Checked,
    claim: &Claim<'_>,
    authenticator: &Authenticator,
) -> Result<Granted, Refused> {
    let statement = Statement::decode(&authenticator.statement).map_err(|error| Refused {
        refusal: error.into(),
        statement: None,
    })?;
    check(checked, claim, authenticator, &statement).map_err(|refusal| Refused {
        refusal,
        statement: Some(Box::new(statement)),
    })
}

fn check(
    checked: &Checked,
    claim: &Claim<'_>,
    authenticator: &Authenticator,
    statement: &Statement,
) -> Result<Granted, Refusal> {
    statement.check(&claim.expectation())?;
    let signed = authenticator.verify_signature()?;
    let verified = Verified {
        statement: statement.clone(),
        key: signed.key,
        certificate: signed.certificate,
    };
    // What the certificate says of itself is no secret to its holder.
    let opening = Opening::new(verified, claim.now)?;
    permitted(checked, claim, &opening)?;
    Ok(Granted {
        opening,
        public_key: signed.public_key,
    })
}
