//! What the protection programs are told: which objects are Usher's, where they are pinned, which
//! program is a daemon.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys;
use rustix::process::{PidfdFlags, getpid, getppid, pidfd_open};

use super::OwnershipError;
use super::layout::{Folder, PATH_SIZE, Protection, Question};
use super::programs::{Programs, asked};
use crate::KernelError;
use crate::admission::programs::file_error;
use crate::admission::table::{Insertion, Table};

/// The mark of a keeper; see enum usher_mark.
const KEEPER: u8 = 2;
/// Bits of a file's mode: its group and everybody may write it.
const WRITE_BY_OTHERS: u32 = 0o022;

#[derive(Debug)]
pub(super) struct Tables {
    maps: Table<u32, u8>,
    programs: Table<u32, u8>,
    links: Table<u32, u8>,
    folders: Table<Folder, u8>,
    protection: Table<u32, Protection>,
    daemons: Table<u32, u8>,
}

/// Ids of BPF objects.
#[derive(Debug, Default)]
struct Objects {
    maps: BTreeSet<u32>,
    programs: BTreeSet<u32>,
    links: BTreeSet<u32>,
}

impl Tables {
    pub(super) fn new(programs: &Programs) -> Result<Self, KernelError> {
        Ok(Self {
            maps: Table::new("own_maps", programs.map("own_maps")?),
            programs: Table::new("own_programs", programs.map("own_programs")?),
            links: Table::new("own_links", programs.map("own_links")?),
            folders: Table::new("own_folders", programs.map("own_folders")?),
            protection: Table::new("protection", programs.map("protection")?),
            daemons: Table::new("daemons", programs.map("daemons")?),
        })
    }

    pub(super) fn protect(
        &self,
        directory: &Path,
        unpinned_programs: &[u32],
    ) -> Result<(), OwnershipError> {
        let mut objects = Objects::default();
        objects.programs.extend(unpinned_programs);
        let mut folders = Vec::new();
        collect(directory, &mut folders, &mut objects)?;
        let metadata = fs::metadata(directory).map_err(file_error("looking at", directory))?;

        // Before anything is refused.
        let settings = settings(device(&metadata))?;
        self.mark_self()?;
        if !asked(Question::Presentation)? {
            return Err(OwnershipError::Unknown);
        }
        self.protection.set(&0, &settings)?;
        replace(&self.folders, &folders)?;
        replace(&self.maps, &Vec::from_iter(objects.maps))?;
        replace(&self.programs, &Vec::from_iter(objects.programs))?;
        replace(&self.links, &Vec::from_iter(objects.links))?;
        Ok(())
    }

    /// The first keeper was no daemon when it was executed. A descriptor names the first thread
    /// only; threads that are made later have its mark.
    fn mark_self(&self) -> Result<(), OwnershipError> {
        let own = pidfd_open(getpid(), PidfdFlags::empty())
            .map_err(KernelError::errno("opening a process descriptor"))?;
        if self.daemons.get(&key(own.as_fd()))? == Some(KEEPER) {
            return Ok(());
        }
        if threads()? != 1 {
            return Err(OwnershipError::SeveralThreads);
        }
        Ok(self.daemons.set(&key(own.as_fd()), &KEEPER)?)
    }
}

/// How many threads this process has.
fn threads() -> Result<usize, KernelError> {
    let tasks = Path::new("/proc/self/task");
    Ok(fs::read_dir(tasks)
        .map_err(file_error("reading", tasks))?
        .count())
}

/// Storage of tasks and sockets takes a descriptor in the place of a key.
pub(super) fn key(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().unsigned_abs()
}

/// Makes these the keys of the table: adds first, then removes those of objects that are gone.
fn replace<K>(table: &Table<K, u8>, wanted: &[K]) -> Result<(), KernelError>
where
    K: crate::admission::layout::Plain + PartialEq,
{
    for key in wanted {
        if table.put(key, &1)? == Insertion::Full {
            let full = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(KernelError::system("entering what is to be protected")(
                full,
            ));
        }
    }
    for (key, _) in table.entries()? {
        if !wanted.contains(&key) {
            table.remove(&key)?;
        }
    }
    Ok(())
}

