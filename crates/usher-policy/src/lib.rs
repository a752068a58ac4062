//! Usher's policy language: from text to a checked, resolved [`Policy`] and the questions that
//! the daemons ask of it.
//!
//! ```
//! use usher_policy::{Source, parse};
//!
//! let source = Source {
//!     name: "users.policy".to_owned(),
//!     text: "users mail { member alice, bob; }".to_owned(),
//! };
//! let policy = parse(&[source]).expect("the text above is a policy");
//! assert_eq!(policy.users.len(), 1);
//! ```
//!
//! The way of a text: characters that a reader cannot see are refused ([`source`](Source)); a
//! lexer makes words, strings and punctuation; the syntax stage makes blocks of statements without
//! knowing what they mean, and goes on after a mistake; the check stage knows each block's
//! statements, resolves names over all sources and builds the [`Policy`]. A `Policy` from
//! [`parse`] is complete: nothing in it names anything that does not exist.
//!
//! No I/O and no clock: the caller reads the files. The language is described in docs/policy.md.
#![forbid(unsafe_code)]

mod check;
mod error;
mod keywords;
mod lexer;
mod model;
mod name;
mod nearest;
mod permit;
mod remedy;
mod report;
mod source;
mod syntax;
mod text;
mod warning;

pub use error::{AddressFault, EnvironmentFault, NameKind, PolicyError, PolicyErrorKind};
pub use keywords::BlockKind;
pub use model::{
    Client, ClientService, DEFAULT_CONNECTIONS, DEFAULT_CONTROL_PORT, DEFAULT_IDLE,
    DEFAULT_PROCESSES, DEFAULT_SESSION, Host, MAXIMUM_ARGUMENT_BYTES, MAXIMUM_CONNECTIONS,
    MAXIMUM_DURATION, MAXIMUM_HOST_ADDRESSES, MAXIMUM_PROCESSES, MINIMUM_REAUTHENTICATION, Policy,
    Program, Programs, Protocol, ProxyListener, ServedBy, Service, Style, Users, service_id,
};
pub use name::{InvalidName, Name};
pub use report::MAXIMUM_ERRORS;
pub use source::{MAXIMUM_SOURCE_BYTES, Place, Source, Span};
pub use syntax::MAXIMUM_STATEMENTS;
pub use warning::PolicyWarning;

/// Reads the sources as one policy.
///
/// Names resolve over all sources, so it does not matter in which file a block stands or in which
/// order the files come. No source at all is a policy that permits nothing.
///
/// # Errors
///
/// Every mistake found, in the order of the sources and of their text, at most
/// [`MAXIMUM_ERRORS`] and one that says that there are more. A mistake in one statement does not
/// hide those in the next. There is no partial policy: one error, and nothing is to be applied.
pub fn parse(sources: &[Source]) -> Result<Policy, Vec<PolicyError>> {
    let mut reporter = report::Reporter::new(sources);
    let blocks = syntax::parse_sources(sources, &mut reporter);
    let policy = blocks.map(|blocks| check::check(&blocks, &mut reporter));
    let errors = reporter.finish();
    match policy {
        Some(policy) if errors.is_empty() => Ok(policy),
        _ => Err(errors),
    }
}
