//! Labels of processes, as the framework's iterators show them to every process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fstatfs};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use usher_label::Label;

use super::ProcessLabelError;
use super::layout::{NAME_SIZE, SHOWN_ELEMENT_SIZE, SHOWN_ELEMENTS, SHOWN_PROCESS, SHOWN_SIZE};

/// The labels of processes, for every process to read. Not there while no module is loaded.
///
/// Owner: root, 0755; files 0444. Made by: the labeller, while modules are loaded.
pub const SHOWN: &str = "/sys/fs/bpf/usher_labels";

/// In that folder, the label of the process that reads.
pub const OWN: &str = "own";

/// In that folder, the labels of all processes that the reader sees.
pub const PROCESSES: &str = "processes";

/// BPF_FS_MAGIC.
const BPF_FS: u32 = 0xcafe_4a11;

/// Errors after which an iterator is read on.
const RETRIED: [io::ErrorKind; 2] = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];

/// The label of a process; `None`: of the calling one. No element while no module is loaded.
///
/// # Errors
///
/// There is no such process, or the programs in the kernel are of another version.
pub fn label_of_process(process: Option<i32>) -> Result<Label, ProcessLabelError> {
    label_in(Path::new(SHOWN), process)
}

/// The labels of all processes that the caller sees, each with its number. Empty while no module is loaded.
///
/// # Errors
///
/// The programs in the kernel are of another version.
pub fn labels_of_processes() -> Result<Vec<(i32, Label)>, ProcessLabelError> {
    rows(Path::new(SHOWN), PROCESSES)
}

pub(crate) fn label_in(folder: &Path, process: Option<i32>) -> Result<Label, ProcessLabelError> {
    let own = getpid().as_raw_nonzero().get();
    let Some(other) = process.filter(|process| *process != own) else {
        let rows = rows(folder, OWN)?;
        return Ok(rows
            .into_iter()
            .next()
            .map_or_else(Label::default, |(_, label)| label));
    };
    let none = || ProcessLabelError::NoProcess(other);
    let id = if other > 0 {
        Pid::from_raw(other)
    } else {
        None
    };
    let descriptor = pidfd_open(id.ok_or_else(none)?, PidfdFlags::empty());
    let descriptor = descriptor.map_err(|errno| match errno {
        // EINVAL and ENOENT: the number of a thread that is no process.
        Errno::SRCH | Errno::INVAL | Errno::NOENT => none(),
        errno => ProcessLabelError::Kernel(errno),
    })?;
    let rows = rows(folder, PROCESSES)?;
    let found = rows.iter().find(|(number, _)| *number == other);
    // Without a row, nothing is shown or the process has ended. If it has ended, a row may be that of
    // another process.
    let mut ends = [PollFd::new(&descriptor, PollFlags::IN)];
    let has_ended =
        poll(&mut ends, Some(&Timespec::default())).map_err(ProcessLabelError::Kernel)?;
    match found {
        _ if has_ended > 0 => Err(none()),
        Some((_, label)) => Ok(label.clone()),
        None if rows.is_empty() => Ok(Label::default()),
        None => Err(none()),
    }
}

/// The rows of an iterator; none if there is no iterator.
pub(crate) fn rows(folder: &Path, name: &str) -> Result<Vec<(i32, Label)>, ProcessLabelError> {
    let read = || {
        let Some(file) = opened(&folder.join(name))? else {
            return Ok(Vec::new());
        };
        let bytes = whole(file)?;
        let rows = bytes.chunks_exact(SHOWN_SIZE);
        match rows.remainder() {
            [] => rows.map(row).collect(),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    read().map_err(|error: io::Error| match Errno::from_io_error(&error) {
        Some(errno) => ProcessLabelError::Kernel(errno),
        None => ProcessLabelError::OtherLayout(SHOWN),
    })
}

/// Opens an iterator. Only one that root has pinned counts: on some hosts everybody may make folders in the
/// root of the BPF file system.
fn opened(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let (found, kind) = (file.metadata()?, fstatfs(&file)?.f_type);
    if found.uid() == 0 && found.mode() & 0o022 == 0 && kind as u32 == BPF_FS {
        Ok(Some(file))
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn whole(mut file: File) -> io::Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) if RETRIED.contains(&error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
}

/// A process and its label: `struct usher_mac_shown`.
fn row(bytes: &[u8]) -> io::Result<(i32, Label)> {
    let number = bytes[SHOWN_PROCESS].try_into().map_err(unreadable)?;
    let mut label = Label::default();
    for element in bytes[SHOWN_ELEMENTS].chunks_exact(SHOWN_ELEMENT_SIZE) {
        let (name, element) = element.split_at(NAME_SIZE);
        let element = element.try_into().map_err(unreadable)?;
        let element = Label::from_kernel(name, element).map_err(unreadable)?;
        // Within the limits: there are as many elements as modules, each within its own.
        label = label.with(&element).map_err(unreadable)?;
    }
    Ok((i32::from_ne_bytes(number), label))
}

fn unreadable(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}
