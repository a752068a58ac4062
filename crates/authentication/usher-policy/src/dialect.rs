//! The blocks and statements of authentication: each with its values, what it needs, and what it is
//! for, written once. One text may have these, the blocks of protection and those of the modules of
//! mandatory access control; the last two are dialects of their own.

use std::sync::LazyLock;

use usher_language::Occurrence::{Any, AtLeastOnce, AtMostOnce, Once};
use usher_language::{BlockRule, Dialect, Kind, Part, Shape, StatementRule, words};

use crate::client::Protocol;
use crate::limits::{
    MAXIMUM_CONNECTIONS, MAXIMUM_CPU, MAXIMUM_DURATION, MAXIMUM_KEEPALIVE, MAXIMUM_MEMORY,
    MAXIMUM_PROCESSES, MINIMUM_KEEPALIVE, MINIMUM_MEMORY, MINIMUM_REAUTHENTICATION,
};
use crate::model::{Identification, Style};

words! {
    /// The kinds of block.
    pub enum BlockKind {
        /// `host`: a machine with its addresses and its key.
        Host = "host",
        /// `users`: a named set of users.
        Users = "users",
        /// `service`: a service that this host offers.
        Service = "service",
        /// `client`: what local users may authenticate to.
        Client = "client",
    }
}

/// The feature that enforces a statement, where that is more than Usher's daemons.
const LSM: &str = "LSM programs";

/// The tables of all systems.
pub(crate) static DIALECT: LazyLock<Dialect> = LazyLock::new(|| {
    let authentication = Dialect {
        blocks: vec![host(), users(), service(), client()],
        statements: outside(),
    };
    let protection = usher_protection::dialect();
    authentication
        .join(protection)
        .join(usher_mac_blocks::dialect())
});

/// A table of statements: keyword, how often, values, what it is for, and what else it takes.
macro_rules! statements {
    ($($keyword:expr, $occurrence:expr, $shape:expr, $about:literal $(, $more:ident $argument:expr)*;)*) => {
        vec![$(StatementRule::new($keyword, $occurrence, $shape, $about)$(.$more($argument))*),*]
    };
}

fn block(kind: BlockKind, statements: Vec<StatementRule>) -> BlockRule {
    BlockRule {
        keyword: kind.to_string(),
        statements,
        ..BlockRule::default()
    }
}

fn word(what: &str) -> Kind {
    Kind::Word(what.to_owned())
}

fn kind_of_text(what: &str) -> Kind {
    Kind::Text(what.to_owned())
}

fn choice(words: [&str; 2]) -> Kind {
    Kind::Choice(words.map(str::to_owned).into())
}

fn duration(least: u64) -> Shape {
    let most = MAXIMUM_DURATION.as_secs();
    Shape::One(Kind::Duration { least, most })
}

fn shape_of_number(most: u32) -> Shape {
    let (least, most) = (1, most.into());
    Shape::One(Kind::Number { least, most })
}

pub(crate) const SIZE: Kind = Kind::Size {
    least: MINIMUM_MEMORY,
    most: MAXIMUM_MEMORY,
};

pub(crate) const PERCENT: Kind = Kind::Percent {
    most: MAXIMUM_CPU as u64,
};

/// How long a client host may be silent.
const KEEPALIVE: Kind = Kind::Duration {
    least: MINIMUM_KEEPALIVE.as_secs(),
    most: MAXIMUM_KEEPALIVE.as_secs(),
};

fn own(form: &str) -> Shape {
    Shape::Own(form.to_owned())
}

fn at(keyword: &str) -> Part {
    Part::Word(keyword.to_owned())
}

fn value(what: &str) -> Part {
    Part::Value(word(what))
}

fn host() -> BlockRule {
    let statements = statements! {
        "address", Once, Shape::List(word("ADDRESS")), "where other hosts reach it";
        "key", Once, Shape::List(kind_of_text("\"ssh-ed25519 AAAA...\"")), "the line of its .pub file; while it is replaced, the lines of both";
        "ike-key", AtMostOnce, Shape::List(kind_of_text("\"ssh-ed25519 AAAA...\"")), "the public key by which its IKE daemon authenticates itself, Ed25519 or ECDSA P-256";
        "hold", AtMostOnce, Shape::One(choice(["yes", "no"])), "whether it is held to an `optional` class once it has had SAs";
        "unlabelled", AtMostOnce, Shape::One(usher_protection::Kind::kind()), "the only class of its SAs, which have no security label then";
        "control", AtMostOnce, Shape::One(Kind::Port), "the TCP port of its control channel";
        "loopback", AtMostOnce, Shape::List(word("127.X.Y.Z")), "where the local proxy stands for it";
    };
    block(BlockKind::Host, statements)
}

