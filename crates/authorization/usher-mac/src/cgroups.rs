//! The root of control groups, where packets of all sockets leave.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, fstat, fstatfs, open};

use crate::Unsupported;
use crate::dispatchers::not_supported;

/// Where control groups (v2) are mounted; the second on hybrid hosts.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// CGROUP2_SUPER_MAGIC.
const CGROUP2: u32 = 0x6367_7270;
/// The inode of the root group. In another cgroup namespace the mount shows another group as its root, with
/// another inode.
const ROOT: u64 = 1;

/// The root group, by a descriptor that reads nothing (O_PATH).
///
/// # Errors
/// [`Unsupported`] where it is not mounted there.
pub(crate) fn root() -> Result<OwnedFd, Unsupported> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for mount in MOUNTS {
        let Ok(folder) = open(mount, flags, Mode::empty()) else {
            continue;
        };
        let kind = fstatfs(&folder).map_err(not_supported)?.f_type;
        if u32::try_from(kind) == Ok(CGROUP2)
            && fstat(&folder).map_err(not_supported)?.st_ino == ROOT
        {
            return Ok(folder);
        }
    }
    Err(not_supported(
        "the root of control groups (v2) is not mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified; \
         modules that decide about packets which leave need it",
    ))
}
