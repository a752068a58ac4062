//! The MAC labels of files, in the extended attribute [`ATTRIBUTE`].
//!
//! One attribute holds the elements of all policy modules, so that the kernel replaces a label as a
//! whole: no reader ever sees half of a change. docs/PROTOCOL.md has the format.
//!
//! The kernel decides who may read and set it: every process that can reach a file reads its label, and
//! a process with CAP_SYS_ADMIN in the user namespace of the file system sets it. A policy module that
//! governs labels refuses more than that.

mod defaults;

pub use defaults::{MAC_CONF, ReadError, first_of, read_defaults, read_source};

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    FileType, XattrFlags, fgetxattr, fsetxattr, getxattr, lgetxattr, lsetxattr, setxattr,
};
use rustix::io::Errno;
use usher_label::{FileKind, Label, LabelError, LabelMistake, MAXIMUM_TEXT, ValueMistake};
use usher_language::Mistake;

/// The kind of a file, by its type in stat(2).
#[must_use]
pub const fn kind_of(file_type: FileType) -> FileKind {
    match file_type {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::Fifo => FileKind::Pipe,
        FileType::Socket => FileKind::Socket,
        FileType::RegularFile | FileType::Unknown => FileKind::Regular,
    }
}

/// The name of the attribute. Kernel programs may read `security.bpf.*` (Linux 6.13).
pub const ATTRIBUTE: &str = "security.bpf.mac";

/// Limit of the attempts at a change while others keep labelling the same file for the first time.
const TRIES: usize = 16;

/// A file whose label is read or set.
#[derive(Clone, Copy, Debug)]
pub enum LabelledFile<'a> {
    /// The file at a path; symbolic links are followed.
    Path(&'a Path),
    /// The file at a path; a symbolic link itself, if it is one.
    Link(&'a Path),
    /// An open file.
    Open(BorrowedFd<'a>),
    /// A file opened with O_PATH, a symbolic link perhaps. Takes a mounted /proc.
    Handle(BorrowedFd<'a>),
}

/// The change that setting a label has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The file already had this label; nothing was written.
    Unchanged,
    /// The file was labelled for the first time.
    First,
    /// The file had another label before.
    Changed(Label),
}

/// A label that cannot be read or set. Displays as an explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileLabelError {
    /// The file system, or this kind of object, keeps no labels.
    #[error("its file system, or this kind of object, keeps no labels")]
    NotSupported,
    /// The attribute is not a label. Such a file counts as unlabelled.
    #[error("its attribute `{ATTRIBUTE}` is not a label: {0}; setfmac --replace writes a new one")]
    Malformed(LabelError),
    /// The label to set has no element.
    #[error("a label without an element cannot be set")]
    Empty,
    /// The file's own label would become too large.
    #[error("its label would become too large: {0}")]
    TooLarge(LabelMistake),
    /// The caller may not set labels, or not this one.
    #[error(
        "the caller lacks CAP_SYS_ADMIN, or a module in force refuses this change: see `usher mac refusals`, and \
         the page usher-mac-NAME(7) of the module"
    )]
    NotPermitted,
    /// Other processes kept changing the label.
    #[error("other processes keep changing its label; try again")]
    Contended,
    /// A module in force does not take the value.
    #[error(
        "the module of an element does not take its value for a file: see the page usher-mac-NAME(7) (names of \
         `te` are declared, and put in force by `usher policy apply`)"
    )]
    Invalid,
    /// No module takes the value, whether it is in force or not.
    #[error("the label `{element}`: {mistake}; {remedy}", remedy = .mistake.remedy())]
    Value {
        /// The element.
        element: String,
        /// The mistake in its value.
        mistake: ValueMistake,
    },
    /// There is no room for the attribute or for a new element.
    #[error(
        "the file system has no room for its label: make room there; or a module has as many elements as the \
         kernel keeps: use a label that other files have already"
    )]
    NoRoom,
    /// The kernel refused otherwise.
    #[error("{0}")]
    Kernel(Errno),
}

impl FileLabelError {
    /// The errno that the calls of mac(3) return for this error.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotSupported => Errno::OPNOTSUPP,
            Self::Malformed(_) => Errno::BADMSG,
            Self::Empty | Self::Invalid | Self::Value { .. } => Errno::INVAL,
            Self::TooLarge(_) | Self::NoRoom => Errno::NOSPC,
            Self::NotPermitted => Errno::PERM,
            Self::Contended => Errno::AGAIN,
            Self::Kernel(errno) => *errno,
        }
    }

    fn of(errno: Errno) -> Self {
        match errno {
            Errno::OPNOTSUPP => Self::NotSupported,
            Errno::PERM => Self::NotPermitted,
            Errno::INVAL => Self::Invalid,
            Errno::NOSPC => Self::NoRoom,
            errno => Self::Kernel(errno),
        }
    }
}

