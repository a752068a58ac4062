//! New files on a file system, as fanotify(7) reports them.
//!
//! Each new name is an event with the handle of its file: a file, directory, symbolic link, device, pipe or
//! socket, a further name, the name to which a file is moved, and the first name of a file that O_TMPFILE
//! made. A file that gets no name is no event. Tried on 6.18: tmpfs and ext4; on overlayfs, marks of the
//! upper file system see all of it, and the overlay itself takes none (EOPNOTSUPP).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, read};
use usher_system_ffi::{group_of_new_files, open_handle, watch_file_system};

/// Room for many events of one read(2).
const BUFFER: usize = 16 * 1024;

/// Size of struct fanotify_event_metadata.
const HEAD: usize = 24;

/// Version of the structures, FANOTIFY_METADATA_VERSION.
const VERSION: u8 = 3;

/// FAN_Q_OVERFLOW.
const OVERFLOW: u64 = 0x4000;

/// FAN_EVENT_INFO_TYPE_FID.
const FILE: u8 = 1;

/// FILEID_INVALID: the kernel could not make a handle.
const NO_HANDLE: i32 = 0xff;

/// Reports new files on one file system.
#[derive(Debug)]
pub struct NewFiles {
    group: OwnedFd,
    mount: OwnedFd,
    buffer: Box<[u8; BUFFER]>,
    /// The events that are read and not yet returned.
    waiting: std::ops::Range<usize>,
}

/// The content of an event.
#[derive(Debug)]
pub enum NewFile {
    /// A file has got a name: opened as O_PATH does, a symbolic link itself.
    Named(OwnedFd),
    /// A file has got a name, and cannot be opened.
    Unreachable(io::Error),
    /// The file was gone when its event was read.
    Gone,
    /// Events are lost. The caller must look for files itself.
    Lost,
}

/// An event in the kernel's bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// A file has got a name: the type and the bytes of its handle.
    Named(i32, &'b [u8]),
    /// Events are lost, or the file has no handle.
    Lost,
}

impl<'b> Event<'b> {
    /// The events in bytes that were read from a group. Bytes that are no event count as [`Event::Lost`], and
    /// end the list.
    pub fn all_in(mut bytes: &'b [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            if bytes.is_empty() {
                return None;
            }
            let Some((event, length)) = parse_event(bytes) else {
                bytes = &[];
                return Some(Self::Lost);
            };
            bytes = &bytes[length..];
            Some(event)
        })
    }
}

impl NewFiles {
    /// Watches the file system of an open directory. Needs CAP_SYS_ADMIN, and CAP_DAC_READ_SEARCH to open the
    /// files. The queue has the kernel's limit (fs.fanotify.max_queued_events, 16,384).
    ///
    /// # Errors
    /// As fanotify_init(2) and fanotify_mark(2); EOPNOTSUPP for a file system without handles, such as an
    /// overlay.
    pub fn watch(root: OwnedFd) -> io::Result<Self> {
        let group = group_of_new_files()?;
        watch_file_system(group.as_fd(), root.as_fd())?;
        Ok(Self {
            group,
            mount: root,
            buffer: Box::new([0; BUFFER]),
            waiting: 0..0,
        })
    }

    /// The next event, without waiting; none if there is none yet.
    ///
    /// # Errors
    /// As read(2). The next call may fail in the same way.
    pub fn take(&mut self) -> io::Result<Option<NewFile>> {
        if self.waiting.is_empty() {
            let length = match read(&self.group, &mut self.buffer[..]) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            };
            self.waiting = 0..length;
        }
        let Some((event, length)) = parse_event(&self.buffer[self.waiting.clone()]) else {
            // Bytes of another version: none of the rest can be trusted.
            self.waiting = 0..0;
            return Ok(Some(NewFile::Lost));
        };
        self.waiting.start += length;
        let Event::Named(kind, handle) = event else {
            return Ok(Some(NewFile::Lost));
        };
        match open_handle(self.mount.as_fd(), kind, handle) {
            Ok(file) => Ok(Some(NewFile::Named(file))),
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => Ok(Some(NewFile::Gone)),
            Err(error) => Ok(Some(NewFile::Unreachable(error))),
        }
    }
}

