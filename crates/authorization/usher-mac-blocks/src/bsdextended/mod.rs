//! The statements of the module `bsdextended`: rules about file accesses by user and group, near those
//! of FreeBSD's ugidfw(8).
//!
//! ```text
//! rule subject uid alice 1000:1999 not gid staff object uid root type rd mode rsx;
//! ```
//!
//! The first rule that matches a process and a file decides; without one, the access is permitted.

mod model;
mod parse;
mod text;

use usher_language::{Fields, Occurrence, Reporter, Shape, StatementRule};

use crate::limits::MAXIMUM_ACCESS_RULES;
use crate::mistake::MacMistake;
pub use model::{
    AccessMode, AccessRule, AccountRange, FileTypes, Membership, RuleObject, RuleSubject,
};
pub use text::{OBJECT as OBJECT_CONDITIONS, SUBJECT as SUBJECT_CONDITIONS};

/// The module's name.
pub const MODULE: &str = "bsdextended";

/// The mode that refuses nothing.
const ALL: &str = "arswx";

/// The keyword of its only statement.
const RULE: &str = "rule";

/// How a rule is written.
const FORM: &str = "`rule subject [not] uid USER ... [not] gid GROUP ... object CONDITION ... mode \
                    MODE;`, where `subject` and `object` may be left out, and an object's conditions are \
                    `uid USER ...`, `gid GROUP ...`, `filesys \"/PATH\"`, `suid`, `sgid`, \
                    `uid_of_subject`, `gid_of_subject` and `type rdbclsp`, each also with `not` before it";

/// The statements of its block.
pub(crate) fn statements() -> Vec<StatementRule> {
    let shape = Shape::Own(FORM.to_owned());
    let about = "what these processes may do with these files";
    vec![StatementRule::new(RULE, Occurrence::Any, shape, about)]
}

/// The rules of a block, in the order of the text; those with mistakes are left out.
pub(crate) fn rules(fields: &Fields<'_>, reporter: &Reporter<'_>) -> Vec<AccessRule> {
    if let Some(field) = fields.all(RULE).nth(MAXIMUM_ACCESS_RULES) {
        reporter.report(field.statement.location, MacMistake::TooManyRules);
    }
    let fields = fields.all(RULE).take(MAXIMUM_ACCESS_RULES);
    fields.filter_map(parse::rule).collect()
}

/// The first rule that refuses something to processes of root, although its text does not name root: a rule
/// about every user and group, or about all but some others. A rule about groups by name is about their
/// members, who are not expected to be root. Rules after one that decides for all of root's processes have no
/// effect on them.
pub fn first_about_root_unsaid(rules: &[AccessRule]) -> Option<&AccessRule> {
    for rule in rules {
        let users = rule.subject.users.as_ref();
        let has_root = users.is_some_and(Membership::names_root);
        if users.is_some_and(|users| users.not == has_root) {
            continue;
        }
        let groups = rule.subject.groups.as_ref();
        if groups.is_some_and(|groups| groups.not == groups.names_root()) {
            continue;
        }
        if !has_root && rule.mode.letters() != ALL {
            return Some(rule);
        }
        if rule.subject.groups.is_none() && rule.object == RuleObject::default() {
            return None;
        }
    }
    None
}
