//! Folders of a BPF file system, in which tables and links outlive the process that made them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::query::LinkInfo;
use libbpf_rs::{MapHandle, MapInfo, Program};

use crate::{KernelError, Table};

/// Magic number of a BPF file system (statfs(2)).
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
/// Prefix of the names of pinned links.
const LINK: &str = "link_";
/// The table that holds the layout version of all others.
pub(crate) const LAYOUT: &str = "layout";

/// How long to wait for a lock. A process that has ended may have left a child that has not executed its
/// program yet, and which holds the lock until then.
const PATIENCE: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// A folder of pins, locked against a second process.
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
    _lock: File,
}

mod shared {
    include!(concat!(env!("OUT_DIR"), "/usher_layout.rs"));
}
pub(crate) use shared::Layout;

/// Whether there is a file at this path.
///
/// # Errors
/// When the check fails.
pub fn exists(path: &Path) -> Result<bool, KernelError> {
    path.try_exists()
        .map_err(KernelError::file("look for", path))
}

/// For root, EPERM at the pins has only one cause: the guard.
fn failed(what: &'static str, pins: &Path) -> impl Fn(io::Error) -> KernelError {
    move |error| {
        if error.raw_os_error() == Some(libc::EPERM) && rustix::process::geteuid().is_root() {
            KernelError::Guarded(pins.into())
        } else {
            KernelError::file(what, pins)(error)
        }
    }
}

impl Pins {
    /// Locks a folder of a BPF file system, and makes it if it is missing. Waits for at most three seconds
    /// while another process holds it.
    ///
    /// # Errors
    /// [`KernelError::NoBpfFileSystem`]; [`KernelError::InUse`] if another process still holds it then;
    /// [`KernelError::Guarded`]; or the kernel's error.
    pub fn lock(folder: &Path) -> Result<Self, KernelError> {
        let parent = folder.parent().unwrap_or(Path::new("/"));
        let kind = rustix::fs::statfs(parent)
            .map_err(KernelError::file("look at", parent))?
            .f_type;
        // The type of `kind` differs between architectures; the magic number has 32 bits.
        if kind as u32 != BPF_FS_MAGIC {
            return Err(KernelError::NoBpfFileSystem(folder.into()));
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(failed("make", folder))?;
        let lock = File::open(folder).map_err(failed("open", folder))?;
        let until = Instant::now() + PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => {
                    return Ok(Self {
                        folder: folder.into(),
                        _lock: lock,
                    });
                }
                Err(fs::TryLockError::WouldBlock) if Instant::now() < until => sleep(PAUSE),
                Err(fs::TryLockError::WouldBlock) => return Err(KernelError::InUse(folder.into())),
                Err(fs::TryLockError::Error(error)) => {
                    return Err(KernelError::file("lock", folder)(error));
                }
            }
        }
    }

    /// The path of the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a pinned link.
    pub(crate) fn link(&self, name: impl Display) -> PathBuf {
        self.folder.join(format!("{LINK}{name}"))
    }

    /// Refuses pins of another layout, before anything is changed. A layout table without a version
    /// comes from a process that ended before it wrote one, so before it attached anything. Links
    /// without a layout table come from another version.
    ///
    /// # Errors
    /// [`KernelError::OtherLayout`], or the kernel's error.
    pub fn require_layout(&self, expected: u32) -> Result<(), KernelError> {
        let layout = self.table::<u32, Layout>(LAYOUT)?;
        let found = layout.map_or(Ok(None), |layout| layout.get(&0))?;
        let found = found.map_or(0, |layout| layout.version);
        if found == expected || (found == 0 && self.links("")?.is_empty()) {
            return Ok(());
        }
        Err(KernelError::OtherLayout {
            pins: self.folder.clone(),
            found,
            expected,
        })
    }

    /// The table of this name that an earlier process has pinned here, if any.
    ///
    /// # Errors
    /// The kernel's error; [`KernelError::MissingPart`] when keys or values of the table have other sizes.
    pub fn table<K: crate::Plain, V: crate::Plain>(
        &self,
        name: &'static str,
    ) -> Result<Option<Table<K, V>>, KernelError> {
        let path = self.folder.join(name);
        if !exists(&path)? {
            return Ok(None);
        }
        let map =
            MapHandle::from_pinned_path(&path).map_err(KernelError::bpf("open a pinned table"))?;
        Table::new(name, map).map(Some)
    }

    /// As [`Self::table`], of a table that must be there.
    ///
    /// # Errors
    /// As [`Self::table`], and [`KernelError::MissingPart`].
    pub fn required_table<K: crate::Plain, V: crate::Plain>(
        &self,
        name: &'static str,
    ) -> Result<Table<K, V>, KernelError> {
        self.table(name)?.ok_or(KernelError::MissingPart(name))
    }

    /// The pinned links whose name begins with `name` after the prefix.
    pub(crate) fn links(&self, name: &str) -> Result<Vec<PathBuf>, KernelError> {
        let prefix = format!("{LINK}{name}");
        let mut files = self.files()?;
        files.retain(|path| starts_with(path, &prefix));
        Ok(files)
    }

    fn files(&self) -> Result<Vec<PathBuf>, KernelError> {
        let failed = failed("read", &self.folder);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if !entry.file_type().map_err(&failed)?.is_dir() {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    /// Removes all pins, and so releases what they hold. Returns their number. The folder itself
    /// and pins in its subfolders stay. Links go first: a program that is still attached must not
    /// miss its tables.
    ///
    /// # Errors
    /// [`KernelError::Guarded`], or the kernel's error; some pins are removed then.
    pub fn remove(&self) -> Result<usize, KernelError> {
        let mut files = self.files()?;
        files.sort_by_key(|path| !starts_with(path, LINK));
        for path in &files {
            unpin(path)?;
        }
        Ok(files.len())
    }

    /// Removes the folder if it is empty.
    ///
    /// # Errors
    /// [`KernelError::Guarded`], or the kernel's error.
    pub fn remove_folder(self) -> Result<(), KernelError> {
        match fs::remove_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                Err(failed("remove", &self.folder)(error))
            }
            _ => Ok(()),
        }
    }
}

