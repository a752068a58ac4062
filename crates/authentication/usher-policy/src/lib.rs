//! Usher's policy language: from text to a checked, resolved [`Policy`] and the questions that
//! the daemons ask of it.
//!
//! ```
//! use usher_policy::{Source, parse_policy};
//!
//! let source = Source {
//!     name: "users.policy".to_owned(),
//!     text: "users mail { member alice, bob; }".to_owned(),
//! };
//! let policy = parse_policy(&[source]).expect("the text above is a policy");
//! assert_eq!(policy.users.len(), 1);
//! ```
//!
//! `usher-language` reads the text by this crate's tables (dialect.rs) and those of
//! `usher-protection`, whose `application` blocks stand in the same text; [`parse_policy`] then resolves names
//! over all sources and builds the [`Policy`]. A `Policy` from [`parse_policy`] is complete: every name in
//! it is defined, as far as this crate can know. decide.rs decides whether it permits something.
//!
//! No I/O and no clock: the caller reads the files. docs/policy.md, users.md and services.md describe
//! the language.
//!
//! Room: touches nothing outside its arguments. The daemons, the command line and the analysis use
//! it; only decide.rs permits anything.
#![forbid(unsafe_code)]

mod check;
mod client;
mod decide;
mod destinations;
mod dialect;
mod include;
mod limits;
mod lookup;
mod members;
mod mistake;
mod model;
mod moment;
mod names;
mod peers;
mod protected;
mod text;
mod unknown_name;
mod warning;

pub use client::{Client, ClientService, MAXIMUM_PROGRAMS, Programs, Protocol, ProxyListener};
pub use decide::{ClientCase, ClientUse, Guest, Objection, ServiceCase, ServiceUse};
pub use destinations::{
    Destination, DestinationTable, Destinations, MAXIMUM_DESTINATION_TABLE, MAXIMUM_DESTINATIONS,
    Peers, PortRange,
};
pub use dialect::BlockKind;
pub use include::{Include, MAXIMUM_INCLUDE_BYTES, groups_named, includes};
pub use limits::{
    DEFAULT_CONNECTIONS, DEFAULT_CONTROL_PORT, DEFAULT_EACH_USER_PROCESSES, DEFAULT_IDLE,
    DEFAULT_KEEPALIVE, DEFAULT_PROCESSES, DEFAULT_SESSION, DEFAULT_UMASK, MAXIMUM_ARGUMENT_BYTES,
    MAXIMUM_CONNECTIONS, MAXIMUM_CPU, MAXIMUM_DURATION, MAXIMUM_FILE_RULES, MAXIMUM_HOST_ADDRESSES,
    MAXIMUM_HOST_KEYS, MAXIMUM_IKE_KEYS, MAXIMUM_KEEPALIVE, MAXIMUM_MEMORY, MAXIMUM_PROCESSES,
    MINIMUM_KEEPALIVE, MINIMUM_MEMORY, MINIMUM_REAUTHENTICATION,
};
pub use members::{
    Group, Groups, MAXIMUM_GROUP_MEMBERS, Members, TrustedPrincipal, Unresolved, Users, may_be_user,
};
pub use mistake::PolicyMistake;
pub use model::{
    Backend, Expectation, FileAccess, FileRule, Host, Identification, Needs, Policy, ProcessLimits,
    Program, RequiredProtection, ServedBy, Service, Style, service_id,
};
pub use moment::{InvalidMoment, Moment};
pub use names::{GroupName, InvalidGroupName, InvalidPrincipal, Principal};
pub use unknown_name::{ExpectedKind, UnknownName};
pub use usher_language::{
    AddressRange, Clause, Diagnostic as PolicyError, InvalidName, LINE_WIDTH, MAXIMUM_ERRORS,
    MAXIMUM_SOURCE_BYTES, MAXIMUM_STATEMENTS, Mistake, Name, Need, Origin, Place, Places, Quoted,
    Setting, Source, Span, Units, Written, digits, is_plain, joined, nearest,
};
/// The part of the policy that is about modules of mandatory access control.
pub use usher_mac_blocks as mac;
/// The part of the policy that is about the traffic of programs.
pub use usher_protection as protection;
pub use warning::PolicyWarning;

use dialect::DIALECT;
use usher_language::{Block, Reporter};

/// The text in its canonical form. Reads as the same policy, or has the same mistakes; the canonical
/// form of a canonical text is itself.
///
/// # Errors
///
/// The mistakes of its form. Names are not looked at, because other files may define them.
pub fn format(source: &Source) -> Result<String, Vec<PolicyError>> {
    usher_language::format(&DIALECT, source)
}

