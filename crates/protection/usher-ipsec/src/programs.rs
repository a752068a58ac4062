//! The executables that the policy names.
//!
//! A file that is named stays open, so that the kernel's identity of it is no other file's. When
//! another file takes its place, both count: what runs from the former one stays protected.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use usher_bpf::executables::{Identifier, ProgramId};
use usher_protection::{ProgramName, SYSTEM_FOLDERS};

use crate::error::IpsecError;

/// The most files of one name that count, former ones included. The oldest makes room: what still
/// runs from it is no longer governed when it makes a socket.
const MOST_FILES: usize = 64;

/// Open files of the programs that the policy names.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    files: BTreeMap<ProgramName, Vec<Known>>,
}

/// A file that counts. It stays open.
#[derive(Debug, Clone)]
struct Known {
    id: ProgramId,
    _file: Arc<OwnedFd>,
}

impl Programs {
    /// All of these, looked up again; others are forgotten.
    pub fn look_up<'a>(
        &self,
        names: impl Iterator<Item = &'a ProgramName>,
        identifier: &Identifier,
    ) -> Result<Self, IpsecError> {
        let mut found = Self::default();
        for name in names {
            let mut files = self.files.get(name).cloned().unwrap_or_default();
            for path in places(name) {
                let Some(file) = open(&path) else { continue };
                let Some(id) = identifier.identify(file.as_fd())? else {
                    continue;
                };
                if !files.iter().any(|known| known.id == id) {
                    files.push(Known {
                        id,
                        _file: Arc::new(file),
                    });
                }
            }
            let excess = files.len().saturating_sub(MOST_FILES);
            files.drain(..excess);
            found.files.insert(name.clone(), files);
        }
        Ok(found)
    }

    /// Whether the same files count for the same programs.
    pub fn are_those_of(&self, other: &Self) -> bool {
        let files = |programs: &Self| {
            let files = programs.files.iter();
            let ids = |files: &[Known]| files.iter().map(|known| known.id).collect::<Vec<_>>();
            files
                .map(|(name, files)| (name.clone(), ids(files)))
                .collect::<Vec<_>>()
        };
        files(self) == files(other)
    }

    /// The identities of a program; none if there is no such file.
    pub fn ids(&self, name: &ProgramName) -> Vec<ProgramId> {
        let files = self.files.get(name).into_iter().flatten();
        files.map(|known| known.id).collect()
    }
}

fn places(name: &ProgramName) -> Vec<PathBuf> {
    match name {
        ProgramName::Path(path) => vec![path.into()],
        ProgramName::Name(name) => SYSTEM_FOLDERS
            .map(|folder| Path::new(folder).join(name))
            .into(),
    }
}

/// A file that cannot be opened is as good as none: the block waits for it.
fn open(path: &Path) -> Option<OwnedFd> {
    match openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Some(file),
        Err(error) => {
            let error = io::Error::from(error);
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {error}; the program is not governed", path.display());
            }
            None
        }
    }
}