/// As the kernel numbers devices.
fn device(metadata: &Metadata) -> u32 {
    rustix::fs::major(metadata.dev()) << 20 | rustix::fs::minor(metadata.dev())
}

fn settings(device: u32) -> Result<Protection, OwnershipError> {
    let exe = Path::new("/proc/self/exe");
    let program = fs::read_link(exe).map_err(file_error("reading", exe))?;
    // What the kernel appends when the file was replaced after the start; the path is the same.
    let bytes = program.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    let mut daemon = [0; PATH_SIZE];
    // One zero byte at least has to stay.
    match daemon.get_mut(..bytes.len()) {
        Some(room) if bytes.len() < PATH_SIZE => room.copy_from_slice(bytes),
        _ => return Err(OwnershipError::LongPath(program)),
    }
    let file = fs::metadata(exe).map_err(file_error("looking at", exe))?;
    if file.uid() != 0 || file.mode() & WRITE_BY_OTHERS != 0 {
        return Err(OwnershipError::OpenProgram(program));
    }
    Ok(Protection {
        children_of_init: u32::from(getppid().is_some_and(rustix::process::Pid::is_init)),
        device,
        // At most 255.
        path_length: bytes.len() as u32 + 1,
        reserved: 0,
        daemon,
    })
}

/// The folders from `directory` down, and what is pinned in them.
fn collect(
    directory: &Path,
    folders: &mut Vec<Folder>,
    objects: &mut Objects,
) -> Result<(), KernelError> {
    let metadata = fs::metadata(directory).map_err(file_error("looking at", directory))?;
    folders.push(Folder {
        inode: metadata.ino(),
        device: device(&metadata),
        reserved: 0,
    });
    let failed = file_error("reading", directory);
    for entry in fs::read_dir(directory).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if entry.file_type().map_err(&failed)?.is_dir() {
            collect(&entry.path(), folders, objects)?;
        } else {
            objects.add(&entry.path())?;
        }
    }
    Ok(())
}

fn open_pin(path: &Path) -> Result<OwnedFd, KernelError> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|error| file_error("opening", path)(error.into()))?;
    // SAFETY: a string that lives until the call returns.
    let code = unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) };
    if code < 0 {
        return Err(file_error("opening", path)(io::Error::from_raw_os_error(
            -code,
        )));
    }
    // SAFETY: a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(code) })
}

/// What the kernel tells of an object. `I` is the structure for its type.
fn info<I: Default>(object: &OwnedFd) -> Result<I, KernelError> {
    let mut info = I::default();
    let mut size = size_of::<I>() as u32;
    // SAFETY: `info` is as large as said, and made of integers that take every bit pattern.
    let code = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            object.as_raw_fd(),
            std::ptr::from_mut(&mut info).cast(),
            &mut size,
        )
    };
    if code < 0 {
        return Err(KernelError::system("reading the id of a BPF object")(
            io::Error::from_raw_os_error(-code),
        ));
    }
    Ok(info)
}

impl Objects {
    fn add(&mut self, pin: &Path) -> Result<(), KernelError> {
        let object = open_pin(pin)?;
        // Which structure the kernel fills depends on the type, and this is where it tells it.
        let path = PathBuf::from(format!("/proc/self/fd/{}", object.as_raw_fd()));
        let kind = fs::read_link(&path).map_err(file_error("reading", &path))?;
        match kind.as_os_str().as_bytes() {
            b"anon_inode:bpf-map" => {
                let info: libbpf_sys::bpf_map_info = info(&object)?;
                self.maps.insert(info.id);
            }
            b"anon_inode:bpf-prog" => {
                let info: libbpf_sys::bpf_prog_info = info(&object)?;
                self.programs.insert(info.id);
            }
            _ => {
                let info: libbpf_sys::bpf_link_info = info(&object)?;
                self.links.insert(info.id);
                self.programs.insert(info.prog_id);
            }
        }
        Ok(())
    }
}
