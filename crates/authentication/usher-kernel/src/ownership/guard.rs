//! The settings of the guard: which objects are Usher's, where they are pinned, and
//! which program is a daemon.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{PidfdFlags, getpid, getppid, pidfd_open};
use usher_bpf::guard::ask_guard;
use usher_bpf::{Object, Objects, Table};

use super::OwnershipError;
use crate::KernelError;
use crate::shared::guard::{DAEMON, Folder, GuardSettings, KEEPER, PATH_SIZE, PRESENTATION_LINK};
use crate::shared::key;

/// Bits of a file's mode: its group and all users may write it.
const WRITE_BY_OTHERS: u32 = 0o022;

#[derive(Debug)]
pub(super) struct Tables {
    maps: Table<u32, u32>,
    programs: Table<u32, u32>,
    links: Table<u32, u32>,
    folders: Table<Folder, u32>,
    settings: Table<u32, GuardSettings>,
    daemons: Table<u32, u8>,
}

impl Tables {
    pub(super) fn open(object: &Object) -> Result<Self, KernelError> {
        Ok(Self {
            maps: object.table("own_maps")?,
            programs: object.table("own_programs")?,
            links: object.table("own_links")?,
            folders: object.table("own_folders")?,
            settings: object.table("guard_settings")?,
            daemons: object.table("daemons")?,
        })
    }

    pub(super) fn guard(&self, directory: &Path, unpinned: &Objects) -> Result<(), OwnershipError> {
        let mut objects = Objects::default();
        objects.collect(directory)?;
        objects.add(unpinned);
        let folders = objects.folders.iter().map(|&(inode, device)| Folder {
            inode,
            device: numbered(device),
            reserved: 0,
        });

        // Read before the guard refuses anything.
        let above = directory.join("..");
        let parent = fs::metadata(&above).map_err(KernelError::file("look at", &above))?;
        let settings = settings(numbered(objects.folders[0].1), parent.ino() as u32)?;
        if !ask_guard(PRESENTATION_LINK)? {
            self.mark_self()?;
            if !ask_guard(PRESENTATION_LINK)? {
                return Err(OwnershipError::Unknown);
            }
        }
        self.settings.set(&0, &settings)?;
        self.folders.assign_keys(folders, KEEPER)?;
        self.maps.assign_keys(objects.maps, KEEPER)?;
        self.programs.assign_keys(objects.programs, KEEPER)?;
        Ok(self.links.assign_keys(objects.links, KEEPER)?)
    }

    /// Marks this process, because the first keeper was not a daemon when it was executed. A descriptor names
    /// only the first thread; later threads inherit its mark.
    fn mark_self(&self) -> Result<(), OwnershipError> {
        const MARK: u8 = (DAEMON | KEEPER) as u8;
        if threads()? != 1 {
            return Err(OwnershipError::SeveralThreads);
        }
        let own = pidfd_open(getpid(), PidfdFlags::empty())
            .map_err(KernelError::system("open a process descriptor"))?;
        Ok(self.daemons.set(&key(own.as_fd()), &MARK)?)
    }
}

/// The number of threads of this process.
fn threads() -> Result<usize, KernelError> {
    let tasks = Path::new("/proc/self/task");
    Ok(fs::read_dir(tasks)
        .map_err(KernelError::file("read", tasks))?
        .count())
}

/// A device in the kernel's numbering.
fn numbered(device: u64) -> u32 {
    rustix::fs::major(device) << 20 | rustix::fs::minor(device)
}

/// `parent`: the inode of the folder above the pins. BPF file systems have 32-bit inode numbers.
fn settings(device: u32, parent: u32) -> Result<GuardSettings, OwnershipError> {
    let exe = Path::new("/proc/self/exe");
    let program = fs::read_link(exe).map_err(KernelError::file("read", exe))?;
    // The kernel appends this if the file was replaced after the start; the path is the same.
    let bytes = program.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    let mut daemon = [0; PATH_SIZE as usize];
    // At least one zero byte must remain.
    match daemon.get_mut(..bytes.len()) {
        Some(room) if bytes.len() < PATH_SIZE as usize => room.copy_from_slice(bytes),
        _ => return Err(OwnershipError::LongPath(program)),
    }
    let file = fs::metadata(exe).map_err(KernelError::file("look at", exe))?;
    if file.uid() != 0 || file.mode() & WRITE_BY_OTHERS != 0 {
        return Err(OwnershipError::OpenProgram(program));
    }
    Ok(GuardSettings {
        children_of_init: u32::from(getppid().is_some_and(rustix::process::Pid::is_init)),
        device,
        // At most 255.
        path_length: bytes.len() as u32 + 1,
        parent,
        daemon,
    })
}