fn users() -> BlockRule {
    let guest = vec![value("USER"), at("until"), value("2026-12-31T18:00Z")];
    let statements = statements! {
        "member", Any, Shape::List(word("USER")), "users of this set";
        "group", Any, Shape::List(word("GROUP")), "groups of accounts of this host";
        "guest", Any, Shape::Phrase(guest), "a user until a time in UTC";
        "principal", Any, Shape::List(word("NAME")), "principals of certificates";
    };
    block(BlockKind::Users, statements)
}

fn service() -> BlockRule {
    const PROGRAM: &str = "program";
    const FILES: &str = "`files \"/PATH\" read, \"~/PATH\" write, ...;`";
    const CONNECT: &str =
        "`connect none;` or `connect ADDRESSES port PORT, ...;`, without `port` for all ports";
    let again = MINIMUM_REAUTHENTICATION.as_secs();
    let socket = Part::Value(kind_of_text("\"/PATH\""));
    let header = Part::Optional("header".to_owned(), word("NAME"));
    let identify = vec![Part::Value(Identification::kind()), socket, header];
    let statements = statements! {
        PROGRAM, AtMostOnce, Shape::Sequence(kind_of_text("\"/PATH\"")), "the program that the keeper starts, and its arguments";
        "account", AtMostOnce, Shape::One(word("NAME")), "the account of the service's own processes", needs LSM;
        "identify", AtMostOnce, Shape::Phrase(identify), "a server of the account's own to which connections are passed on, with their user", beside "style shared";
        "listen", Once, Shape::One(Kind::Port), "the TCP port on which clients reach it";
        "users", Once, Shape::List(word("BLOCK")), "the sets of users that it admits";
        "hosts", Once, Shape::AnyOr(word("HOST")), "the hosts from which it admits them";
        "style", Once, Shape::One(Style::kind()), "a process for each connection, for each user, or one for all users";
        "idle", AtMostOnce, duration(1), "processes end after this long without a connection", beside "style user";
        "environment", AtMostOnce, Shape::List(kind_of_text("\"NAME=VALUE\"")), "variables for the processes", beside PROGRAM;
        "files", AtMostOnce, own(FILES), "the files that its processes may touch", beside PROGRAM, needs "Landlock";
        "umask", AtMostOnce, Shape::One(Kind::Octal(3)), "permissions that new files do not get", beside PROGRAM;
        "setuid", AtMostOnce, Shape::One(choice(["permit", "refuse"])), "whether set-user-ID programs change users", beside PROGRAM;
        "pam", AtMostOnce, Shape::One(choice(["session", "account"])), "whether processes run inside a PAM session", needs "PAM";
        "session", AtMostOnce, duration(1), "the longest session";
        "keys", AtMostOnce, Shape::One(word("NAME")), "it admits keys that are for this";
        "reauthenticate", AtMostOnce, duration(again), "how often users are authenticated again";
        "keepalive", AtMostOnce, Shape::One(KEEPALIVE), "how long a client host may be silent before its connections end";
        "connections", AtMostOnce, shape_of_number(MAXIMUM_CONNECTIONS), "most processes of one user at once", beside "style connection";
        "processes", AtMostOnce, shape_of_number(MAXIMUM_PROCESSES), "most processes and threads of one user";
        "memory", AtMostOnce, Shape::One(SIZE), "most memory of one user's processes";
        "cpu", AtMostOnce, Shape::One(PERCENT), "most processor time of one user's processes";
        "connect", AtMostOnce, own(CONNECT), "where its processes may connect";
        "protection", AtMostOnce, Shape::One(usher_protection::Kind::kind()), "how IPsec must protect its connections", needs usher_protection::IPSEC;
    };
    BlockRule {
        one_of: vec![[PROGRAM, "account"]],
        both_beside: Some(["style", Style::Shared.word()]),
        ..block(BlockKind::Service, statements)
    }
}