impl AsFd for NewFiles {
    /// Readable when events wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

/// The first event in these bytes, and its length. `None` if they do not begin with an event.
fn parse_event(bytes: &[u8]) -> Option<(Event<'_>, usize)> {
    let length = number_at(bytes, 0)? as usize;
    let event = bytes.get(..length).filter(|event| event.len() >= HEAD)?;
    if event[4] != VERSION {
        return None;
    }
    let mask = event.get(8..16)?.try_into().map(u64::from_ne_bytes).ok()?;
    if mask & OVERFLOW != 0 {
        return Some((Event::Lost, length));
    }
    let mut rest = event.get(usize::from(half(event, 6)?)..)?;
    while !rest.is_empty() {
        let size = usize::from(half(rest, 2)?);
        let record = rest.get(..size).filter(|record| record.len() >= 4)?;
        rest = &rest[size..];
        if record[0] != FILE {
            continue;
        }
        // A record has a head of 4 bytes and the number of the file system, of 8 bytes, before the handle.
        let bytes = number_at(record, 12)? as usize;
        let kind = i32::from_ne_bytes(record.get(16..20)?.try_into().ok()?);
        let handle = record.get(20..)?.get(..bytes)?;
        return Some(match kind {
            NO_HANDLE => (Event::Lost, length),
            _ => (Event::Named(kind, handle), length),
        });
    }
    // No handle came with the name: the caller must look for the file.
    Some((Event::Lost, length))
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(length: u32, mask: u64) -> Vec<u8> {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend([VERSION, 0]);
        bytes.extend((HEAD as u16).to_ne_bytes());
        bytes.extend(mask.to_ne_bytes());
        bytes.extend((-1_i32).to_ne_bytes());
        bytes.extend(7_i32.to_ne_bytes());
        bytes
    }

    fn record(of: u8, kind: i32, handle: &[u8], name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![of, 0];
        bytes.extend(((20 + handle.len() + name.len()) as u16).to_ne_bytes());
        bytes.extend([9; 8]);
        bytes.extend((handle.len() as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([handle, name].concat());
        bytes
    }

    fn event(records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let mut bytes = head((HEAD + records.len()) as u32, 0x100);
        bytes.extend(records);
        bytes
    }

    #[test]
    fn the_handle_is_that_of_the_file_and_not_of_its_directory() {
        let first = event(&[
            record(2, 1, b"directory", b"name\0"),
            record(1, 8, b"file", b""),
        ]);
        let bytes = [first, event(&[record(1, 1, b"x", b"")])].concat();
        let events: Vec<_> = Event::all_in(&bytes).collect();
        assert_eq!(events, [Event::Named(8, b"file"), Event::Named(1, b"x")]);
        let events: Vec<_> = Event::all_in(&bytes[..bytes.len() - 1]).collect();
        assert_eq!(events, [Event::Named(8, b"file"), Event::Lost]);
    }

    #[test]
    fn an_overflow_and_a_missing_handle_are_losses() {
        let lost = |bytes: &[u8]| parse_event(bytes).unwrap().0 == Event::Lost;
        assert!(lost(&head(HEAD as u32, OVERFLOW)));
        assert!(lost(&event(&[record(1, NO_HANDLE, b"", b"")])));
        assert!(lost(&event(&[record(2, 1, b"directory", b"name\0")])));
        assert!(!lost(&event(&[record(1, 1, b"file", b"")])));
    }

    #[test]
    fn bytes_that_end_early_are_no_event() {
        let whole = event(&[
            record(2, 1, b"directory", b"name\0"),
            record(1, 8, b"file", b""),
        ]);
        for length in 0..whole.len() {
            assert_eq!(parse_event(&whole[..length]), None);
        }
        let mut other = whole.clone();
        other[4] = VERSION + 1;
        assert_eq!(parse_event(&other), None);
        // A record of no length would be read for ever.
        let mut endless = whole;
        endless[HEAD + 2] = 0;
        assert_eq!(parse_event(&endless), None);
    }
}
