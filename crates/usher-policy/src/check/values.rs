//! Single values: words and strings to what they mean.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use usher_proto::HostName;

use crate::application::Transform;
use crate::error::{NameKind, PolicyErrorKind};
use crate::model::MAXIMUM_DURATION;
use crate::nearest::nearest;
use crate::report::Reporter;
use crate::tree::{Item, Value};

pub(super) fn word<'i>(item: &'i Item, reporter: &mut Reporter<'_>) -> Option<&'i str> {
    match &item.value {
        Value::Word(word) => Some(word),
        Value::Text(_) => {
            let found = item.shown();
            reporter.report(item.location, PolicyErrorKind::ExpectedWord { found });
            None
        }
        Value::Broken => None,
    }
}

pub(super) fn text<'i>(item: &'i Item, reporter: &mut Reporter<'_>) -> Option<&'i str> {
    match &item.value {
        Value::Text(text) => Some(text),
        Value::Word(_) => {
            let found = item.shown();
            reporter.report(item.location, PolicyErrorKind::ExpectedString { found });
            None
        }
        Value::Broken => None,
    }
}

pub(super) fn name<N: FromStr>(
    item: &Item,
    kind: NameKind,
    reporter: &mut Reporter<'_>,
) -> Option<N> {
    let found = word(item, reporter)?;
    // `any` is the word for every host; a block of that name could not be told from it.
    let reserved = matches!(kind, NameKind::Host | NameKind::Block) && found == "any";
    let name = found.parse().ok().filter(|_| !reserved);
    if name.is_none() {
        let found = found.to_owned();
        reporter.report(
            item.location,
            PolicyErrorKind::InvalidName { name: kind, found },
        );
    }
    name
}

/// Decimal digits without sign or leading zero.
pub(super) fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}

/// The digits of a port, 1 to 65,535.
pub(super) fn port_number(text: &str) -> Option<u16> {
    digits(text).and_then(|number| u16::try_from(number).ok())
}

/// A TCP port, 1 to 65,535.
pub(super) fn port(item: &Item, reporter: &mut Reporter<'_>) -> Option<u16> {
    let found = word(item, reporter)?;
    let port = port_number(found);
    if port.is_none() {
        let found = found.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidPort { found });
    }
    port
}

/// A number from 1 to `maximum`.
pub(super) fn number(item: &Item, maximum: u32, reporter: &mut Reporter<'_>) -> Option<u32> {
    let found = word(item, reporter)?;
    let number = digits(found)
        .and_then(|number| u32::try_from(number).ok())
        .filter(|&number| number <= maximum);
    if number.is_none() {
        let found = found.to_owned();
        reporter.report(
            item.location,
            PolicyErrorKind::InvalidNumber { found, maximum },
        );
    }
    number
}

/// A file mode creation mask: three octal digits.
pub(super) fn umask(item: &Item, reporter: &mut Reporter<'_>) -> Option<u16> {
    let found = word(item, reporter)?;
    let octal = found.len() == 3 && found.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mask = octal.then(|| u16::from_str_radix(found, 8).ok()).flatten();
    if mask.is_none() {
        let found = found.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidUmask { found });
    }
    mask
}

/// A whole number with the unit s, m or h; one second to [`MAXIMUM_DURATION`].
pub(super) fn duration(item: &Item, reporter: &mut Reporter<'_>) -> Option<Duration> {
    duration_from(Duration::from_secs(1), item, reporter)
}

/// The same, of at least `shortest`.
pub(super) fn duration_from(
    shortest: Duration,
    item: &Item,
    reporter: &mut Reporter<'_>,
) -> Option<Duration> {
    let found = word(item, reporter)?;
    let units = [('s', 1), ('m', 60), ('h', 3600)];
    let Some((amount, unit)) = units
        .into_iter()
        .find_map(|(letter, unit)| Some((found.strip_suffix(letter)?, unit)))
        .filter(|(amount, _)| {
            !amount.is_empty() && amount.bytes().all(|byte| byte.is_ascii_digit())
        })
    else {
        let found = found.to_owned();
        reporter.report(item.location, PolicyErrorKind::InvalidDuration { found });
        return None;
    };
    let duration = digits(amount)
        .and_then(|amount| amount.checked_mul(unit))
        .map(Duration::from_secs)
        .filter(|duration| (shortest..=MAXIMUM_DURATION).contains(duration));
    if duration.is_none() {
        let found = found.to_owned();
        reporter.report(
            item.location,
            PolicyErrorKind::DurationOutOfRange { found, shortest },
        );
    }
    duration
}

/// One of a few words: its position among them.
pub(super) fn choice(
    item: &Item,
    choices: &'static [&'static str],
    reporter: &mut Reporter<'_>,
) -> Option<usize> {
    let found = word(item, reporter)?;
    let position = choices.iter().position(|&choice| choice == found);
    if position.is_none() {
        let found = found.to_owned();
        reporter.report(
            item.location,
            PolicyErrorKind::UnknownChoice { found, choices },
        );
    }
    position
}

/// `encryption` or `authentication`.
pub(super) fn transform(item: &Item, reporter: &mut Reporter<'_>) -> Option<Transform> {
    choice(item, &["encryption", "authentication"], reporter)
        .map(|position| [Transform::Encryption, Transform::Authentication][position])
}

/// A host that the policy has.
pub(super) fn known_host(
    found: HostName,
    item: &Item,
    hosts: &BTreeSet<HostName>,
    reporter: &mut Reporter<'_>,
) -> Option<HostName> {
    if hosts.contains(&found) {
        return Some(found);
    }
    let nearest = nearest_name(found.as_ref(), hosts, reporter);
    reporter.report(
        item.location,
        PolicyErrorKind::UnknownHost { found, nearest },
    );
    None
}

/// The nearest of the defined names; not searched for an error that nobody will see.
pub(super) fn nearest_name<'n, N: AsRef<str> + 'n>(
    found: &str,
    names: impl IntoIterator<Item = &'n N>,
    reporter: &Reporter<'_>,
) -> Option<String> {
    if reporter.is_full() {
        return None;
    }
    nearest(found, names.into_iter().map(AsRef::as_ref))
}
