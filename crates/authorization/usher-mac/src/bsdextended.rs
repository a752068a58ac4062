//! Rules of the module `bsdextended`, as it reads them.

use usher_bpf::Plain;
use usher_mac_blocks::bsdextended::{AccessMode, AccessRule, AccountRange, FileTypes, Membership};

use crate::devices::device_number;
use crate::shared::{
    MAC_GID_OF_SUBJECT, MAC_OBJECT_DEVICE, MAC_OBJECT_GID, MAC_OBJECT_SGID, MAC_OBJECT_SUID,
    MAC_OBJECT_TYPE, MAC_OBJECT_UID, MAC_RANGES, MAC_RIGHT_ADMIN, MAC_RIGHT_EXECUTE,
    MAC_RIGHT_READ, MAC_RIGHT_STAT, MAC_RIGHT_WRITE, MAC_SUBJECT_GID, MAC_SUBJECT_UID,
    MAC_UID_OF_SUBJECT, MacBsdextended, MacRange, MacRule,
};
use crate::{Error, Names};

/// No number is in it.
const EMPTY: MacRange = MacRange { first: 1, last: 0 };

pub(crate) fn encode(rules: &[AccessRule], names: &Names) -> Result<MacBsdextended, Error> {
    let mut encoded = MacBsdextended::zeroed();
    if rules.len() > encoded.rules.len() {
        return Err(Error::TooManyRules(rules.len()));
    }
    for (place, one) in encoded.rules.iter_mut().zip(rules) {
        *place = rule(one, names)?;
        encoded.count += 1;
    }
    Ok(encoded)
}

fn rule(rule: &AccessRule, names: &Names) -> Result<MacRule, Error> {
    let (subject, object) = (&rule.subject, &rule.object);
    let mut encoded = MacRule::zeroed();
    encoded.mode = mode(&rule.mode);
    encoded.subject_uids = ranges(subject.users.as_ref(), false, names)?;
    encoded.subject_gids = ranges(subject.groups.as_ref(), true, names)?;
    encoded.object_uids = ranges(object.users.as_ref(), false, names)?;
    encoded.object_gids = ranges(object.groups.as_ref(), true, names)?;
    if let Some((_, path)) = &object.file_system {
        encoded.device = device_number(names.device(path)?)?;
    }
    if let Some((_, types)) = &object.types {
        encoded.types = type_bits(types);
    }
    let is = |membership: &Option<Membership>| membership.as_ref().map(|members| !members.not);
    for (bit, condition) in [
        (MAC_SUBJECT_UID, is(&subject.users)),
        (MAC_SUBJECT_GID, is(&subject.groups)),
        (MAC_OBJECT_UID, is(&object.users)),
        (MAC_OBJECT_GID, is(&object.groups)),
        (
            MAC_OBJECT_DEVICE,
            object.file_system.as_ref().map(|(is, _)| *is),
        ),
        (MAC_OBJECT_SUID, object.suid),
        (MAC_OBJECT_SGID, object.sgid),
        (MAC_UID_OF_SUBJECT, object.uid_of_subject),
        (MAC_GID_OF_SUBJECT, object.gid_of_subject),
        (MAC_OBJECT_TYPE, object.types.as_ref().map(|(is, _)| *is)),
    ] {
        encoded.has |= if condition.is_some() { bit } else { 0 };
        encoded.inverted |= if condition == Some(false) { bit } else { 0 };
    }
    Ok(encoded)
}

fn ranges(
    membership: Option<&Membership>,
    is_group: bool,
    names: &Names,
) -> Result<[MacRange; MAC_RANGES as usize], Error> {
    let mut encoded = [EMPTY; MAC_RANGES as usize];
    let accounts = membership.map_or(&[][..], |members| &members.accounts);
    if accounts.len() > encoded.len() {
        return Err(Error::TooManyRanges(accounts.len()));
    }
    for (place, account) in encoded.iter_mut().zip(accounts) {
        let (first, last) = match account {
            AccountRange::Numbers(first, last) => (*first, *last),
            AccountRange::Name(name) => {
                let number = names.named(name, is_group)?;
                (number, number)
            }
        };
        *place = MacRange { first, last };
    }
    Ok(encoded)
}

/// A bit for each type, at the number that the type has in a file's mode.
fn type_bits(types: &FileTypes) -> u32 {
    let bits = types.letters().chars().map(|letter| match letter {
        'p' => 1 << 1,
        'c' => 1 << 2,
        'd' => 1 << 4,
        'b' => 1 << 6,
        'r' => 1 << 8,
        'l' => 1 << 10,
        's' => 1 << 12,
        _ => 0,
    });
    bits.fold(0, |all, bit| all | bit)
}

fn mode(mode: &AccessMode) -> u32 {
    let rights = mode.letters().chars().map(|letter| match letter {
        'a' => MAC_RIGHT_ADMIN,
        'r' => MAC_RIGHT_READ,
        's' => MAC_RIGHT_STAT,
        'w' => MAC_RIGHT_WRITE,
        'x' => MAC_RIGHT_EXECUTE,
        // `n`
        _ => 0,
    });
    rights.fold(0, |all, right| all | right)
}
