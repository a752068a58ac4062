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
    /// `application`: how the traffic of programs is protected.
    Application,
    /// `mac`: what a module of the MAC framework is told.
    Mac,
    /// `protection`, inside an `application` block.
    Protection,
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

impl StatementRule {
    /// Whether a statement that begins with this word is of this kind. The value may be part of the
    /// word: `localport=any`.
    fn begins_with(&self, word: &str) -> bool {
        match self.keyword.ends_with('=') {
            true => word.starts_with(self.keyword),
            false => word == self.keyword,
        }
    }
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

const USERS: &[StatementRule] = &[
    rule("member", "`member USER, ...;`", Occurrence::Any),
    rule("group", "`group GROUP, ...;`", Occurrence::Any),
    rule(
        "guest",
        "`guest USER until 2026-12-31T18:00Z;`",
        Occurrence::Any,
    ),
    rule("principal", "`principal NAME, ...;`", Occurrence::Any),
];

pub(crate) const PROGRAM_FORM: &str = "`program \"/PATH\" \"ARGUMENT\" ...;`";
pub(crate) const ACCOUNT_FORM: &str = "`account NAME;`";
const FILES_FORM: &str = "`files \"/PATH\" read, \"~/PATH\" write, ...;`";
pub(crate) const CONNECT_FORM: &str =
    "`connect none;` or `connect ADDRESSES port PORT, ...;`, without `port` for all ports";

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
    rule("files", FILES_FORM, Occurrence::AtMostOnce),
    rule("umask", "`umask 027;`", Occurrence::AtMostOnce),
    rule(
        "setuid",
        "`setuid permit;` or `setuid refuse;`",
        Occurrence::AtMostOnce,
    ),
    rule(
        "pam",
        "`pam session;` or `pam account;`",
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
    rule("memory", "`memory 512M;`", Occurrence::AtMostOnce),
    rule("cpu", "`cpu 50%;`", Occurrence::AtMostOnce),
    rule("connect", CONNECT_FORM, Occurrence::AtMostOnce),
    rule(
        "protection",
        "`protection encryption;` or `protection authentication;`",
        Occurrence::AtMostOnce,
    ),
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
    rule(
        "programs",
        "`programs any;` or `programs \"PATH\", ...;`",
        Occurrence::AtMostOnce,
    ),
    rule("key", "`key NAME;`", Occurrence::AtMostOnce),
];

const APPLICATION: &[StatementRule] = &[rule(
    "network",
    "`network ADDRESSES trusted;`, or `untrusted`, or `protected NAME`",
    Occurrence::AtLeastOnce,
)];

pub(crate) const ITEM_FORM: &str = "`localport=PORT remoteport=PORT encryption mandatory;`, with \
                                    `any` for all ports, or `authentication`, or `optional`";

const PROTECTION: &[StatementRule] = &[rule(LOCAL_PORT, ITEM_FORM, Occurrence::AtLeastOnce)];

/// Begins the items of a protection; the port is part of the word.
pub(crate) const LOCAL_PORT: &str = "localport=";

/// The statements that stand outside of blocks.
pub(crate) const OUTER_STATEMENTS: &[StatementRule] = &[
    rule(
        "expect",
        "`expect permit user USER at HOST service SERVICE at HOST port PORT;`, or `refuse`; each \
         `at HOST` and `port PORT` may be left out",
        Occurrence::Any,
    ),
    rule("include", "`include \"PATH\";`", Occurrence::Any),
    rule(
        "limit",
        "`limit user processes NUMBER, memory SIZE, cpu PERCENT;`; each of the three may be left out",
        Occurrence::AtMostOnce,
    ),
];

/// The rule of a statement that stands outside of blocks.
pub(crate) fn outer_rule(keyword: &str) -> Option<&'static StatementRule> {
    OUTER_STATEMENTS.iter().find(|rule| rule.keyword == keyword)
}

/// What may stand outside of blocks, in words.
pub(crate) fn outer_words() -> impl Iterator<Item = &'static str> {
    let statements = OUTER_STATEMENTS.iter().map(|rule| rule.keyword);
    BlockKind::ALL
        .into_iter()
        .map(BlockKind::keyword)
        .chain(statements)
}

