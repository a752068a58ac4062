//! Executables as the kernel identifies them (bpf/include/usher_executable.h).

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::{KernelError, Object, Plain, run};

mod shared {
    include!(concat!(env!("OUT_DIR"), "/usher_program.rs"));
}
use shared::{ProgramKey, ProgramQuery};

/// Identifies an open file. Not attached.
pub const IDENTIFY: &str = "identify";
const KEYS: &str = "program_keys";
const OPERATION: &str = "asking which program a file is";

/// The kernel's identity of an executable file: the same for all names and mounts of the file, in
/// every mount namespace, and never another file's while the file is open somewhere. It is
/// meaningless once the tables of the programs that compare it are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(NonZeroU64);

impl ProgramId {
    /// None for 0: a program that cannot be listed.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number that kernel programs compare.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Sets the random key of the hash through which the kernel's identities of programs are visible,
/// unless an earlier process has set it; no copy of the key is kept.
///
/// # Errors
/// The kernel's error, or [`KernelError::MissingPart`].
pub fn draw_key(object: &Object) -> Result<(), KernelError> {
    let keys = object.table::<u32, ProgramKey>(KEYS)?;
    if keys.get(&0)?.is_some_and(|key| key.words != [0; 2]) {
        return Ok(());
    }
    let mut bytes = [0; size_of::<ProgramKey>()];
    getrandom::fill(&mut bytes).map_err(|error| {
        KernelError::system("drawing random bytes")(io::Error::other(error.to_string()))
    })?;
    let mut key = ProgramKey::read(&bytes).unwrap_or(ProgramKey::zeroed());
    let set = keys.set(&0, &key);
    zeroize::Zeroize::zeroize(&mut bytes);
    zeroize::Zeroize::zeroize(&mut key.words);
    set
}

/// The program that identifies files.
#[derive(Debug)]
pub struct Identifier(OwnedFd);

impl Identifier {
    /// The one of this object.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`].
    pub fn of(object: &Object) -> Result<Self, KernelError> {
        object.program(IDENTIFY).map(Self)
    }

    /// The identity of an open file (also by O_PATH). Keep it open while its identity is compared,
    /// or the kernel may reuse it for another file.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn identify(&self, file: BorrowedFd<'_>) -> Result<Option<ProgramId>, KernelError> {
        let mut query = ProgramQuery {
            program: 0,
            descriptor: file.as_raw_fd().unsigned_abs(),
            reserved: 0,
        };
        match run(self.0.as_fd(), OPERATION, &mut query)? {
            0 => Ok(ProgramId::new(query.program)),
            errno => Err(KernelError::system(OPERATION)(
                io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(libc::EINVAL)),
            )),
        }
    }
}
