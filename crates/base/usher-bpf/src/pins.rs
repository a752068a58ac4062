//! Folders of a BPF file system, in which tables and links outlive the process that made them.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use libbpf_rs::{MapHandle, libbpf_sys};

use crate::{KernelError, Object, Table};

/// Magic number of a BPF file system (statfs(2)).
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
/// Names of pinned links begin so.
pub(crate) const LINK: &str = "link_";
/// The table with the version of all others.
const LAYOUT: &str = "layout";

/// A folder of pins, locked so that no second process works on it.
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
    _lock: File,
}

mod shared {
    include!(concat!(env!("OUT_DIR"), "/usher_layout.rs"));
}
use shared::Layout;

/// Whether there is a file at this path.
///
/// # Errors
/// When that cannot be found out.
pub fn exists(path: &Path) -> Result<bool, KernelError> {
    path.try_exists()
        .map_err(KernelError::file("looking for", path))
}

/// Root meets EPERM at the pins for one reason only.
fn failed(what: &'static str, pins: &Path) -> impl Fn(io::Error) -> KernelError {
    move |error| {
        if error.raw_os_error() == Some(libc::EPERM) && rustix::process::geteuid().is_root() {
            KernelError::Protected { pins: pins.into() }
        } else {
            KernelError::file(what, pins)(error)
        }
    }
}

impl Pins {
    /// Locks a folder of a BPF file system, which is made if need be.
    ///
    /// # Errors
    /// [`KernelError::NoBpfFileSystem`]; [`KernelError::InUse`] while another process has it;
    /// [`KernelError::Protected`]; what else the kernel says.
    pub fn lock(folder: &Path) -> Result<Self, KernelError> {
        let parent = folder.parent().unwrap_or(Path::new("/"));
        let kind = rustix::fs::statfs(parent)
            .map_err(|error| KernelError::file("looking at", parent)(error.into()))?
            .f_type;
        // Its type differs between architectures; the magic number has 32 bits.
        if kind as u32 != BPF_FS_MAGIC {
            return Err(KernelError::NoBpfFileSystem(folder.into()));
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(failed("making", folder))?;
        let lock = File::open(folder).map_err(failed("opening", folder))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                folder: folder.into(),
                _lock: lock,
            }),
            Err(fs::TryLockError::WouldBlock) => Err(KernelError::InUse {
                pins: folder.into(),
            }),
            Err(fs::TryLockError::Error(error)) => Err(KernelError::file("locking", folder)(error)),
        }
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Refuses pins of another layout, before anything is changed. No layout is one that an earlier
    /// process made and had not written to when it ended, before anything was attached.
    ///
    /// # Errors
    /// [`KernelError::OtherLayout`], or what the kernel says.
    pub fn require_layout(&self, expected: u32) -> Result<(), KernelError> {
        let path = self.folder.join(LAYOUT);
        if !exists(&path)? {
            return Ok(());
        }
        let map = MapHandle::from_pinned_path(&path)
            .map_err(KernelError::bpf("opening the pinned layout"))?;
        let found = Table::<u32, Layout>::new(LAYOUT, &map)?.get(&0)?;
        match found.map_or(0, |layout| layout.version) {
            0 => Ok(()),
            found if found == expected => Ok(()),
            found => Err(KernelError::OtherLayout {
                pins: self.folder.clone(),
                found,
                expected,
            }),
        }
    }

    /// Notes the layout of the tables that an object has pinned here.
    ///
    /// # Errors
    /// What the kernel says, or [`KernelError::MissingPart`].
    pub fn note_layout(&self, object: &Object, version: u32) -> Result<(), KernelError> {
        let layout = Layout {
            version,
            reserved: 0,
        };
        object.table::<u32, Layout>(LAYOUT)?.set(&0, &layout)
    }

    /// The pinned links whose name goes on like this.
    pub(crate) fn links(&self, name: &str) -> Result<Vec<PathBuf>, KernelError> {
        let prefix = format!("{LINK}{name}");
        let mut files = self.files()?;
        files.retain(|path| starts_with(path, &prefix));
        Ok(files)
    }

    fn files(&self) -> Result<Vec<PathBuf>, KernelError> {
        let failed = failed("reading", &self.folder);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if !entry.file_type().map_err(&failed)?.is_dir() {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    /// Removes all pins, which ends what they keep, and gives their number. The folder stays, and
    /// what is pinned in folders below it. Links first: a program that is still attached must not
    /// miss its tables.
    ///
    /// # Errors
    /// [`KernelError::Protected`]; what else the kernel says: some are gone then.
    pub fn remove(&self) -> Result<usize, KernelError> {
        let mut files = self.files()?;
        files.sort_by_key(|path| !starts_with(path, LINK));
        for path in &files {
            unpin(path)?;
        }
        Ok(files.len())
    }

    /// Removes the folder, unless something is in it.
    ///
    /// # Errors
    /// [`KernelError::Protected`]; what else the kernel says.
    pub fn remove_folder(self) -> Result<(), KernelError> {
        match fs::remove_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                Err(failed("removing", &self.folder)(error))
            }
            _ => Ok(()),
        }
    }
}

