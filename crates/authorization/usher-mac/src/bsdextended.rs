//! Rules of the module `bsdextended`: a firewall of file accesses by user and group, as FreeBSD's
//! mac_bsdextended(4) and ugidfw(8) have it.
//!
//! The first rule whose subject and object both match decides. An access that no rule matches is
//! permitted. A rule permits the kinds of access in its mode, and refuses the others with EACCES, unless
//! the process has the capability for them in the initial user namespace: CAP_DAC_OVERRIDE for all of
//! `rswx`, CAP_DAC_READ_SEARCH for reading, looking up and attributes, CAP_FOWNER for `a`.

use std::fmt;
use std::str::FromStr;

/// Limit of rules, FreeBSD's.
pub const MAX_RULES: usize = 256;
/// Limit of ranges in one condition.
pub const MAX_RANGES: usize = 4;

/// Numbers of users or groups, as the initial user namespace has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// Matches all other numbers instead.
    pub not: bool,
    /// First and last, inclusive. A number matches if it is in one of them. At most [`MAX_RANGES`].
    pub ranges: Vec<(u32, u32)>,
}

/// Which processes a rule is about. A condition that is missing matches every process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// One of its real, effective, saved and file system uids.
    pub uids: Option<Ids>,
    /// One of its real, effective, saved and file system gids, or one of its supplementary groups.
    pub gids: Option<Ids>,
}

/// A type of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// `r`
    Regular,
    /// `d`
    Directory,
    /// `b`
    Block,
    /// `c`
    Character,
    /// `l`
    Link,
    /// `s`
    Socket,
    /// `p`
    Fifo,
}

impl FileType {
    /// All, with the letters of ugidfw(8).
    pub const ALL: [(Self, char); 7] = [
        (Self::Regular, 'r'),
        (Self::Directory, 'd'),
        (Self::Block, 'b'),
        (Self::Character, 'c'),
        (Self::Link, 'l'),
        (Self::Socket, 's'),
        (Self::Fifo, 'p'),
    ];
}

/// Types of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Types {
    /// Matches all other types instead.
    pub not: bool,
    /// A file matches if its type is one of them.
    pub types: Vec<FileType>,
}

/// A file system, by the device number of its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// Matches files on all others instead.
    pub not: bool,
    /// Major number, below 4,096.
    pub major: u32,
    /// Minor number, below 1,048,576.
    pub minor: u32,
}

/// Which files a rule is about. A condition that is missing matches every file. In the conditions of
/// type `Option<bool>`, `Some(false)` is the condition with `not`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// Its owner.
    pub uids: Option<Ids>,
    /// Its group.
    pub gids: Option<Ids>,
    /// Its file system.
    pub filesystem: Option<FileSystem>,
    /// Whether it has the set-user-id bit.
    pub suid: Option<bool>,
    /// Whether it has the set-group-id bit.
    pub sgid: Option<bool>,
    /// Whether its owner is one of the process's uids.
    pub uid_of_subject: Option<bool>,
    /// Whether its group is one of the process's groups.
    pub gid_of_subject: Option<bool>,
    /// Its type.
    pub types: Option<Types>,
}

/// The kinds of access that a rule permits. Default: none. Its text is that of ugidfw(8): letters of
/// `arswx` in any order, or `n` for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mode {
    /// `a`: changing owner, group, mode and times.
    pub admin: bool,
    /// `r`: reading, listing a directory.
    pub read: bool,
    /// `s`: reading attributes.
    pub stat: bool,
    /// `w`: writing, appending, changing names in a directory.
    pub write: bool,
    /// `x`: executing, looking a name up in a directory.
    pub execute: bool,
}

impl Mode {
    fn letters(self) -> [(char, bool); 5] {
        [
            ('a', self.admin),
            ('r', self.read),
            ('s', self.stat),
            ('w', self.write),
            ('x', self.execute),
        ]
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permitted = self
            .letters()
            .into_iter()
            .filter(|(_, permitted)| *permitted);
        let text: String = permitted.map(|(letter, _)| letter).collect();
        formatter.write_str(if text.is_empty() { "n" } else { &text })
    }
}

/// A text that is no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a mode: letters of arswx, each once, or n for none")]
pub struct NotAMode(pub String);

impl FromStr for Mode {
    type Err = NotAMode;

    fn from_str(text: &str) -> Result<Self, NotAMode> {
        let mut mode = Self::default();
        if text == "n" {
            return Ok(mode);
        }
        for letter in text.chars() {
            let kind = match letter {
                'a' => &mut mode.admin,
                'r' => &mut mode.read,
                's' => &mut mode.stat,
                'w' => &mut mode.write,
                'x' => &mut mode.execute,
                _ => return Err(NotAMode(text.into())),
            };
            if std::mem::replace(kind, true) {
                return Err(NotAMode(text.into()));
            }
        }
        if mode == Self::default() {
            return Err(NotAMode(text.into()));
        }
        Ok(mode)
    }
}

/// A rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Which processes.
    pub subject: Subject,
    /// Which files.
    pub object: Object,
    /// The access of these processes to these files.
    pub mode: Mode,
}
