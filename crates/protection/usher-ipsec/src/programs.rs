//! The executables that the policy names.
//!
//! A file that is named stays open, so that the kernel's identity of it is no other file's. When
//! another file takes its place, both count: what runs from the former one stays protected.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

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
    files: BTreeMap<ProgramName, Vec<(ProgramId, OwnedFd)>>,
}

impl Programs {
    /// Looks all of these up again, and forgets others. Returns whether anything has changed.
    pub fn look_up<'a>(
        &mut self,
        names: impl Iterator<Item = &'a ProgramName>,
        identifier: &Identifier,
    ) -> Result<bool, IpsecError> {
        let mut former = std::mem::take(&mut self.files);
        let mut changed = false;
        for name in names {
            let mut files = former.remove(name).unwrap_or_default();
            for path in places(name) {
                let Some(file) = open(&path) else { continue };
                let Some(id) = identifier.identify(file.as_fd())? else {
                    continue;
                };
                if !files.iter().any(|(known, _)| *known == id) {
                    files.push((id, file));
                    changed = true;
                }
            }
            let excess = files.len().saturating_sub(MOST_FILES);
            files.drain(..excess);
            self.files.insert(name.clone(), files);
        }
        Ok(changed || !former.is_empty())
    }

    /// The identities of a program; none if there is no such file.
    pub fn ids(&self, name: &ProgramName) -> Vec<ProgramId> {
        let files = self.files.get(name).into_iter().flatten();
        files.map(|(id, _)| *id).collect()
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
