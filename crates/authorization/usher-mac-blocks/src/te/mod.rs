//! The statements of the module `te`: type enforcement, in the terms of SELinux.
//!
//! ```text
//! domain imapd;
//! type imapd_exec, mail, spool;
//! attribute content mail spool;
//! allow imapd content file read write create unlink;
//! allow imapd self capability setuid setgid;
//! transition unconfined imapd_exec imapd;
//! create imapd spool file mail;
//! relabel imapd spool mail;
//! permissive imapd;
//! ```
//!
//! A process in a domain does what an `allow` permits the domain, and nothing else. Statements may stand in
//! any order, and several `allow` about the same domain, type and class permit together what each permits.

mod class;
mod expanded;
mod model;
mod parse;
mod warning;

pub use usher_label::NameValue as TypeName;
use usher_language::{Kind, Occurrence, Part, Shape, StatementRule};

pub use class::Class;
pub use expanded::ExpandedAllow;
pub use model::{AllowedWhat, CreatedWhere, Permissive, TypeEnforcement};
pub(crate) use parse::settings;
pub use warning::TypeWarning;

/// The module's name.
pub const MODULE: &str = "te";

/// The domain of processes without an element.
pub const UNCONFINED: &str = "unconfined";
/// The type of files without an element.
pub const UNTYPED: &str = "untyped";
/// The type of terminals without an element.
pub const TERMINAL: &str = "terminal";
/// In place of a type: the domain itself.
pub const SELF: &str = "self";
/// Names that no statement declares.
const RESERVED: [&str; 5] = ["any", SELF, UNCONFINED, UNTYPED, TERMINAL];

const DOMAIN: &str = "domain";
const TYPE: &str = "type";
const ATTRIBUTE: &str = "attribute";
const ALLOW: &str = "allow";
const TRANSITION: &str = "transition";
const CREATE: &str = "create";
const RELABEL: &str = "relabel";
const PERMISSIVE: &str = "permissive";

/// The statements of its block.
pub(crate) fn statements() -> Vec<StatementRule> {
    let name = |what: &str| Kind::Word(what.to_owned());
    let value = |what: &str| Part::Value(name(what));
    let phrase = |parts: &[&str]| Shape::Phrase(parts.iter().map(|part| value(part)).collect());
    let created = vec![
        value("DOMAIN"),
        value("TYPE"),
        Part::Value(class::creatable()),
        value("TYPE"),
    ];
    let own = |form: &str| Shape::Own(form.to_owned());
    [
        (
            DOMAIN,
            Shape::List(name("NAME")),
            "a domain, which processes have",
        ),
        (TYPE, Shape::List(name("NAME")), "a type, which files have"),
        (
            ATTRIBUTE,
            own("`attribute NAME MEMBER ...;`, where the members are domains or types"),
            "a name for several domains, or several types",
        ),
        (
            PERMISSIVE,
            Shape::AnyOr(name("DOMAIN")),
            "domains to which nothing is refused; what would have been is noted",
        ),
        (
            ALLOW,
            own("`allow DOMAIN TYPE CLASS PERMISSION ...;`"),
            "what the processes of a domain do with objects of a type",
        ),
        (
            TRANSITION,
            phrase(&["DOMAIN", "TYPE", "DOMAIN"]),
            "the domain that a process gets by executing a program of a type",
        ),
        (
            CREATE,
            Shape::Phrase(created),
            "the type of what a domain makes in directories of a type",
        ),
        (
            RELABEL,
            phrase(&["DOMAIN", "TYPE", "TYPE"]),
            "a change of the type of files that a domain makes",
        ),
    ]
    .map(|(keyword, shape, about)| StatementRule::new(keyword, Occurrence::Any, shape, about))
    .into()
}
