//! Classes of objects, and their permissions.

use usher_label::CAPABILITIES;

use crate::shared::{
    MAC_TE_ACCEPT, MAC_TE_ADD_NAME, MAC_TE_APPEND, MAC_TE_BIND, MAC_TE_CONNECT, MAC_TE_CREATE,
    MAC_TE_ENTRYPOINT, MAC_TE_EXECMEM, MAC_TE_EXECUTE, MAC_TE_GETATTR, MAC_TE_IOCTL, MAC_TE_LINKS,
    MAC_TE_LISTEN, MAC_TE_NETWORK, MAC_TE_PTRACE, MAC_TE_READ, MAC_TE_REMOVE_NAME, MAC_TE_RENAME,
    MAC_TE_SEARCH, MAC_TE_SETATTR, MAC_TE_SETSCHED, MAC_TE_SIGNAL, MAC_TE_TRANSITION,
    MAC_TE_UNLINK, MAC_TE_WRITE,
};

/// A class of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Regular files, and memory files.
    File,
    /// Directories.
    Directory,
    /// Symbolic links.
    Link,
    /// Devices.
    Device,
    /// Pipes, with a name and without.
    Pipe,
    /// Sockets, and the names of UNIX sockets.
    Socket,
    /// System V IPC.
    Ipc,
    /// Processes.
    Process,
    /// The process's own capabilities.
    Capability,
}

/// Permissions of a class; for [`Class::Capability`] one bit for each capability, by its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions(pub(super) u64);

/// The words of permissions.
const WORDS: [(&str, u32); 25] = [
    ("read", MAC_TE_READ),
    ("write", MAC_TE_WRITE),
    ("append", MAC_TE_APPEND),
    ("execute", MAC_TE_EXECUTE),
    ("entrypoint", MAC_TE_ENTRYPOINT),
    ("getattr", MAC_TE_GETATTR),
    ("setattr", MAC_TE_SETATTR),
    ("create", MAC_TE_CREATE),
    ("unlink", MAC_TE_UNLINK),
    ("rename", MAC_TE_RENAME),
    ("link", MAC_TE_LINKS),
    ("search", MAC_TE_SEARCH),
    ("add_name", MAC_TE_ADD_NAME),
    ("remove_name", MAC_TE_REMOVE_NAME),
    ("ioctl", MAC_TE_IOCTL),
    ("connect", MAC_TE_CONNECT),
    ("bind", MAC_TE_BIND),
    ("listen", MAC_TE_LISTEN),
    ("accept", MAC_TE_ACCEPT),
    ("network", MAC_TE_NETWORK),
    ("signal", MAC_TE_SIGNAL),
    ("ptrace", MAC_TE_PTRACE),
    ("setsched", MAC_TE_SETSCHED),
    ("transition", MAC_TE_TRANSITION),
    ("execmem", MAC_TE_EXECMEM),
];

impl Class {
    /// All, in the order of their numbers, each with its word.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::File, "file"),
        (Self::Directory, "directory"),
        (Self::Link, "link"),
        (Self::Device, "device"),
        (Self::Pipe, "pipe"),
        (Self::Socket, "socket"),
        (Self::Ipc, "ipc"),
        (Self::Process, "process"),
        (Self::Capability, "capability"),
    ];

    /// The class of this word.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, own)| *own == word).map(|(class, _)| class)
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether files with a name have it.
    pub(super) fn is_of_files(self) -> bool {
        self <= Self::Socket
    }

    /// The bit of a permission.
    fn bit(self, word: &str) -> Option<u64> {
        if self == Self::Capability {
            let number = CAPABILITIES.iter().position(|own| *own == word);
            return number.map(|number| 1 << number);
        }
        let mut words = WORDS.into_iter();
        let found = words.find(|(own, _)| *own == word);
        found.map(|(_, bit)| bit.into())
    }

    /// The permissions of these words; none if the module knows one of them not.
    #[must_use]
    pub fn permissions<'w>(self, words: impl IntoIterator<Item = &'w str>) -> Option<Permissions> {
        let mut all = 0;
        for word in words {
            all |= self.bit(word)?;
        }
        Some(Permissions(all))
    }

    /// The words of permissions.
    pub(super) fn words(self, permissions: Permissions) -> Vec<&'static str> {
        let bits = |number: usize| permissions.0 >> number & 1 == 1;
        if self == Self::Capability {
            let all = CAPABILITIES.into_iter().enumerate();
            return all
                .filter(|(number, _)| bits(*number))
                .map(|(_, word)| word)
                .collect();
        }
        let words = WORDS.into_iter();
        let words = words.filter(|(_, bit)| permissions.0 & u64::from(*bit) != 0);
        words.map(|(word, _)| word).collect()
    }
}
