//! Calls of libbpf and of bpf(2) that libbpf-rs lacks, or ties to an object that outlives the call.
//!
//! All of the BPF toolkit's unsafe code is here, one block a call. The types of arguments make each
//! function safe for every caller. All errors are the kernel's.
//!
//! Room: pins, programs and maps that the caller names. Only `usher-bpf` uses it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use libbpf_rs::{MapCore, MapHandle, libbpf_sys};
use zerocopy::{FromBytes, IntoBytes};

/// libbpf 1.x returns the negative errno.
fn result(code: i32) -> io::Result<i32> {
    if code < 0 {
        Err(io::Error::from_raw_os_error(-code))
    } else {
        Ok(code)
    }
}

/// The descriptor that a call of libbpf has returned.
fn descriptor(code: i32) -> io::Result<OwnedFd> {
    let descriptor = result(code)?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// bpf(2) with BPF_LINK_GET_FD_BY_ID and these attributes, of which the first is the id. The guard
/// answers at ids that no link has.
///
/// # Errors
/// The guard's answer; ENOENT if no link has this id.
pub fn ask_for_link(attributes: [u32; 3]) -> io::Result<OwnedFd> {
    const LINK_GET_FD_BY_ID: libc::c_int = 30;
    // SAFETY: the attributes live until the call returns and have the given size.
    let made = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            LINK_GET_FD_BY_ID,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    descriptor(i32::try_from(made).map_err(io::Error::other)?)
}

/// Opens the map, program or link that is pinned at this path.
///
/// # Errors
/// ENOENT if nothing is pinned there; ENOTSUP outside of BPF file systems.
pub fn open_pin(pin: &Path) -> io::Result<OwnedFd> {
    let name = CString::new(pin.as_os_str().as_encoded_bytes())?;
    // SAFETY: a string that lives until the call returns.
    descriptor(unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) })
}

/// Attaches a netfilter program without libbpf's messages. The arguments are those of
/// `bpf_attr.link_create.netfilter`.
///
/// # Errors
/// EBUSY if a program has this priority at this hook.
pub fn attach_to_netfilter(
    program: BorrowedFd<'_>,
    protocol_family: u32,
    hook: u32,
    priority: i32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    options.__bindgen_anon_1.netfilter.pf = protocol_family;
    options.__bindgen_anon_1.netfilter.hooknum = hook;
    options.__bindgen_anon_1.netfilter.priority = priority;
    options.__bindgen_anon_1.netfilter.flags = flags;
    // SAFETY: the options live until the call returns and have the given size. For a netfilter program
    // the kernel reads the member `netfilter` of the union.
    descriptor(unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_NETFILTER, &options)
    })
}

/// Attaches a program to a control group, for packets that leave, beside other parties' programs. The program
/// stays attached as long as the returned link is open or pinned.
///
/// # Errors
/// EINVAL if the program is of another kind; EBADF if the descriptor is not of a control group; EPERM if
/// another party's program there admits no other.
pub fn attach_at_egress(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: without options, the call takes descriptors only.
    descriptor(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_INET_EGRESS,
            ptr::null(),
        )
    })
}

/// Where packets meet the programs of an interface (tcx, kernel 6.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterfacePlace {
    /// Packets that arrive.
    Ingress,
    /// Packets that leave.
    Egress,
}

impl InterfacePlace {
    fn number(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Self::Ingress => libbpf_sys::BPF_TCX_INGRESS,
            Self::Egress => libbpf_sys::BPF_TCX_EGRESS,
        }
    }
}

/// Attaches a program to the interface with this number in the thread's network namespace, before the
/// programs that the interface already has. The program stays attached as long as the interface exists and
/// the returned link is open or pinned.
///
/// # Errors
/// ENODEV if there is no such interface; EINVAL if the program is of another kind, or before kernel 6.6;
/// ENOSPC or ERANGE for more programs than the kernel takes there.
pub fn attach_at_interface(
    program: BorrowedFd<'_>,
    interface: i32,
    place: InterfacePlace,
) -> io::Result<OwnedFd> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: libbpf_sys::BPF_F_BEFORE,
        ..Default::default()
    };
    // SAFETY: the options live until the call returns and have the given size. Their union is zeros: relative to no
    // program.
    descriptor(unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), interface, place.number(), &options)
    })
}

