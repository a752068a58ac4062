//! The structures of bpf/include/usher_ownership.h.

use crate::admission::layout::plain;

pub(super) const VERSION: u32 = 3;
pub(super) const GROUPS: usize = 128;
pub(super) const PATH_SIZE: usize = 256;
pub(super) const REFUSALS: usize = 27;

/// Questions to the programs, each in the place of a link's id.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(super) enum Question {
    /// Do you run?
    RollCall = u32::MAX,
    /// Do you know this process as a keeper? Then they note where it was executed.
    Presentation = u32::MAX - 1,
    /// Have pages of this process been pinned?
    Pinned = u32::MAX - 2,
}

/// The programs' yes: an errno that only they give.
pub(super) const ANSWER: i32 = 117;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Grant {
    pub keeper: u32,
    pub uid: u32,
    pub gid: u32,
    pub group_count: u32,
    pub groups: [u32; GROUPS],
}
plain!(Grant, 528);

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Settled {
    pub uid: u32,
    pub gid: u32,
}
plain!(Settled, 8);

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Owner {
    pub uid: u32,
}
plain!(Owner, 4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Folder {
    pub inode: u64,
    pub device: u32,
    pub reserved: u32,
}
plain!(Folder, 16);

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Protection {
    pub children_of_init: u32,
    pub device: u32,
    pub path_length: u32,
    pub reserved: u32,
    pub daemon: [u8; PATH_SIZE],
}
plain!(Protection, 272);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version() {
        let header = include_str!("../../../../bpf/include/usher_ownership.h");
        let version = format!("#define USHER_OWNERSHIP_VERSION {VERSION}\n");
        assert!(header.contains(&version), "{version}");
    }
}