/// Whether a word begins a statement or a block that stands outside of blocks: no statement of a module
/// can begin with it.
pub fn begins_outside(word: &str) -> bool {
    DIALECT.statement(word).is_some() || DIALECT.block(word).is_some()
}

/// Reads the sources as one policy.
///
/// Names resolve over all sources, so it does not matter in which file a block stands or in which order the
/// files come. No source at all is a policy that permits nothing. The files that sources include must be
/// among them: [`includes`] returns these.
///
/// # Errors
///
/// Every mistake found, in the order of the sources and of their text, at most
/// [`MAXIMUM_ERRORS`] and one that says that there are more. A mistake in one statement does not
/// hide those in the next. There is no partial policy: one error, and nothing is to be applied. A
/// `group` is a mistake here, because it has not been looked up: see [`parse_with_groups`].
pub fn parse_policy(sources: &[Source]) -> Result<Policy, Vec<PolicyError>> {
    parse_with_groups(sources, &Groups::new())
}

/// As [`parse_policy`], of a policy that may name groups of accounts: [`groups_named`] returns these.
///
/// # Errors
///
/// As [`parse_policy`]; a group that is not in `groups`, or that could not be looked up, is a mistake.
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

/// The mistakes of a policy of which some sources cannot be read. A name that the unread ones may define,
/// such as that of a host, is no mistake.
pub fn mistakes_of_part(sources: &[Source], groups: &Groups) -> Vec<PolicyError> {
    let reporter = Reporter::of_part(sources);
    if let Some(tree) = usher_language::parse_syntax(&DIALECT, sources, &reporter) {
        check::check_policy(&tree, groups, &reporter);
    }
    reporter.finish()
}

fn parse_blocks(
    sources: &[Source],
    groups: &Groups,
) -> Result<(Policy, Vec<Block<'static>>), Vec<PolicyError>> {
    let reporter = Reporter::new(sources);
    let checked = usher_language::parse_syntax(&DIALECT, sources, &reporter)
        .map(|tree| (check::check_policy(&tree, groups, &reporter), tree.blocks));
    let errors = reporter.finish();
    match checked {
        Some(checked) if errors.is_empty() => Ok(checked),
        _ => Err(errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(text: &str) -> String {
        let name = "test".to_owned();
        let text = text.to_owned();
        format(&Source { name, text }).expect("a text without mistakes of form")
    }

    #[test]
    fn comments_stay_where_they_belong() {
        let text = "#!first\r\n\n\n\n# about u \nusers u{#on the head\n\n\n  member a ,# the first\n\
                    # then\nb ;   # all\n\n\n#last\n\n} # closed\n#next\nusers\n# name\nv {}#end";
        let expected = "#!first\n\n# about u\nusers u {  #on the head\n  member a,  # the first\n      \
                        # then\n      b;  # all\n\n  #last\n}  # closed\n\n#next\nusers\n    # name\n    \
                        v {\n}  #end\n";
        assert_eq!(formatted(text), expected);
        assert_eq!(formatted(expected), expected);
    }

    #[test]
    fn blocks_stand_apart_and_statements_as_they_were() {
        let text = "users u{}users v{}\nexpect permit user a service s;expect refuse user a service \
                    t;\n\n\n\nexpect permit user b service s;users w{member a;\n\nmember b;}";
        let expected = "users u {\n}\n\nusers v {\n}\n\nexpect permit user a service s;\nexpect refuse \
                        user a service t;\n\nexpect permit user b service s;\n\nusers w {\n  member \
                        a;\n\n  member b;\n}\n";
        assert_eq!(formatted(text), expected);
    }

    #[test]
    fn long_lists_go_on_in_the_next_line() {
        let members: Vec<String> = (100..140).map(|number| format!("user{number}")).collect();
        let text = formatted(&format!("users u {{ member {}; }}", members.join(",")));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= LINE_WIDTH));
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[1].starts_with("  member user100, ") && lines[2].starts_with("      user"));
        let arguments = formatted(&format!(
            "service s {{ program \"/{}\" \"a\"; }}",
            "x".repeat(99)
        ));
        assert_eq!(
            arguments.lines().nth(2),
            Some("      \"a\";"),
            "{arguments}"
        );
    }

    #[test]
    fn nothing_comes_of_nothing_and_a_mistake_is_refused() {
        assert_eq!(formatted(" \n\n"), "");
        for wrong in [
            "users u { member a }",
            "users u {",
            "usres u { }",
            "users u { } }",
        ] {
            let name = "test".to_owned();
            let text = wrong.to_owned();
            assert!(format(&Source { name, text }).is_err(), "{wrong}");
        }
    }
}