fn starts_with(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().map(OsStr::as_encoded_bytes);
    name.is_some_and(|name| name.starts_with(prefix.as_bytes()))
}

pub(crate) fn pin(object: BorrowedFd<'_>, place: &Path) -> Result<(), KernelError> {
    usher_bpf_ffi::pin(object, place).map_err(KernelError::file("pin", place))
}

pub(crate) fn open_pin(pin: &Path) -> Result<OwnedFd, KernelError> {
    usher_bpf_ffi::open_pin(pin).map_err(KernelError::file("open", pin))
}

pub(crate) fn unpin(path: &Path) -> Result<(), KernelError> {
    fs::remove_file(path).map_err(failed("remove", path))
}

/// Removes a pin that may be missing. Returns whether there was one.
pub(crate) fn unpin_if_there(path: &Path) -> Result<bool, KernelError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true).map_err(failed("remove", path)),
    }
}

/// Ids of objects, and the folders of the pins.
#[derive(Debug, Default, Clone)]
pub struct Objects {
    /// Folders: inode, and device in user space's numbering.
    pub folders: Vec<(u64, u64)>,
    /// Maps.
    pub maps: BTreeSet<u32>,
    /// Programs, those of links included.
    pub programs: BTreeSet<u32>,
    /// Links.
    pub links: BTreeSet<u32>,
}

impl Objects {
    /// Adds a folder and all its subfolders, with the objects that are pinned in them.
    pub fn collect(&mut self, folder: &Path) -> Result<(), KernelError> {
        let metadata = fs::metadata(folder).map_err(KernelError::file("look at", folder))?;
        self.folders.push((metadata.ino(), metadata.dev()));
        let failed = KernelError::file("read", folder);
        for entry in fs::read_dir(folder).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if entry.file_type().map_err(&failed)?.is_dir() {
                self.collect(&entry.path())?;
            } else {
                self.add_descriptor(&open_pin(&entry.path())?)?;
            }
        }
        Ok(())
    }

    /// Adds all of these.
    pub fn add(&mut self, others: &Self) {
        self.folders.extend(&others.folders);
        self.maps.extend(&others.maps);
        self.programs.extend(&others.programs);
        self.links.extend(&others.links);
    }

    /// Adds a map, a program or a link by its descriptor.
    pub fn add_descriptor(&mut self, object: &OwnedFd) -> Result<(), KernelError> {
        // The kernel fills a different structure for each type, and reports the type here.
        let path = PathBuf::from(format!("/proc/self/fd/{}", object.as_raw_fd()));
        let kind = fs::read_link(&path).map_err(KernelError::file("read", &path))?;
        let failed = KernelError::bpf("read the id of a BPF object");
        match kind.as_os_str().as_encoded_bytes() {
            b"anon_inode:bpf-map" => {
                let map = MapInfo::new(object.as_fd()).map_err(failed)?;
                self.maps.insert(map.info.id);
            }
            b"anon_inode:bpf-prog" => {
                self.programs.insert(program_id(object)?);
            }
            _ => {
                let link = LinkInfo::from_fd(object.as_fd()).map_err(failed)?;
                self.links.insert(link.id);
                self.programs.insert(link.prog_id);
            }
        }
        Ok(())
    }
}

/// The id of a program, from its descriptor.
pub fn program_id(program: &OwnedFd) -> Result<u32, KernelError> {
    Program::id_from_fd(program.as_fd()).map_err(KernelError::bpf("read the id of a program"))
}
