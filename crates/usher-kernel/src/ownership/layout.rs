//! The structures of bpf/include/usher_ownership.h.

use crate::admission::layout::plain;

pub(super) const VERSION: u32 = 2;
pub(super) const GROUPS: usize = 128;
pub(super) const PATH_SIZE: usize = 256;
pub(super) const REFUSALS: usize = 23;

/// Asked for by id, and answered with an errno that only our program gives.
pub(super) const ROLL_CALL_LINK: u32 = u32::MAX;
pub(super) const ROLL_CALL_ANSWER: i32 = 117;

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
    pub mount_namespace: u32,
    pub children_of_init: u32,
    pub device: u32,
    pub path_length: u32,
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
