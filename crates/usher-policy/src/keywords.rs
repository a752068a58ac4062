//! The words of the language: each block's statements, written once.

use std::fmt;

use serde::Serialize;

/// The kinds of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// `host`: a machine with its addresses and its key.
    Host,
    /// `users`: a named set of users.
    Users,
    /// `service`: a service that this host offers.
    Service,
    /// `client`: what local users may authenticate to.
    Client,
}

/// How often a statement may stand in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occurrence {
    ExactlyOnce,
    AtMostOnce,
    AtLeastOnce,
    Any,
}

/// One kind of statement.
#[derive(Debug)]
pub(crate) struct StatementRule {
    pub(crate) keyword: &'static str,
    /// How it is written, for remedies; with its backquotes, since there may be two ways.
    pub(crate) form: &'static str,
    pub(crate) occurrence: Occurrence,
}

const fn rule(keyword: &'static str, form: &'static str, occurrence: Occurrence) -> StatementRule {
    StatementRule {
        keyword,
        form,
        occurrence,
    }
}

const HOST: &[StatementRule] = &[
    rule(
        "address",
        "`address ADDRESS, ...;`",
        Occurrence::ExactlyOnce,
    ),
    rule(
        "key",
        "`key \"ssh-ed25519 AAAA...\";`",
        Occurrence::ExactlyOnce,
    ),
    rule("control", "`control PORT;`", Occurrence::AtMostOnce),
    rule(
        "loopback",
        "`loopback 127.X.Y.Z, ...;`",
        Occurrence::AtMostOnce,
    ),
];

const USERS: &[StatementRule] = &[rule("member", "`member USER, ...;`", Occurrence::Any)];

pub(crate) const PROGRAM_FORM: &str = "`program \"/PATH\" \"ARGUMENT\" ...;`";
pub(crate) const ACCOUNT_FORM: &str = "`account NAME;`";

// One of `program` and `account` is needed, which check/served_by.rs sees to.
const SERVICE: &[StatementRule] = &[
    rule("program", PROGRAM_FORM, Occurrence::AtMostOnce),
    rule("account", ACCOUNT_FORM, Occurrence::AtMostOnce),
    rule("listen", "`listen PORT;`", Occurrence::ExactlyOnce),
    rule("users", "`users BLOCK, ...;`", Occurrence::ExactlyOnce),
    rule(
        "hosts",
        "`hosts HOST, ...;` or `hosts any;`",
        Occurrence::ExactlyOnce,
    ),
    rule(
        "style",
        "`style connection;` or `style user;`",
        Occurrence::ExactlyOnce,
    ),
    rule("idle", "`idle 5m;`", Occurrence::AtMostOnce),
    rule(
        "environment",
        "`environment \"NAME=VALUE\", ...;`",
        Occurrence::AtMostOnce,
    ),
    rule("session", "`session 8h;`", Occurrence::AtMostOnce),
    rule("keys", "`keys NAME;`", Occurrence::AtMostOnce),
    rule(
        "reauthenticate",
        "`reauthenticate 10m;`",
        Occurrence::AtMostOnce,
    ),
    rule(
        "connections",
        "`connections NUMBER;`",
        Occurrence::AtMostOnce,
    ),
    rule("processes", "`processes NUMBER;`", Occurrence::AtMostOnce),
];

const CLIENT: &[StatementRule] = &[
    rule("users", "`users BLOCK, ...;`", Occurrence::ExactlyOnce),
    rule(
        "service",
        "`service SERVICE at HOST port PORT;`",
        Occurrence::AtLeastOnce,
    ),
    rule(
        "protocol",
        "`protocol raw;` or `protocol imap;`",
        Occurrence::AtMostOnce,
    ),
    rule("programs", "`programs any;`", Occurrence::AtMostOnce),
    rule("key", "`key NAME;`", Occurrence::AtMostOnce),
];

impl BlockKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Host, Self::Users, Self::Service, Self::Client];

    /// The keyword that opens such a block.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Users => "users",
            Self::Service => "service",
            Self::Client => "client",
        }
    }

    /// The kind that a keyword opens.
    pub(crate) fn of_keyword(keyword: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.keyword() == keyword)
    }

    pub(crate) fn rules(self) -> &'static [StatementRule] {
        match self {
            Self::Host => HOST,
            Self::Users => USERS,
            Self::Service => SERVICE,
            Self::Client => CLIENT,
        }
    }

    pub(crate) fn rule(self, keyword: &str) -> Option<&'static StatementRule> {
        self.rules().iter().find(|rule| rule.keyword == keyword)
    }

    /// The first kind of block in which a statement may stand.
    pub(crate) fn with_statement(keyword: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.rule(keyword).is_some())
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.keyword())
    }
}

/// Opens the blocks of application-aware protection, which a later version reads.
pub(crate) const APPLICATION: &str = "application";