impl LabelledFile<'_> {
    /// The label of the file; `None` where it has none.
    ///
    /// # Errors
    ///
    /// The file cannot be reached or keeps no labels, or its attribute is not a label.
    pub fn label(&self) -> Result<Option<Label>, FileLabelError> {
        match self.attribute()? {
            None => Ok(None),
            Some(bytes) => match Label::from_attribute(&bytes) {
                Ok(label) => Ok(Some(label)),
                Err(error) => Err(FileLabelError::Malformed(error)),
            },
        }
    }

    /// Sets the elements of `partial`, and keeps the file's others. Elements that another process sets
    /// on the same file at the same moment may be lost.
    ///
    /// # Errors
    ///
    /// The file has its old label then.
    pub fn set(&self, partial: &Label) -> Result<Change, FileLabelError> {
        require_sound(partial)?;
        for _ in 0..TRIES {
            let before = self.label()?;
            let whole = before.as_ref().unwrap_or(&Label::default()).with(partial);
            let whole = whole.map_err(FileLabelError::TooLarge)?;
            let (flags, change) = match before {
                None => (XattrFlags::CREATE, Change::First),
                // A text that is not in canonical form becomes so with the next change.
                Some(before) if before == whole => return Ok(Change::Unchanged),
                Some(before) => (XattrFlags::REPLACE, Change::Changed(before)),
            };
            match self.write(&whole, flags) {
                Ok(()) => return Ok(change),
                // Another process has labelled the file, or removed its label, since it was read.
                Err(Errno::EXIST | Errno::NODATA) => {}
                Err(errno) => return Err(FileLabelError::of(errno)),
            }
        }
        Err(FileLabelError::Contended)
    }

    /// Sets the whole label, whatever the file has, even an attribute that is not a label.
    ///
    /// # Errors
    ///
    /// The file has its old label then.
    pub fn replace(&self, whole: &Label) -> Result<Change, FileLabelError> {
        require_sound(whole)?;
        let change = match self.label() {
            Ok(Some(before)) if before == *whole => return Ok(Change::Unchanged),
            Ok(Some(before)) => Change::Changed(before),
            Ok(None) | Err(FileLabelError::Malformed(_)) => Change::First,
            Err(error) => return Err(error),
        };
        let written = self.write(whole, XattrFlags::empty());
        written.map(|()| change).map_err(FileLabelError::of)
    }

    /// Sets the label of a file without one. Returns false if it has one, even if that is not a label.
    ///
    /// # Errors
    ///
    /// The file has no label then.
    pub fn set_first(&self, whole: &Label) -> Result<bool, FileLabelError> {
        require_sound(whole)?;
        match self.write(whole, XattrFlags::CREATE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(FileLabelError::of(errno)),
        }
    }

    /// True where the file has the attribute, whatever it contains.
    ///
    /// # Errors
    ///
    /// The file cannot be reached or keeps no labels.
    pub fn has_attribute(&self) -> Result<bool, FileLabelError> {
        Ok(self.attribute()?.is_some())
    }

    fn attribute(&self) -> Result<Option<Vec<u8>>, FileLabelError> {
        let mut bytes = vec![0; MAXIMUM_TEXT + 1];
        let room = bytes.as_mut_slice();
        let read = match *self {
            Self::Path(path) => getxattr(path, ATTRIBUTE, room),
            Self::Link(path) => lgetxattr(path, ATTRIBUTE, room),
            Self::Open(file) => fgetxattr(file, ATTRIBUTE, room),
            Self::Handle(file) => getxattr(of_handle(file), ATTRIBUTE, room),
        };
        match read {
            Ok(length) => {
                bytes.truncate(length);
                Ok(Some(bytes))
            }
            Err(Errno::NODATA) => Ok(None),
            // The attribute is longer than this buffer, and so than any label: it is no label.
            Err(Errno::RANGE) => Ok(Some(bytes)),
            Err(errno) => Err(FileLabelError::of(errno)),
        }
    }

    fn write(&self, label: &Label, flags: XattrFlags) -> Result<(), Errno> {
        let text = label.to_string();
        let text = text.as_bytes();
        match *self {
            Self::Path(path) => setxattr(path, ATTRIBUTE, text, flags),
            Self::Link(path) => lsetxattr(path, ATTRIBUTE, text, flags),
            Self::Open(file) => fsetxattr(file, ATTRIBUTE, text, flags),
            Self::Handle(file) => setxattr(of_handle(file), ATTRIBUTE, text, flags),
        }
    }
}

/// Requires elements, and values that their modules take, also while those are not in force.
fn require_sound(label: &Label) -> Result<(), FileLabelError> {
    if label.is_empty() {
        return Err(FileLabelError::Empty);
    }
    let checked = label.check_values();
    checked.map_err(|(element, mistake)| FileLabelError::Value { element, mistake })
}

/// A path to the file of a descriptor, even if that file is a symbolic link.
fn of_handle(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