fn starts_with(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().map(OsStr::as_encoded_bytes);
    name.is_some_and(|name| name.starts_with(prefix.as_bytes()))
}

pub(crate) fn unpin(path: &Path) -> Result<(), KernelError> {
    fs::remove_file(path).map_err(failed("removing", path))
}

/// Ids of what is pinned, and the folders of the pins.
#[derive(Debug, Default)]
pub struct Objects {
    /// Folders, as inode and the device as user space numbers it.
    pub folders: Vec<(u64, u64)>,
    /// Maps.
    pub maps: BTreeSet<u32>,
    /// Programs, those of links included.
    pub programs: BTreeSet<u32>,
    /// Links.
    pub links: BTreeSet<u32>,
}

impl Objects {
    /// Adds a folder, what is pinned in it, and the same of the folders below it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn collect(&mut self, folder: &Path) -> Result<(), KernelError> {
        let metadata = fs::metadata(folder).map_err(KernelError::file("looking at", folder))?;
        self.folders.push((metadata.ino(), metadata.dev()));
        let failed = KernelError::file("reading", folder);
        for entry in fs::read_dir(folder).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if entry.file_type().map_err(&failed)?.is_dir() {
                self.collect(&entry.path())?;
            } else {
                self.add(&entry.path())?;
            }
        }
        Ok(())
    }

    fn add(&mut self, pin: &Path) -> Result<(), KernelError> {
        self.add_descriptor(&open(pin)?)
    }

    /// Adds a map, a program or a link that is open.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_descriptor(&mut self, object: &OwnedFd) -> Result<(), KernelError> {
        // Which structure the kernel fills depends on the type, and this is where it tells it.
        let path = PathBuf::from(format!("/proc/self/fd/{}", object.as_raw_fd()));
        let kind = fs::read_link(&path).map_err(KernelError::file("reading", &path))?;
        match kind.as_os_str().as_bytes() {
            b"anon_inode:bpf-map" => {
                let info: libbpf_sys::bpf_map_info = info(object)?;
                self.maps.insert(info.id);
            }
            b"anon_inode:bpf-prog" => {
                let info: libbpf_sys::bpf_prog_info = info(object)?;
                self.programs.insert(info.id);
            }
            _ => {
                let info: libbpf_sys::bpf_link_info = info(object)?;
                self.links.insert(info.id);
                self.programs.insert(info.prog_id);
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<OwnedFd, KernelError> {
    let failed = KernelError::file("opening", path);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
    // SAFETY: a string that lives until the call returns.
    let code = unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) };
    if code < 0 {
        return Err(failed(io::Error::from_raw_os_error(-code)));
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
        let error = io::Error::from_raw_os_error(-code);
        return Err(KernelError::system("reading the id of a BPF object")(error));
    }
    Ok(info)
}
