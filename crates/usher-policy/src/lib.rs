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
//! [`parse`] is complete: what is named in it exists, as far as it can be known here.
//!
//! No I/O and no clock: the caller reads the files. The language is described in docs/policy.md.
#![forbid(unsafe_code)]

mod application;
mod check;
mod cover;
mod decide;
mod destinations;
mod error;
mod expectation;
mod format;
mod group;
mod include;
mod keywords;
mod lexer;
mod lookup;
mod mac;
mod members;
mod model;
mod moment;
mod name;
mod nearest;
mod places;
mod ranges;
mod remedy;
mod report;
mod shown;
mod source;
mod syntax;
mod text;
mod tree;
mod warning;

pub use application::{
    Application, ApplicationPolicy, Level, Network, Peers, Protection, ProtectionItem, Traffic,
    Transform, Treatment,
};
pub use decide::{ClientCase, ClientUse, Guest, Objection, ServiceCase, ServiceUse};
pub use destinations::{
    Destination, DestinationTable, Destinations, MAXIMUM_DESTINATION_TABLE, MAXIMUM_DESTINATIONS,
    PortRange,
};
pub use error::{AddressFault, EnvironmentFault, NameKind, PolicyError, PolicyErrorKind};
pub use expectation::{ExpectedKind, UnknownName};
pub use format::{LINE_WIDTH, format};
pub use group::{Group, Groups, MAXIMUM_GROUP_MEMBERS, groups_named, may_be_user};
pub use include::{Include, MAXIMUM_INCLUDE_BYTES, includes};
pub use keywords::BlockKind;
pub use lexer::is_plain;
pub use mac::{MacBlock, MacStatement, MacValue};
pub use members::{Members, TrustedPrincipal};
pub use model::{
    Client, ClientService, DEFAULT_CONNECTIONS, DEFAULT_CONTROL_PORT, DEFAULT_EACH_USER_PROCESSES,
    DEFAULT_IDLE, DEFAULT_PROCESSES, DEFAULT_SESSION, DEFAULT_UMASK, Expectation, FileAccess,
    FileRule, Host, MAXIMUM_ARGUMENT_BYTES, MAXIMUM_CONNECTIONS, MAXIMUM_CPU, MAXIMUM_DURATION,
    MAXIMUM_FILE_RULES, MAXIMUM_HOST_ADDRESSES, MAXIMUM_MEMORY, MAXIMUM_PROCESSES,
    MAXIMUM_PROGRAMS, MINIMUM_MEMORY, MINIMUM_REAUTHENTICATION, Policy, ProcessLimits, Program,
    Programs, Protocol, ProxyListener, RequiredProtection, ServedBy, Service, Style, Users,
    service_id,
};
pub use moment::{InvalidMoment, Moment};
pub use name::{GroupName, InvalidGroupName, InvalidName, InvalidPrincipal, Name, Principal};
pub use nearest::nearest;
pub use places::{Clause, Places};
pub use ranges::AddressRange;
pub use report::MAXIMUM_ERRORS;
pub use source::{MAXIMUM_SOURCE_BYTES, Origin, Place, Source, Span};
pub use syntax::MAXIMUM_STATEMENTS;
pub use text::Units;
pub use warning::PolicyWarning;

/// Reads the sources as one policy.
///
/// Names resolve over all sources, so it does not matter in which file a block stands or in which
/// order the files come. No source at all is a policy that permits nothing. The files that sources
/// include are to be among them: [`includes`] tells which.
///
/// # Errors
///
/// Every mistake found, in the order of the sources and of their text, at most
/// [`MAXIMUM_ERRORS`] and one that says that there are more. A mistake in one statement does not
/// hide those in the next. There is no partial policy: one error, and nothing is to be applied. A
/// `group` is a mistake here, as nobody has looked it up: see [`parse_with_groups`].
pub fn parse(sources: &[Source]) -> Result<Policy, Vec<PolicyError>> {
    parse_with_groups(sources, &Groups::new())
}

/// As [`parse`], of a policy that may name groups of accounts: [`groups_named`] tells which.
///
/// # Errors
///
/// As [`parse`]; a group that is not in `groups`, or that could not be looked up, is a mistake.
pub fn parse_with_groups(sources: &[Source], groups: &Groups) -> Result<Policy, Vec<PolicyError>> {
    parse_blocks(sources, groups).map(|(policy, _)| policy)
}

/// As [`parse_with_groups`], with the places of what the policy says.
///
/// # Errors
///
/// As [`parse_with_groups`].
pub fn parse_with_places<'s>(
    sources: &'s [Source],
    groups: &Groups,
) -> Result<(Policy, Places<'s>), Vec<PolicyError>> {
    parse_blocks(sources, groups).map(|(policy, blocks)| (policy, Places::of(sources, &blocks)))
}

/// The mistakes of a policy of which some sources cannot be read. What is missing in these and may
/// be in the others, as a host or a service that is named, is none.
pub fn mistakes_of_part(sources: &[Source], groups: &Groups) -> Vec<PolicyError> {
    let mut reporter = report::Reporter::of_part(sources);
    if let Some(tree) = syntax::parse_sources(sources, &mut reporter) {
        check::check(&tree, groups, &mut reporter);
    }
    reporter.finish()
}

fn parse_blocks(
    sources: &[Source],
    groups: &Groups,
) -> Result<(Policy, Vec<tree::Block>), Vec<PolicyError>> {
    let mut reporter = report::Reporter::new(sources);
    let checked = syntax::parse_sources(sources, &mut reporter)
        .map(|tree| (check::check(&tree, groups, &mut reporter), tree.blocks));
    let errors = reporter.finish();
    match checked {
        Some(checked) if errors.is_empty() => Ok(checked),
        _ => Err(errors),
    }
}
