//! Classes of objects, and the permissions of each.

use usher_label::CAPABILITIES;
use usher_language::{Kind, words};

words! {
    /// A class of objects.
    pub enum Class {
        /// Regular files, and memory files.
        File = "file",
        /// Directories.
        Directory = "directory",
        /// Symbolic links.
        Link = "link",
        /// Devices.
        Device = "device",
        /// Pipes, with a name and without.
        Pipe = "pipe",
        /// Sockets, and the names of UNIX sockets.
        Socket = "socket",
        /// System V IPC.
        Ipc = "ipc",
        /// Processes.
        Process = "process",
        /// The process's own capabilities.
        Capability = "capability",
    }
}

impl Class {
    /// The permissions that there are for objects of this class.
    pub fn permissions(self) -> &'static [&'static str] {
        match self {
            Self::File => &[
                "read",
                "write",
                "append",
                "execute",
                "entrypoint",
                "getattr",
                "setattr",
                "create",
                "unlink",
                "rename",
                "link",
            ],
            Self::Directory => &[
                "read",
                "search",
                "add_name",
                "remove_name",
                "getattr",
                "setattr",
                "create",
                "unlink",
                "rename",
            ],
            Self::Link => &["getattr", "setattr", "create", "unlink", "rename", "link"],
            Self::Device => &[
                "read", "write", "ioctl", "getattr", "setattr", "create", "unlink", "rename",
                "link",
            ],
            Self::Pipe => &[
                "read", "write", "getattr", "setattr", "create", "unlink", "rename", "link",
            ],
            Self::Socket => &[
                "read", "write", "create", "network", "connect", "bind", "listen", "accept",
                "getattr", "setattr", "unlink", "rename", "link",
            ],
            Self::Ipc => &["read", "write", "getattr", "setattr"],
            Self::Process => &[
                "signal",
                "read",
                "ptrace",
                "setsched",
                "transition",
                "execmem",
            ],
            Self::Capability => &CAPABILITIES,
        }
    }

    /// The permission of the class that has this word.
    pub(super) fn permission(self, word: &str) -> Option<&'static str> {
        let mut permissions = self.permissions().iter();
        permissions.find(|one| **one == word).copied()
    }

    /// Whether files are of this class, and so have types.
    pub fn is_of_files(self) -> bool {
        matches!(
            self,
            Self::File | Self::Directory | Self::Link | Self::Device | Self::Pipe | Self::Socket
        )
    }

    /// Whether objects of this class have domains: processes, and objects without a name that processes make.
    pub(super) fn is_of_domains(self) -> bool {
        !matches!(self, Self::Directory | Self::Link | Self::Device)
    }
}

/// The classes of objects that are made in directories.
pub(super) fn creatable() -> Kind {
    let classes = Class::ALL.iter().filter(|class| class.is_of_files());
    Kind::Choice(classes.map(|class| class.word().to_owned()).collect())
}
