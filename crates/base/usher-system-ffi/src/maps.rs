//! Pinned BPF maps, for programs that only read them: without a privilege, and without libbpf.

use std::ffi::{CStr, c_long};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_MAP_LOOKUP_ELEM: u32 = 1;
const BPF_OBJ_GET: u32 = 7;
const BPF_OBJ_GET_INFO_BY_FD: u32 = 15;
const BPF_F_RDONLY: u32 = 1 << 3;
const BPF_F_LOCK: u64 = 4;

const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_INODE_STORAGE: u32 = 28;
const BPF_MAP_TYPE_TASK_STORAGE: u32 = 29;

/// The members of union bpf_attr for BPF_OBJ_GET.
#[repr(C)]
struct Get {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// The same for BPF_MAP_LOOKUP_ELEM.
#[repr(C)]
struct LookUp {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The same for BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct GetInfo {
    descriptor: u32,
    length: u32,
    info: u64,
}

/// The first members of struct bpf_map_info.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
}

/// A map that was opened for reading. Its values have one size on every processor.
#[derive(Debug)]
pub struct ReadOnlyMap {
    map: OwnedFd,
    key_size: usize,
    value_size: usize,
}

/// bpf(2).
///
/// # Safety
/// The command reads and writes no more memory than what `attributes` says, all of which is good.
unsafe fn bpf<A>(command: u32, attributes: &mut A) -> io::Result<c_long> {
    // SAFETY: this function's contract; the attributes live until the call returns.
    let code = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<A>(),
        )
    };
    match code {
        0.. => Ok(code),
        _ => Err(io::Error::last_os_error()),
    }
}

impl ReadOnlyMap {
    /// Opens the map at a path of a BPF file system. The file's mode says who may.
    ///
    /// # Errors
    /// As bpf(2) and open(2); EINVAL for a map of another type than hash, array, and storage of inodes
    /// and tasks.
    pub fn open(path: &CStr) -> io::Result<Self> {
        let mut get = Get {
            path: path.as_ptr() as u64,
            descriptor: 0,
            flags: BPF_F_RDONLY,
        };
        // SAFETY: the command reads the path, which ends with zero.
        let map = unsafe { bpf(BPF_OBJ_GET, &mut get) }?;
        // SAFETY: the kernel has just made this descriptor for the caller.
        let map = unsafe { OwnedFd::from_raw_fd(map as i32) };
        let mut info = MapInfo::default();
        let mut ask = GetInfo {
            descriptor: map.as_raw_fd().unsigned_abs(),
            length: size_of::<MapInfo>() as u32,
            info: std::ptr::from_mut(&mut info) as u64,
        };
        // SAFETY: the command writes at most the length that it is given, which is that of the structure.
        unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut ask) }?;
        match info.kind {
            BPF_MAP_TYPE_HASH
            | BPF_MAP_TYPE_ARRAY
            | BPF_MAP_TYPE_INODE_STORAGE
            | BPF_MAP_TYPE_TASK_STORAGE => Ok(Self {
                map,
                key_size: info.key_size as usize,
                value_size: info.value_size as usize,
            }),
            // A program or link would be here, too: its first member is its type, and may be any number. Its
            // look-ups fail.
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Reads the value of a key into the buffer. Returns false when the map has no such key.
    ///
    /// # Errors
    /// As bpf(2); EINVAL when the map has keys or values of another size.
    pub fn look_up(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        self.look_up_by(key, value, 0)
    }

    /// As [`Self::look_up`], of a value with a bpf_spin_lock: never half of a change.
    ///
    /// # Errors
    /// As [`Self::look_up`]; EINVAL when the values have no lock.
    pub fn look_up_locked(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        self.look_up_by(key, value, BPF_F_LOCK)
    }

    fn look_up_by(&self, key: &[u8], value: &mut [u8], flags: u64) -> io::Result<bool> {
        if key.len() != self.key_size || value.len() != self.value_size {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut look_up = LookUp {
            map: self.map.as_raw_fd().unsigned_abs(),
            reserved: 0,
            key: key.as_ptr() as u64,
            value: value.as_mut_ptr() as u64,
            flags,
        };
        // SAFETY: the kernel reads a key and writes a value of a map of this type, and both have the map's
        // sizes.
        match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut look_up) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
