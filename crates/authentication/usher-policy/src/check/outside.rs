//! Statements outside of blocks: `include`, `limit`, `marks` and `expect`.
//!
//! Names in an `expect` that the policy lacks are warnings instead of mistakes
//! ([`crate::Policy::unknown_names`]): an expectation about a removed user or service must not block
//! the removal.

use usher_base::HostName;
use usher_language::{Checked, Field, Fields, Kind, Reporter, Tree, Unique};
use usher_protection::MarkMask;

use crate::dialect::{DIALECT, PERCENT, SIZE};
use crate::include::is_path;
use crate::limits::MAXIMUM_PROCESSES;
use crate::mistake::PolicyMistake;
use crate::model::Expectation;
use crate::model::{Policy, ProcessLimits};
use crate::names::{HOST, SERVICE, USER};

pub(super) fn check_outside(tree: &Tree<'_>, policy: &mut Policy, reporter: &Reporter<'_>) {
    let fields = Fields::outside(tree, &DIALECT, reporter);
    fields.all("include").for_each(include);
    let each_user = fields.one("limit").and_then(each_user);
    policy.each_user = each_user.unwrap_or_default();
    policy.marks = fields.one("marks").and_then(marks).unwrap_or_default();
    policy.expectations = fields.all("expect").filter_map(expectation).collect();
}

/// `include "PATH";`, which the caller has followed.
fn include(field: &Field<'_>) {
    for (found, item) in field.texts().filter(|(found, _)| !is_path(found)) {
        let found = found.into();
        field
            .reporter
            .report(item.location, PolicyMistake::InvalidInclude { found });
    }
}

/// `expect permit|refuse user USER [at HOST] service SERVICE [at HOST] [port PORT];`
fn expectation(field: &Field<'_>) -> Option<Expectation> {
    let [Some(verdict), Some(user), from, Some(service), at, _] = field.parts()? else {
        return None;
    };
    let host = |item| field.name_of::<HostName>(item, &HOST);
    let (user, service) = (field.name_of(user, &USER), field.name_of(service, &SERVICE));
    Some(Expectation {
        permit: verdict.is_word("permit"),
        from: from.and_then(host),
        at: at.and_then(host),
        user: user?,
        service: service?,
        port: field.number().and_then(|port| u16::try_from(port).ok()),
        origin: field.origin(),
    })
}

/// `marks 0xMASK;`
fn marks(field: &Field<'_>) -> Option<MarkMask> {
    let (found, item) = field.words().next()?;
    let digits = found.strip_prefix("0x");
    let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let mask = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match mask.and_then(MarkMask::new) {
        Some(mask) => Some(mask),
        None => {
            let found = found.into();
            field.refuse(item, PolicyMistake::InvalidMarks { found })
        }
    }
}

/// `limit user processes NUMBER, memory SIZE, cpu PERCENT;`, at least one of them.
fn each_user(field: &Field<'_>) -> Option<ProcessLimits> {
    let groups = &field.statement.groups;
    let mut limits = ProcessLimits::default();
    let mut listed = Unique::default();
    let kinds = Kind::Choice(["processes", "memory", "cpu"].map(str::to_owned).into());
    for (index, group) in groups.iter().enumerate() {
        let group = match group.split_first() {
            Some((word, rest)) if index == 0 && word.is_word("user") => rest,
            Some((other, _)) if index == 0 => return field.unexpected(other),
            _ => group,
        };
        let (bound, item) = match group {
            [_, _, excess, ..] => return field.unexpected(excess),
            [bound, item] => (bound, item),
            _ => return field.missing(),
        };
        let Some(Checked::Word(word)) = kinds.read(bound, field.reporter) else {
            continue;
        };
        listed.list(word.clone(), bound, field.reporter);
        let (least, most) = (1, MAXIMUM_PROCESSES.into());
        let kind = match word.as_str() {
            "processes" => Kind::Number { least, most },
            "memory" => SIZE,
            _ => PERCENT,
        };
        let Some(Checked::Number(number)) = kind.read(item, field.reporter) else {
            continue;
        };
        let small = u32::try_from(number).ok();
        match word.as_str() {
            "processes" => limits.processes = small?,
            "memory" => limits.memory = Some(number),
            _ => limits.cpu = small,
        }
    }
    if groups.is_empty() {
        field.missing()
    } else {
        Some(limits)
    }
}