impl BlockKind {
    /// Every kind that stands outside of other blocks.
    pub const ALL: [Self; 6] = [
        Self::Host,
        Self::Users,
        Self::Service,
        Self::Client,
        Self::Application,
        Self::Mac,
    ];

    /// The kinds of block that stand inside of this one.
    pub(crate) fn inner(self) -> &'static [Self] {
        match self {
            Self::Application => &[Self::Protection],
            _ => &[],
        }
    }

    /// The kind that a keyword opens inside of this one.
    pub(crate) fn inner_of_keyword(self, keyword: &str) -> Option<Self> {
        let mut inner = self.inner().iter().copied();
        inner.find(|kind| kind.keyword() == keyword)
    }

    /// The keyword with its article, as sentences have it.
    pub(crate) fn one(self) -> &'static str {
        match self {
            Self::Host => "a `host`",
            Self::Users => "a `users`",
            Self::Service => "a `service`",
            Self::Client => "a `client`",
            Self::Application => "an `application`",
            Self::Mac => "a `mac`",
            Self::Protection => "a `protection`",
        }
    }

    /// Whether its head is a list of names.
    pub(crate) fn has_names(self) -> bool {
        self == Self::Application
    }

    /// The keyword that opens such a block.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Users => "users",
            Self::Service => "service",
            Self::Client => "client",
            Self::Application => "application",
            Self::Mac => "mac",
            Self::Protection => "protection",
        }
    }

    /// The kind that a keyword opens outside of blocks.
    pub(crate) fn of_keyword(keyword: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.keyword() == keyword)
    }

    pub(crate) fn rules(self) -> &'static [StatementRule] {
        match self {
            Self::Host => HOST,
            Self::Users => USERS,
            Self::Service => SERVICE,
            Self::Client => CLIENT,
            Self::Application => APPLICATION,
            // Its statements are its module's.
            Self::Mac => &[],
            Self::Protection => PROTECTION,
        }
    }

    /// The rule of a statement that begins with this word.
    pub(crate) fn rule(self, word: &str) -> Option<&'static StatementRule> {
        self.rules().iter().find(|rule| rule.begins_with(word))
    }

    /// The first kind of block in which a statement may stand.
    pub(crate) fn with_statement(keyword: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .chain([Self::Protection])
            .find(|kind| kind.rule(keyword).is_some())
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.keyword())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GRAMMAR: &str = include_str!("../../../editors/usher-policy.tmLanguage.json");

    /// The words of one entry of the editors' grammar: the alternatives of its only group.
    fn words(entry: &str) -> BTreeSet<String> {
        let grammar: serde_json::Value = serde_json::from_str(GRAMMAR).expect("JSON");
        let pattern = grammar["repository"][entry]["match"].as_str();
        let pattern = pattern.expect("an entry with a pattern");
        let group = pattern.split([')', '(']).find(|part| {
            let word = |byte: u8| byte.is_ascii_lowercase() || byte == b'|';
            !part.is_empty() && part.bytes().all(word)
        });
        let group = group.expect("a group of words");
        group.split('|').map(str::to_owned).collect()
    }

    #[test]
    fn editors_know_the_keywords_of_the_language_and_no_others() {
        let kinds = BlockKind::ALL.into_iter().chain([BlockKind::Protection]);
        let blocks: BTreeSet<String> = kinds
            .clone()
            .map(|kind| kind.keyword().to_owned())
            .collect();
        assert_eq!(words("block"), blocks);
        let rules = kinds.flat_map(BlockKind::rules).chain(OUTER_STATEMENTS);
        let statements: BTreeSet<String> = rules
            .map(|rule| rule.keyword.to_owned())
            // Those that are blocks as well, and those with a value in the word, stand elsewhere.
            .filter(|keyword| !blocks.contains(keyword) && !keyword.ends_with('='))
            .collect();
        assert_eq!(words("statement"), statements);
        assert_eq!(
            words("port-pattern"),
            ["localport", "remoteport"].map(str::to_owned).into()
        );
    }
}
