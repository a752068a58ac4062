//! Programs that are listed: by which executable a process is known, and which may authenticate
//! where (bpf/ticket/program.h).

use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use usher_bpf::{Object, Table, run};

use super::told;
use super::types::TicketError;
use crate::KernelError;
use crate::shared::ticket::{Asker, ListedKey, ProgramQuery};

/// An executable file, as the kernel knows it: the same for all names and mounts of the file, in
/// every mount namespace, and no other file's as long as it is open somewhere. Means nothing after
/// the [`super::Tickets`] that told it are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProgramId(NonZeroU64);

impl ProgramId {
    /// None for 0: no program that could be listed.
    pub(super) fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }
}

/// A program that may authenticate where those of a list may.
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
    identify: Result<OwnedFd, KernelError>,
    listed: Table<ListedKey, u32>,
    askers: Table<u32, Asker>,
    /// What is in `listed`: see `Holding::destinations`.
    present: Mutex<HashSet<Listed>>,
}

impl Listing {
    pub(super) fn open(
        object: &Object,
        identify: Result<OwnedFd, KernelError>,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            identify,
            listed: object.table("listed")?,
            askers: object.table("askers")?,
            present: Mutex::default(),
        })
    }

    /// Whether programs can be told apart.
    ///
    /// # Errors
    /// Why this kernel does not: in lockdown for confidentiality it lets nothing read its memory.
    pub fn available(&self) -> Result<(), &KernelError> {
        self.identify.as_ref().map(drop)
    }

    /// Which program an open file is (also by O_PATH). Keep it open as long as it is listed: the
    /// kernel may else give what it is known by to another file.
    ///
    /// # Errors
    /// As [`Listing::available`], where that is no reference: `None`; or what the kernel says.
    pub fn identify(&self, file: BorrowedFd<'_>) -> Result<Option<ProgramId>, KernelError> {
        let Ok(program) = &self.identify else {
            return Ok(None);
        };
        let mut query = ProgramQuery {
            program: 0,
            descriptor: file.as_raw_fd().unsigned_abs(),
            reserved: 0,
        };
        let operation = "asking which program a file is";
        match run(program.as_fd(), operation, &mut query)? {
            0 => Ok(ProgramId::new(query.program)),
            errno => Err(KernelError::system(operation)(
                std::io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(libc::EINVAL)),
            )),
        }
    }

    /// The program that has said of this socket that it is to be announced. None: nobody has, or one
    /// whose file is at no path any more.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn asker(&self, socket: BorrowedFd<'_>) -> Result<Option<ProgramId>, KernelError> {
        let descriptor = u32::try_from(socket.as_raw_fd()).unwrap_or(u32::MAX);
        let asker = self.askers.get(&descriptor)?;
        Ok(asker.and_then(|asker| ProgramId::new(asker.program)))
    }

    /// Lists these programs too, all or none of them.
    ///
    /// # Errors
    /// [`TicketError::Full`] when there is no room for all of them, or what the kernel says.
    pub fn add(&self, wanted: &HashSet<Listed>) -> Result<(), TicketError> {
        let mut present = self.lock();
        let former = present.clone();
        for entry in wanted.difference(&former) {
            let entered = self.listed.put(&(*entry).into(), &0);
            if let Err(error) = entered.map_err(TicketError::from).and_then(told) {
                for fresh in present.difference(&former).copied().collect::<Vec<_>>() {
                    self.listed.remove(&fresh.into())?;
                    present.remove(&fresh);
                }
                return Err(error);
            }
            present.insert(*entry);
        }
        Ok(())
    }

    /// Lists no others than these any longer.
    ///
    /// # Errors
    /// What the kernel says; the rest is listed still.
    pub fn retain(&self, wanted: &HashSet<Listed>) -> Result<(), KernelError> {
        let mut present = self.lock();
        for former in present.difference(wanted).copied().collect::<Vec<_>>() {
            self.listed.remove(&former.into())?;
            present.remove(&former);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Listed>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Listed> for ListedKey {
    fn from(entry: Listed) -> Self {
        Self {
            program: entry.program.0.get(),
            list: entry.list.get(),
            reserved: 0,
        }
    }
}
