//! `expect` statements: a policy's tests.

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};
use usher_language::Origin;

/// An `expect` statement: what should come of a user who wants to reach a service.
///
/// A part that is left out stands for every possible one: `expect permit user alice service imap`
/// expects alice to be permitted from some host, to imap of some host, on the port that it has
/// there; with `refuse`, from none and to none. This crate does not try expectations. It warns of
/// names in them that the policy lacks ([`crate::Policy::unknown_names`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expectation {
    /// `permit`; otherwise `refuse`.
    pub permit: bool,
    /// The user.
    pub user: UserName,
    /// The host from which the user comes.
    pub from: Option<HostName>,
    /// The service.
    pub service: ServiceName,
    /// The host that offers the service.
    pub at: Option<HostName>,
    /// The TCP port on which the service is reached.
    pub port: Option<u16>,
    /// Its place in the text.
    pub origin: Origin,
}
