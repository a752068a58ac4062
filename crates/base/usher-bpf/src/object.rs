//! Loaded programs and tables, and their attachment.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Map, MapCore, MapHandle, Program, ProgramMut, libbpf_sys};

use crate::pins::{LINK, unpin};
use crate::table::{clone, result};
use crate::{Counted, Counters, KernelError, Objects, Pins, Plain, Ring, Table};

/// Prefix of a link that is not in its place yet. BPF file systems accept no dots in names.
const FRESH: &str = "fresh_";

/// Loaded programs and tables. Dropping it releases those that are not attached, pinned or
/// otherwise open.
#[derive(Debug)]
pub struct Object(libbpf_rs::Object);

impl Object {
    pub(crate) fn new(object: libbpf_rs::Object) -> Self {
        Self(object)
    }

    fn map(&self, name: &'static str) -> Result<Map<'_>, KernelError> {
        let map = self.0.maps().find(|map| map.name() == name);
        map.ok_or(KernelError::MissingPart(name))
    }

    /// A table.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`] when there is none, or its keys or values have other sizes.
    pub fn table<K: Plain, V: Plain>(
        &self,
        name: &'static str,
    ) -> Result<Table<K, V>, KernelError> {
        Table::new(name, &self.map(name)?)
    }

    /// A table's descriptor.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`].
    pub fn descriptor(&self, table: &'static str) -> Result<OwnedFd, KernelError> {
        clone(&self.map(table)?)
    }

    /// A per-CPU array of counters.
    ///
    /// # Errors
    /// Like [`Object::table`].
    pub fn counters<C: Counted>(&self, name: &'static str) -> Result<Counters<C>, KernelError> {
        self.table::<u32, C>(name)?;
        Counters::new(self.handle(name)?)
    }

    /// A ring buffer; see [`Ring`]. `read` decodes an entry, or leaves it out.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`], or libbpf's error.
    pub fn ring<T: Send + 'static>(
        &self,
        name: &'static str,
        what: &'static str,
        read: fn(&[u8]) -> Option<T>,
    ) -> Result<Ring<T>, KernelError> {
        Ring::open(what, self.handle(name)?, read)
    }

    fn handle(&self, name: &'static str) -> Result<MapHandle, KernelError> {
        MapHandle::try_from(&self.map(name)?).map_err(KernelError::bpf("keeping a table"))
    }

    fn find(&self, program: &'static str) -> Result<ProgramMut<'_>, KernelError> {
        let found = self.0.progs_mut().find(|found| found.name() == program);
        found.ok_or(KernelError::MissingPart(program))
    }

    /// A program's descriptor.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`].
    pub fn program(&self, name: &'static str) -> Result<OwnedFd, KernelError> {
        clone(&self.find(name)?)
    }

    /// Adds all programs and tables to `objects`, for the guard.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn collect(&self, objects: &mut Objects) -> Result<(), KernelError> {
        for map in self.0.maps() {
            objects.add_descriptor(&clone(&map)?)?;
        }
        for program in self.0.progs().filter(Program::autoload) {
            objects.add_descriptor(&clone(&program)?)?;
        }
        Ok(())
    }

