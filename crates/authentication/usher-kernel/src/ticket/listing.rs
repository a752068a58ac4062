//! Listed programs: the executables that identify processes, and the destinations at which each may
//! authenticate (bpf/authentication/ticket/program.h).

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use usher_bpf::executables::Identifier;
pub use usher_bpf::executables::ProgramId;
use usher_bpf::{Mirrored, Object, Table};

use super::types::TicketError;
use crate::KernelError;
use crate::shared::key;
use crate::shared::ticket::{Asker, ListedKey};

/// A program on a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Listed {
    /// The number of the list.
    pub list: NonZeroU32,
    /// The program.
    pub program: ProgramId,
}

/// The tables of listed programs.
#[derive(Debug)]
pub struct Listing {
    identify: Result<Identifier, KernelError>,
    listed: Mutex<Mirrored<ListedKey, u32>>,
    askers: Table<u32, Asker>,
}

impl Listing {
    pub(super) fn open(
        object: &Object,
        identify: Result<Identifier, KernelError>,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            identify,
            listed: Mutex::new(Mirrored::new(object.table("listed")?)),
            askers: object.table("askers")?,
        })
    }

    /// Whether this kernel can identify programs.
    ///
    /// # Errors
    /// The reason that it cannot: in lockdown for confidentiality nothing may read its memory.
    pub fn available(&self) -> Result<(), &KernelError> {
        self.identify.as_ref().map(drop)
    }

    /// The identity of an open file (also by O_PATH). Keep it open while it is listed, or the kernel may
    /// reuse its identity for another file.
    ///
    /// # Errors
    /// The kernel's error. If programs cannot be identified ([`Listing::available`]), it returns `None` instead.
    pub fn identify(&self, file: BorrowedFd<'_>) -> Result<Option<ProgramId>, KernelError> {
        match &self.identify {
            Ok(identifier) => identifier.identify(file),
            Err(_) => Ok(None),
        }
    }

    /// The program that has requested an announcement on this socket. None: no program has, or its file
    /// is no longer at any path.
    pub fn asker(&self, socket: BorrowedFd<'_>) -> Result<Option<ProgramId>, KernelError> {
        let asker = self.askers.get(&key(socket))?;
        Ok(asker.and_then(|asker| ProgramId::new(asker.program)))
    }

    /// Adds these programs, all or none of them.
    ///
    /// # Errors
    /// [`TicketError::Full`] when there is no room for all of them, or the kernel's error.
    pub fn add(&self, wanted: &HashSet<Listed>) -> Result<(), TicketError> {
        Ok(self.listed.lock().enter_all(&keys(wanted))?)
    }

    /// Removes all other programs.
    ///
    /// # Errors
    /// The kernel's error; the rest is still listed.
    pub fn retain(&self, wanted: &HashSet<Listed>) -> Result<(), KernelError> {
        self.listed.lock().retain(&keys(wanted))
    }
}

/// The table's keys for these programs; the values mean nothing.
fn keys(listed: &HashSet<Listed>) -> BTreeMap<ListedKey, u32> {
    listed.iter().map(|one| ((*one).into(), 0)).collect()
}

impl From<Listed> for ListedKey {
    fn from(entry: Listed) -> Self {
        Self {
            program: entry.program.get(),
            list: entry.list.get(),
            reserved: 0,
        }
    }
}