fn client() -> BlockRule {
    let port = Part::Value(Kind::Port);
    let target = vec![value("SERVICE"), at("at"), value("HOST"), at("port"), port];
    let statements = statements! {
        "users", Once, Shape::List(word("BLOCK")), "the sets of users that it permits";
        "service", AtLeastOnce, Shape::Phrase(target), "a service to which they may authenticate";
        "protocol", AtMostOnce, Shape::One(Protocol::kind()), "what the proxy knows of the protocol";
        "programs", AtMostOnce, Shape::AnyOr(kind_of_text("\"PATH\"")), "whose plain connections are authenticated";
        "key", AtMostOnce, Shape::One(word("NAME")), "the user's key that opens sessions";
        "protection", AtMostOnce, Shape::One(usher_protection::Kind::kind()), "how IPsec protects the connections", needs usher_protection::IPSEC;
    };
    block(BlockKind::Client, statements)
}

fn outside() -> Vec<StatementRule> {
    const LIMIT: &str = "`limit user processes NUMBER, memory SIZE, cpu PERCENT;`; each of the three \
                         may be left out";
    let optional = |keyword: &str, kind: Kind| Part::Optional(keyword.to_owned(), kind);
    let (from, to) = (optional("at", word("HOST")), optional("at", word("HOST")));
    let verdict = Part::Value(choice(["permit", "refuse"]));
    let (user, service) = (
        [at("user"), value("USER"), from],
        [at("service"), value("SERVICE"), to],
    );
    let port = optional("port", Kind::Port);
    let expectation = [verdict]
        .into_iter()
        .chain(user)
        .chain(service)
        .chain([port])
        .collect();
    statements! {
        "expect", Any, Shape::Phrase(expectation), "what the policy should permit or refuse";
        "include", Any, Shape::One(kind_of_text("\"PATH\"")), "another file of the policy";
        "limit", AtMostOnce, own(LIMIT), "what each user may take over all services";
        "marks", AtMostOnce, Shape::One(word("0xMASK")), "the bits of packets' marks that are Usher's, for protection";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GRAMMAR: &str = include_str!("../../../../editors/usher-policy.tmLanguage.json");

    /// The words of one entry of the editors' grammar: the alternatives of its only group.
    fn words(entry: &str) -> BTreeSet<String> {
        let grammar: serde_json::Value = serde_json::from_str(GRAMMAR).expect("JSON");
        let pattern = grammar["repository"][entry]["match"].as_str();
        let pattern = pattern.expect("an entry with a pattern");
        let group = pattern.split([')', '(']).find(|part| {
            let word = |byte: u8| byte.is_ascii_lowercase() || b"|-_".contains(&byte);
            !part.is_empty() && part.bytes().all(word)
        });
        let group = group.expect("a group of words");
        group.split('|').map(str::to_owned).collect()
    }

    /// The keywords of all blocks, those inside others last.
    fn blocks() -> Vec<&'static str> {
        let inner = DIALECT.blocks.iter().flat_map(|block| &block.inner);
        let blocks = DIALECT.blocks.iter().chain(inner);
        blocks.map(|block| block.keyword.as_str()).collect()
    }

    #[test]
    fn editors_know_exactly_the_keywords_of_the_language() {
        let blocks: BTreeSet<String> = blocks().into_iter().map(str::to_owned).collect();
        assert_eq!(words("block"), blocks);
        let rules = DIALECT.blocks.iter().flat_map(|block| &block.statements);
        let mut statements: BTreeSet<String> = rules
            .chain(&DIALECT.statements)
            .map(|rule| rule.keyword.clone())
            // Keywords of blocks stand in another entry of the grammar.
            .filter(|keyword| !blocks.contains(keyword))
            .collect();
        let modules = DIALECT
            .blocks
            .iter()
            .filter_map(|block| block.modules.as_ref());
        let modules = modules.flat_map(|modules| modules.values().flatten());
        statements.extend(modules.map(|rule| rule.keyword.clone()));
        assert_eq!(words("statement"), statements);
        let ports = ["localport", "remoteport"].map(str::to_owned);
        assert_eq!(words("port-pattern"), ports.into());
    }

    #[test]
    fn nothing_of_two_systems_begins_with_one_word() {
        let outer = DIALECT.blocks.iter().map(|block| block.keyword.as_str());
        let words: Vec<&str> = outer
            .chain(DIALECT.statements.iter().map(|rule| rule.keyword.as_str()))
            .collect();
        let unique: BTreeSet<&&str> = words.iter().collect();
        assert_eq!(unique.len(), words.len());
    }

    #[test]
    fn the_tables_have_the_blocks_of_the_language() {
        let own = BlockKind::ALL.iter().map(|kind| kind.word());
        let others = [
            usher_protection::APPLICATION,
            usher_mac_blocks::MAC,
            usher_protection::PROTECTION,
        ];
        assert_eq!(blocks(), own.chain(others).collect::<Vec<_>>());
    }
}