    /// Runs an iterator over everything that it visits, and returns what it has written.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn iterate(&self, program: &'static str) -> Result<Vec<u8>, KernelError> {
        let program = self.program(program)?;
        let attach = libbpf_sys::BPF_TRACE_ITER;
        // SAFETY: a descriptor, and no pointer except a null one.
        let link = unsafe {
            libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, attach, std::ptr::null())
        };
        let link = descriptor(link, "attaching an iterator")?;
        // SAFETY: takes a descriptor that is open.
        let iterator = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
        let mut written = Vec::new();
        File::from(descriptor(iterator, "beginning an iterator")?)
            .read_to_end(&mut written)
            .map_err(KernelError::system("reading an iterator"))?;
        Ok(written)
    }

    /// Attaches programs in order to a control group (the path of its folder), beside other
    /// parties' programs. They stay attached as long as the returned links are open.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn attach_to_cgroup(
        &self,
        programs: &[&'static str],
        cgroup: &Path,
    ) -> Result<Vec<OwnedFd>, KernelError> {
        let folder = File::open(cgroup).map_err(KernelError::file("opening", cgroup))?;
        let links = programs.iter().map(|program| {
            let link = self.find(program)?.attach_cgroup(folder.as_raw_fd());
            clone(&link.map_err(KernelError::bpf("attaching to the cgroup"))?)
        });
        links.collect()
    }

    /// Attaches a program to a control group for good: the link is pinned, and the next process
    /// adopts it. A link to another group that still exists stays and is updated: what it saw under
    /// an earlier process it still sees.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn keep_at_cgroup(
        &self,
        program: &'static str,
        pins: &Pins,
        cgroup: &Path,
    ) -> Result<(), KernelError> {
        let folder = File::open(cgroup).map_err(KernelError::file("opening", cgroup))?;
        let id = inode(&folder, cgroup)?;
        let mut attached = false;
        for pin in pins.links(&format!("{program}_"))? {
            let (mut former, info) = open_link(&pin)?;
            let LinkTypeInfo::Cgroup(info) = info else {
                return Err(KernelError::UnreadableEntry { table: program });
            };
            if self.update(&mut former, program)? {
                attached |= info.cgroup_id == id;
            } else {
                unpin(&pin)?;
            }
        }
        if attached {
            return Ok(());
        }
        self.find(program)?
            .attach_cgroup(folder.as_raw_fd())
            .map_err(KernelError::bpf("attaching to the cgroup"))?
            .pin(pins.folder().join(format!("{LINK}{program}_{id}")))
            .map_err(KernelError::bpf("pinning a link"))
    }

    /// Attaches a program to the caller's network namespace for good: the link is pinned, and the
    /// next process adopts it.
    ///
    /// # Errors
    /// [`KernelError::OtherNamespace`] when the link serves another namespace that still exists, or
    /// the kernel's error.
    pub fn keep_at_network(&self, program: &'static str, pins: &Pins) -> Result<(), KernelError> {
        // The thread's namespace, in which its sockets are made.
        let path = Path::new("/proc/thread-self/ns/net");
        let namespace = File::open(path).map_err(KernelError::file("opening", path))?;
        let inode = inode(&namespace, path)?;
        let pin = pins.folder().join(format!("{LINK}{program}"));
        if crate::exists(&pin)? {
            let (mut link, info) = open_link(&pin)?;
            let LinkTypeInfo::NetNs(info) = info else {
                return Err(KernelError::UnreadableEntry { table: program });
            };
            // 0 if the namespace no longer exists.
            if info.ino != 0 && u64::from(info.ino) != inode {
                return Err(KernelError::OtherNamespace {
                    pins: pins.folder().into(),
                });
            }
            if self.update(&mut link, program)? {
                return Ok(());
            }
            unpin(&pin)?;
        }
        self.find(program)?
            .attach_netns(namespace.as_raw_fd())
            .map_err(KernelError::bpf("attaching to the network namespace"))?
            .pin(&pin)
            .map_err(KernelError::bpf("pinning a link"))
    }

    /// Replaces the program that the pinned link holds. Returns false if the link is dead (its
    /// cgroup or namespace no longer exists).
    fn update(&self, link: &mut Link, program: &'static str) -> Result<bool, KernelError> {
        let program = self.program(program)?;
        // SAFETY: two descriptors, and no pointer except a null one.
        let code = unsafe {
            libbpf_sys::bpf_link_update(
                link.as_fd().as_raw_fd(),
                program.as_raw_fd(),
                std::ptr::null(),
            )
        };
        match result(code) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(false),
            Err(error) => Err(KernelError::system("replacing an attached program")(error)),
        }
    }
}