/// The ids of the programs that an interface has at this place, in their order.
///
/// # Errors
/// ENODEV if there is no such interface.
pub fn programs_at_interface(interface: i32, place: InterfacePlace) -> io::Result<Vec<u32>> {
    // The kernel's limit is 64 (BPF_MPROG_MAX).
    let mut programs = [0_u32; 64];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: programs.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = programs.len() as u32;
    // SAFETY: options and room for programs live until the call returns and have the given sizes.
    result(unsafe { libbpf_sys::bpf_prog_query_opts(interface, place.number(), &mut options) })?;
    // SAFETY: both members of the union are this number.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    Ok(programs.into_iter().take(count).collect())
}

/// Pins a map, program or link at this path.
///
/// # Errors
/// EEXIST if something is there; EPERM outside of BPF file systems.
pub fn pin(object: BorrowedFd<'_>, place: &Path) -> io::Result<()> {
    let name = CString::new(place.as_os_str().as_encoded_bytes())?;
    // SAFETY: a string that lives until the call returns.
    result(unsafe { libbpf_sys::bpf_obj_pin(object.as_raw_fd(), name.as_ptr()) }).map(drop)
}

/// Attaches a program to the place for which it was loaded: its LSM hook, or the function that it replaces.
/// The program stays attached as long as the returned link is open or pinned.
///
/// # Errors
/// EINVAL if this kind of program has no such place; EBUSY if another program replaces the function.
pub fn attach_program(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: a null name is permitted, because these kinds of programs have none.
    descriptor(unsafe { libbpf_sys::bpf_raw_tracepoint_open(ptr::null(), program.as_raw_fd()) })
}

/// Runs a program once with this context, and with this packet if it takes one. Returns its result.
/// A syscall program may write to its context.
///
/// # Errors
/// EINVAL if the kernel cannot run this kind of program so.
pub fn run<C: FromBytes + IntoBytes>(
    program: BorrowedFd<'_>,
    packet: Option<&[u8]>,
    context: &mut C,
) -> io::Result<u32> {
    let size = packet.map_or(Ok(0), |packet| u32::try_from(packet.len()));
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: packet.map_or(ptr::null(), <[u8]>::as_ptr).cast(),
        data_size_in: size.map_err(io::Error::other)?,
        ctx_in: ptr::from_mut(context).cast(),
        ctx_size_in: size_of::<C>() as u32,
        ..Default::default()
    };
    // SAFETY: packet and context live until the call returns and have the given sizes. A syscall
    // program writes to its context only, of which every bit pattern is a value; the kernel only
    // reads a packet, and without a place for its output it writes none.
    result(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    Ok(options.retval)
}

/// The kernel's answer to a request for a batch of entries.
#[derive(Debug)]
pub struct Batch {
    /// The number of entries read.
    pub count: usize,
    /// The position after the entries read; for hash maps, the number of a bucket.
    pub next: u32,
    /// ENOENT after the last entry; ENOSPC when a bucket has more entries than there is room for;
    /// EINVAL for a map with other sizes.
    pub result: io::Result<()>,
}

/// Reads entries of a map from this position on, or from the map's beginning: at most as many as the shorter
/// slice has room for. Works for hash maps, and for other maps with keys of at most 4 bytes.
pub fn read_batch<K: FromBytes, V: FromBytes>(
    map: &MapHandle,
    mut position: Option<u32>,
    keys: &mut [K],
    values: &mut [V],
) -> Batch {
    let mut count = u32::try_from(keys.len().min(values.len())).unwrap_or(u32::MAX);
    let mut next = 0_u32;
    let (kind, key_size) = (map.map_type(), map.key_size() as usize);
    let fits = key_size == size_of::<K>() && map.value_size() as usize == size_of::<V>();
    let has_short_positions = kind.is_hash_map() || key_size <= size_of_val(&next);
    if !fits || !has_short_positions || kind.is_percpu() {
        return Batch {
            count: 0,
            next,
            result: Err(io::ErrorKind::InvalidInput.into()),
        };
    }
    let options = libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: room for `count` keys and values of the map's sizes, of which every bit pattern is a
    // value; positions have the 4 bytes of a bucket's number, or at most 4 bytes of a key.
    let code = unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            map.as_fd().as_raw_fd(),
            position
                .as_mut()
                .map_or(ptr::null_mut(), |position| ptr::from_mut(position).cast()),
            ptr::from_mut(&mut next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &mut count,
            &options,
        )
    };
    Batch {
        count: count as usize,
        next,
        result: result(code).map(drop),
    }
}
