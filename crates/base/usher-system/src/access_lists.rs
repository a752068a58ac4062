//! Access control lists (acl(5)): which accounts may write a file besides those that its mode names.

use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{getxattr, lgetxattr, listxattr, llistxattr};
use rustix::io::Errno;

/// The attribute of a POSIX access control list.
const POSIX: &str = "system.posix_acl_access";

/// The beginning of the names of both attributes of POSIX lists. The second attribute is for new files.
const POSIX_LISTS: &[u8] = b"system.posix_acl_";

/// Limit of bytes of an attribute, or of the names of all (XATTR_SIZE_MAX, XATTR_LIST_MAX).
const LARGEST: usize = 65_536;

/// The version of the attribute, whose entries have a tag, permissions and a number
/// (include/uapi/linux/posix_acl_xattr.h), in the byte order of x86.
const VERSION: u32 = 2;
const ENTRY: usize = 8;
const WRITE: u16 = 2;

const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;

/// The accounts that may write a file besides its owner and, where the mode says so, everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writers {
    /// There is no list: the bits of the mode for the group hold for the file's group.
    ByMode,
    /// A POSIX list: the mode's bits for the group say only what its entries permit at most.
    Listed {
        /// Whether the file's group may write.
        owning_group: bool,
        /// Users that it names, by uid.
        users: Vec<u32>,
        /// Groups that it names, by gid.
        groups: Vec<u32>,
    },
    /// There is a list of another kind, such as NFSv4's, or one that cannot be read: perhaps every account
    /// may write.
    Unknown,
}

impl Writers {
    /// The writers of the file at this path. `mode`: its mode. Links are followed.
    #[must_use]
    pub fn of(path: &Path, mode: u32) -> Self {
        let names = |room: &mut Vec<u8>| listxattr(path, spare_capacity(room));
        let list = |room: &mut Vec<u8>| getxattr(path, POSIX, spare_capacity(room));
        Self::read(mode, names, list)
    }

    /// As [`Self::of`], but a link at the path is not followed, and has no list.
    #[must_use]
    pub fn of_no_link(path: &Path, mode: u32) -> Self {
        let names = |room: &mut Vec<u8>| llistxattr(path, spare_capacity(room));
        let list = |room: &mut Vec<u8>| lgetxattr(path, POSIX, spare_capacity(room));
        Self::read(mode, names, list)
    }

    fn read(
        mode: u32,
        names: impl Fn(&mut Vec<u8>) -> Result<usize, Errno>,
        list: impl Fn(&mut Vec<u8>) -> Result<usize, Errno>,
    ) -> Self {
        match whole(names) {
            Ok(names) if names.split(|byte| *byte == 0).any(is_of_another_kind) => {
                return Self::Unknown;
            }
            // A file system without extended attributes has no lists.
            Ok(_) | Err(Errno::OPNOTSUPP) => {}
            Err(_) => return Self::Unknown,
        }
        // The mask of a POSIX list, which limits what named accounts may do, is the mode's bits for the
        // group.
        if mode & 0o020 == 0 {
            return Self::ByMode;
        }
        match whole(list) {
            Ok(list) => Self::listed(&list).unwrap_or(Self::Unknown),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Self::ByMode,
            Err(_) => Self::Unknown,
        }
    }

    /// The writers by an attribute; none if it is damaged, or of another version.
    fn listed(list: &[u8]) -> Option<Self> {
        let (version, entries) = list.split_first_chunk()?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY != 0 {
            return None;
        }
        let entries = entries.chunks_exact(ENTRY).map(|entry| {
            let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let number = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            (half(0), half(2) & WRITE != 0, number)
        });
        let mut masks = entries.clone().filter(|(tag, ..)| *tag == MASK);
        let is_masked = masks.any(|(_, may_write, _)| !may_write);
        let may_write = |wanted: u16| {
            let written = move |(tag, may_write, number): (u16, bool, u32)| {
                (tag == wanted && may_write && !is_masked).then_some(number)
            };
            entries.clone().filter_map(written).collect::<Vec<u32>>()
        };
        Some(Self::Listed {
            owning_group: !may_write(OWNING_GROUP).is_empty(),
            users: may_write(USER),
            groups: may_write(GROUP),
        })
    }
}

/// Whether an attribute is an access control list, and not one of POSIX.
fn is_of_another_kind(name: &[u8]) -> bool {
    name.starts_with(b"system.")
        && !name.starts_with(POSIX_LISTS)
        && name.windows(3).any(|part| part == b"acl")
}

/// Reads an attribute, or the names of all attributes, whole and in few calls.
fn whole(read: impl Fn(&mut Vec<u8>) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut room = Vec::with_capacity(512);
    match read(&mut room) {
        Err(Errno::RANGE) => {
            room = Vec::with_capacity(LARGEST);
            read(&mut room)?;
        }
        outcome => {
            outcome?;
        }
    }
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut list = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, number) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(number.to_le_bytes());
        }
        list
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn who_may_write_is_in_entries_and_not_masked() {
        let entries = |mask| {
            list(&[
                (1, 7, NONE),
                (USER, 7, 1000),
                (USER, 5, 1001),
                (OWNING_GROUP, 5, NONE),
                (GROUP, 2, 27),
                (MASK, mask, NONE),
                (0x20, 5, NONE),
            ])
        };
        let named = Writers::Listed {
            owning_group: false,
            users: vec![1000],
            groups: vec![27],
        };
        let nobody = Writers::Listed {
            owning_group: false,
            users: Vec::new(),
            groups: Vec::new(),
        };
        assert_eq!(Writers::listed(&entries(7)), Some(named));
        assert_eq!(Writers::listed(&entries(5)), Some(nobody));
        for damaged in [&entries(7)[..10], &[], &[1, 0, 0, 0], &[2, 0, 0]] {
            assert_eq!(Writers::listed(damaged), None);
        }
    }

    // Threat model: P44
    #[test]
    fn lists_of_other_kinds_and_unreadable_ones_are_unknown() {
        let names = |names: &'static [u8]| {
            move |room: &mut Vec<u8>| {
                room.extend_from_slice(names);
                Ok(names.len())
            }
        };
        let fails = |error: Errno| move |_: &mut Vec<u8>| Err(error);
        let none = fails(Errno::NODATA);
        let of_nfs = names(b"security.selinux\0system.nfs4_acl\0");
        assert_eq!(Writers::read(0o755, of_nfs, none), Writers::Unknown);
        let usual = b"security.selinux\0system.posix_acl_default\0user.acl\0";
        assert_eq!(Writers::read(0o775, names(usual), none), Writers::ByMode);
        for error in [Errno::PERM, Errno::IO, Errno::RANGE] {
            assert_eq!(
                Writers::read(0o755, fails(error), none),
                Writers::Unknown,
                "{error}"
            );
            assert_eq!(
                Writers::read(0o775, names(b""), fails(error)),
                Writers::Unknown,
                "{error}"
            );
        }
        let without = fails(Errno::OPNOTSUPP);
        assert_eq!(Writers::read(0o775, without, without), Writers::ByMode);
        // More names than the first buffer has room for.
        let many = |room: &mut Vec<u8>| {
            if room.capacity() < LARGEST {
                Err(Errno::RANGE)
            } else {
                room.extend_from_slice(b"system.richacl\0");
                Ok(room.len())
            }
        };
        assert_eq!(Writers::read(0o755, many, none), Writers::Unknown);
    }
}
