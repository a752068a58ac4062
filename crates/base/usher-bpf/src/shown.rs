//! Iterators that every process may read: pinned in a folder that everyone may enter. They give no process a
//! descriptor of a table, which could be pinned anew and then be opened for writing.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use libbpf_rs::{IterOpts, MapIterOpts};
use rustix::fs::{AtFlags, CWD, Mode, chmodat};

use crate::pins::{unpin, unpin_if_there};
use crate::{KernelError, Object};

/// The mode of a shown iterator, the only one that a confined process may set by a path.
pub const SHOWN_MODE: u32 = 0o444;

/// Ends the name of a pin that is not shown yet. BPF file systems permit no dot in names.
const FRESH: &str = "_fresh";

/// An iterator to show: its program, the table over which it runs if it takes one, and the name of its pin.
pub type Shown = (&'static str, Option<&'static str>, &'static str);

/// Shows iterators of an object in a folder of a BPF file system. systemd mounts that file system for root
/// alone, so this lets everyone pass its topmost folder. Iterators that another process has shown are
/// replaced, each in one step.
///
/// # Errors
/// [`KernelError::File`] for a folder that others than root could have made or can change; the kernel's
/// error. Some are shown then.
pub fn show(object: &Object, iterators: &[Shown], folder: &Path) -> Result<(), KernelError> {
    if let Some(root) = folder.parent() {
        require_own(root, 0o1000)?;
        add_mode(root, 0o011)?;
    }
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(KernelError::file("make", folder)(error));
        }
        _ => {}
    }
    require_own(folder, 0)?;
    add_mode(folder, 0o755)?;
    for (program, table, name) in iterators {
        let (fresh, place) = (folder.join(format!("{name}{FRESH}")), folder.join(name));
        // A pin of a process that ended in between.
        unpin_if_there(&fresh)?;
        let table = table.map(|table| object.descriptor(table)).transpose()?;
        pin(object, program, table.as_ref(), &fresh)?;
        let mode = Mode::from_raw_mode(SHOWN_MODE);
        chmodat(CWD, &fresh, mode, AtFlags::empty()).map_err(KernelError::file("show", &fresh))?;
        fs::rename(&fresh, &place).map_err(KernelError::file("show", &place))?;
    }
    Ok(())
}

/// Removes a folder and the iterators shown there. A missing folder is no error.
///
/// # Errors
/// The kernel's error.
pub fn hide(folder: &Path) -> Result<(), KernelError> {
    let failed = KernelError::file("read", folder);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(&failed)?,
    };
    for entry in entries {
        unpin(&entry.map_err(&failed)?.path())?;
    }
    fs::remove_dir(folder).map_err(KernelError::file("remove", folder))
}

fn pin(
    object: &Object,
    program: &'static str,
    table: Option<&OwnedFd>,
    place: &Path,
) -> Result<(), KernelError> {
    let options = match table {
        Some(table) => IterOpts::Map(MapIterOpts::from_fd(table.as_fd())),
        None => IterOpts::None,
    };
    let link = object.find(program)?.attach_iter_with_opts(options);
    let mut link = link.map_err(KernelError::bpf("attach an iterator"))?;
    link.pin(place).map_err(KernelError::bpf("pin an iterator"))
}

/// Refuses a folder that is not root's, or that others can change. A `redeeming` bit in the folder's mode
/// excuses the latter: with the sticky bit, others cannot replace root's files.
fn require_own(folder: &Path, redeeming: u32) -> Result<(), KernelError> {
    let failed = KernelError::file("look at", folder);
    let found = fs::symlink_metadata(folder).map_err(&failed)?;
    let is_safe = found.mode() & 0o022 == 0 || found.mode() & redeeming != 0;
    if found.is_dir() && found.uid() == 0 && is_safe {
        return Ok(());
    }
    let text = "others than root can change it; remove it, or mount the BPF file system anew with \
                mode=0700";
    Err(failed(io::Error::new(
        io::ErrorKind::PermissionDenied,
        text,
    )))
}

/// Adds these bits to a folder's mode, by a descriptor, as a confined process may.
fn add_mode(folder: &Path, bits: u32) -> Result<(), KernelError> {
    let failed = KernelError::file("change the mode of", folder);
    let opened = File::open(folder).map_err(&failed)?;
    let mode = opened.metadata().map_err(&failed)?.mode();
    if mode & bits == bits {
        Ok(())
    } else {
        opened
            .set_permissions(Permissions::from_mode(mode & 0o7777 | bits))
            .map_err(failed)
    }
}
