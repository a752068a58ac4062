//! What the processes of a user may take: `processes`, `memory` and `cpu` of a service, and
//! `limit user` for all services together.

use super::fields::Field;
use super::unique::Unique;
use super::values;
use crate::error::PolicyErrorKind;
use crate::model::{MAXIMUM_CPU, MAXIMUM_MEMORY, MAXIMUM_PROCESSES, MINIMUM_MEMORY, ProcessLimits};
use crate::report::Reporter;
use crate::tree::Item;

/// A number of bytes with the unit K, M, G or T, powers of 1,024.
pub(super) fn memory(item: &Item, reporter: &mut Reporter<'_>) -> Option<u64> {
    let found = values::word(item, reporter)?;
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let size = units
        .into_iter()
        .find_map(|(letter, power)| Some((found.strip_suffix(letter)?, power)))
        .and_then(|(amount, power)| values::digits(amount)?.checked_mul(1 << power))
        .filter(|size| (MINIMUM_MEMORY..=MAXIMUM_MEMORY).contains(size));
    if size.is_none() {
        let found = found.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidMemory { found });
    }
    size
}

/// A percentage of one processor's time.
pub(super) fn cpu(item: &Item, reporter: &mut Reporter<'_>) -> Option<u32> {
    let found = values::word(item, reporter)?;
    let percent = found
        .strip_suffix('%')
        .and_then(values::digits)
        .and_then(|percent| u32::try_from(percent).ok())
        .filter(|percent| (1..=MAXIMUM_CPU).contains(percent));
    if percent.is_none() {
        let found = found.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidCpu { found });
    }
    percent
}

/// `limit user processes NUMBER, memory SIZE, cpu PERCENT;`, at least one of them.
pub(super) fn each_user(field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<ProcessLimits> {
    let [first, others @ ..] = field.statement.groups.as_slice() else {
        return field.missing(reporter);
    };
    let first = match first.as_slice() {
        [who, rest @ ..] if who.is_word("user") => rest,
        [other, ..] => return field.unexpected(other, reporter),
        [] => return None,
    };
    let mut limits = ProcessLimits::default();
    let mut listed = Unique::default();
    for group in std::iter::once(first).chain(others.iter().map(Vec::as_slice)) {
        let [kind, rest @ ..] = group else {
            return field.missing(reporter);
        };
        let kinds = &["processes", "memory", "cpu"];
        let Some(found) = values::choice(kind, kinds, reporter) else {
            continue;
        };
        listed.list(found, kind, reporter);
        let item = match rest {
            [item] => item,
            [_, excess, ..] => return field.unexpected(excess, reporter),
            [] => return field.missing(reporter),
        };
        match found {
            0 => limits.processes = values::number(item, MAXIMUM_PROCESSES, reporter)?,
            1 => limits.memory = Some(memory(item, reporter)?),
            _ => limits.cpu = Some(cpu(item, reporter)?),
        }
    }
    Some(limits)
}