/// Attaches the LSM programs of these objects for good, in place of all that are pinned there. Each
/// new program is in force before the one it replaces is released.
///
/// # Errors
/// The kernel's error. What was pinned by then is in force.
pub fn keep_for_all(objects: &[Object], pins: &Pins) -> Result<(), KernelError> {
    let mut places = BTreeSet::new();
    for program in objects.iter().flat_map(|object| object.0.progs_mut()) {
        if !program.autoload() {
            continue;
        }
        let name = program.name().to_string_lossy();
        let fresh = pins.folder().join(format!("{FRESH}{name}"));
        if crate::exists(&fresh)? {
            unpin(&fresh)?;
        }
        let place = pins.folder().join(format!("{LINK}{name}"));
        program
            .attach_lsm()
            .map_err(KernelError::bpf("attaching an LSM program"))?
            .pin(&fresh)
            .map_err(KernelError::bpf("pinning a link"))?;
        fs::rename(&fresh, &place).map_err(KernelError::file("replacing", &place))?;
        places.insert(place);
    }
    for former in pins.links("")? {
        if !places.contains(&former) {
            unpin(&former)?;
        }
    }
    Ok(())
}

/// Releases all programs that are attached for good in this folder.
///
/// # Errors
/// The kernel's error.
pub fn let_go(pins: &Pins) -> Result<(), KernelError> {
    pins.links("")?.iter().try_for_each(|link| unpin(link))
}

/// The id of a program, from its descriptor.
///
/// # Errors
/// The kernel's error.
pub fn program_id(program: &OwnedFd) -> Result<u32, KernelError> {
    Program::id_from_fd(program.as_fd()).map_err(KernelError::bpf("reading the id of a program"))
}

/// Runs a syscall program with `context` and returns its result.
///
/// # Errors
/// The kernel's error.
pub fn run<C: Plain>(
    program: BorrowedFd<'_>,
    operation: &'static str,
    context: &mut C,
) -> Result<u32, KernelError> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: std::ptr::from_mut(context).cast(),
        ctx_size_in: size_of::<C>() as u32,
        ..Default::default()
    };
    // SAFETY: the context lives until the call returns and has the given size; a syscall program
    // writes nowhere else.
    let code = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    result(code).map_err(KernelError::system(operation))?;
    Ok(options.retval)
}

/// Runs a program of traffic control once with a packet, which begins with its Ethernet header, and
/// with `mark` as the packet's mark. Returns the program's result; nothing is sent.
///
/// # Errors
/// The kernel's error.
pub fn run_on_packet(
    program: BorrowedFd<'_>,
    operation: &'static str,
    packet: &[u8],
    mark: u32,
) -> Result<u32, KernelError> {
    // struct __sk_buff up to the mark: length, type, mark. The kernel takes the rest for zeros.
    let context = [0_u32, 0, mark];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: packet.as_ptr().cast(),
        data_size_in: u32::try_from(packet.len()).unwrap_or(u32::MAX),
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        ..Default::default()
    };
    // SAFETY: packet and context live until the call returns and have the given sizes; the kernel
    // only reads them, and without a place for its output it writes none.
    let code = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    result(code).map_err(KernelError::system(operation))?;
    Ok(options.retval)
}

/// A new descriptor, or libbpf's error.
fn descriptor(code: i32, what: &'static str) -> Result<OwnedFd, KernelError> {
    result(code.min(0)).map_err(KernelError::system(what))?;
    // SAFETY: a descriptor that the kernel has just made for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(code) })
}

fn inode(file: &File, path: &Path) -> Result<u64, KernelError> {
    let metadata = file.metadata();
    let failed = KernelError::file("reading the properties of", path);
    Ok(metadata.map_err(failed)?.ino())
}

fn open_link(path: &Path) -> Result<(Link, LinkTypeInfo), KernelError> {
    let link = Link::open(path).map_err(KernelError::bpf("opening a pinned link"))?;
    let info = link
        .info()
        .map_err(KernelError::bpf("reading a pinned link"))?
        .info;
    Ok((link, info))
}
