//! Settings as the modules read them.

use usher_bpf::Plain;

use crate::bsdextended::{FileType, Ids, MAX_RANGES, MAX_RULES, Mode, Rule};
use crate::shared::{
    MAC_GID_OF_SUBJECT, MAC_MODULES, MAC_OBJECT_DEVICE, MAC_OBJECT_GID, MAC_OBJECT_SGID,
    MAC_OBJECT_SUID, MAC_OBJECT_TYPE, MAC_OBJECT_UID, MAC_RANGES, MAC_RIGHT_ADMIN,
    MAC_RIGHT_EXECUTE, MAC_RIGHT_READ, MAC_RIGHT_STAT, MAC_RIGHT_WRITE, MAC_RULES, MAC_SUBJECT_GID,
    MAC_SUBJECT_UID, MAC_UID_OF_SUBJECT, MacBsdextended, MacRange, MacRule, MacTest,
};
use crate::{Answers, Error, MAX_MODULES, RuleMistake};

const _: () = assert!(MAX_RULES == MAC_RULES as usize);
const _: () = assert!(MAX_RANGES == MAC_RANGES as usize);
const _: () = assert!(MAX_MODULES == MAC_MODULES as usize);

/// Bits of the minor number in the kernel's numbers of devices.
const MINOR_BITS: u32 = 20;
/// No number is in it.
const EMPTY: MacRange = MacRange { first: 1, last: 0 };

/// Rules as bsdextended reads them.
pub(crate) fn rules(rules: &[Rule]) -> Result<MacBsdextended, Error> {
    if rules.len() > MAX_RULES {
        return Err(Error::TooManyRules(rules.len()));
    }
    let mut encoded = MacBsdextended::zeroed();
    for (number, rule) in rules.iter().enumerate() {
        let one = self::rule(rule).map_err(|what| Error::Rule { rule: number, what })?;
        encoded.rules[number] = one;
        encoded.count += 1;
    }
    Ok(encoded)
}

fn rule(rule: &Rule) -> Result<MacRule, RuleMistake> {
    let (subject, object) = (&rule.subject, &rule.object);
    let mut encoded = MacRule::zeroed();
    encoded.mode = mode(rule.mode);
    let mut condition = |bit: u32, not: bool| {
        encoded.has |= bit;
        encoded.inverted |= if not { bit } else { 0 };
    };
    let mut ids = |bit: u32, ids: &Option<Ids>| match ids {
        None => Ok([EMPTY; MAX_RANGES]),
        Some(ids) => {
            condition(bit, ids.not);
            ranges(&ids.ranges)
        }
    };
    let subject_uids = ids(MAC_SUBJECT_UID, &subject.uids)?;
    let subject_gids = ids(MAC_SUBJECT_GID, &subject.gids)?;
    let object_uids = ids(MAC_OBJECT_UID, &object.uids)?;
    let object_gids = ids(MAC_OBJECT_GID, &object.gids)?;
    for (bit, wanted) in [
        (MAC_OBJECT_SUID, object.suid),
        (MAC_OBJECT_SGID, object.sgid),
        (MAC_UID_OF_SUBJECT, object.uid_of_subject),
        (MAC_GID_OF_SUBJECT, object.gid_of_subject),
    ] {
        if let Some(wanted) = wanted {
            condition(bit, !wanted);
        }
    }
    if let Some(system) = object.filesystem {
        condition(MAC_OBJECT_DEVICE, system.not);
        let (major, minor) = (system.major, system.minor);
        if major >> (u32::BITS - MINOR_BITS) != 0 || minor >> MINOR_BITS != 0 {
            return Err(RuleMistake::Device(major, minor));
        }
        encoded.device = major << MINOR_BITS | minor;
    }
    if let Some(types) = &object.types {
        encoded.has |= MAC_OBJECT_TYPE;
        encoded.inverted |= if types.not { MAC_OBJECT_TYPE } else { 0 };
        if types.types.is_empty() {
            return Err(RuleMistake::NoType);
        }
        let bits = types.types.iter().map(|kind| 1 << type_number(*kind));
        encoded.types = bits.fold(0, |all: u32, bit: u32| all | bit);
    }
    Ok(MacRule {
        subject_uids,
        subject_gids,
        object_uids,
        object_gids,
        ..encoded
    })
}

fn ranges(ranges: &[(u32, u32)]) -> Result<[MacRange; MAX_RANGES], RuleMistake> {
    let mut encoded = [EMPTY; MAX_RANGES];
    match ranges.len() {
        0 => return Err(RuleMistake::NoRange),
        length if length > MAX_RANGES => return Err(RuleMistake::TooManyRanges(length)),
        _ => {}
    }
    for (place, &(first, last)) in encoded.iter_mut().zip(ranges) {
        if first > last {
            return Err(RuleMistake::Backwards(first, last));
        }
        *place = MacRange { first, last };
    }
    Ok(encoded)
}

/// The four bits of a file's mode for its type.
fn type_number(kind: FileType) -> u32 {
    match kind {
        FileType::Fifo => 1,
        FileType::Character => 2,
        FileType::Directory => 4,
        FileType::Block => 6,
        FileType::Regular => 8,
        FileType::Link => 10,
        FileType::Socket => 12,
    }
}

fn mode(mode: Mode) -> u32 {
    let rights = [
        (mode.admin, MAC_RIGHT_ADMIN),
        (mode.read, MAC_RIGHT_READ),
        (mode.stat, MAC_RIGHT_STAT),
        (mode.write, MAC_RIGHT_WRITE),
        (mode.execute, MAC_RIGHT_EXECUTE),
    ];
    let granted = rights.into_iter().filter(|(granted, _)| *granted);
    granted.fold(0, |all, (_, right)| all | right)
}

/// Answers as the module `test` reads them.
pub(crate) fn answers(answers: &Answers) -> MacTest {
    let mut encoded = MacTest::zeroed();
    encoded.uid = answers.uid;
    for &(point, error) in &answers.errors {
        encoded.errors[point as usize] = error.unsigned_abs();
    }
    encoded
}
