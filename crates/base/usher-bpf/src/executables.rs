//! Executables as the kernel identifies them (bpf/include/usher_executable.h).

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use zerocopy::IntoBytes;
use zeroize::Zeroize;

use crate::{KernelError, Object, Plain, run};

mod shared {
    include!(concat!(env!("OUT_DIR"), "/usher_program.rs"));
}
use shared::{ProgramKey, ProgramQuery};

/// The program that identifies an open file. It is run, not attached.
pub const IDENTIFY: &str = "identify";
const KEYS: &str = "program_keys";
const OPERATION: &str = "ask which program a file is";

macro_rules! identities {
    ($($(#[$meaning:meta])+ $name:ident;)+) => {$(
        $(#[$meaning])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU64);

        impl $name {
            /// The identity of this number; none for 0, which means that the file has none.
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
    )+};
}

identities! {
    /// The kernel's identity of an executable file: the same for all names and mounts of the file, in every
    /// mount namespace, and never another file's while the file is open somewhere. An identity is meaningless
    /// once the tables of the programs that compare it are gone.
    ProgramId;

    /// The kernel's identity of a name in a directory. It stands for whichever file has that name when the
    /// name is executed. No name in another directory gets this identity while the directory is open
    /// somewhere.
    PlaceId;

    /// The kernel's identity of a file that is executed as a script, made from the file's numbers. It
    /// outlives the kernel's object of the file, and the process that asked for it. Files to which their file
    /// system gives the same numbers have the same identity.
    ScriptId;
}

/// Sets the random key of the hash through which the kernel's identities of programs are visible,
/// unless an earlier process has set it; no copy of the key is kept.
///
/// # Errors
/// The kernel's error, or [`KernelError::MissingPart`].
pub fn draw_key(object: &Object) -> Result<(), KernelError> {
    let keys = object.table::<u32, ProgramKey>(KEYS)?;
    let mut key = keys.get(&0)?.unwrap_or(ProgramKey::zeroed());
    let mut outcome = Ok(());
    if key.words == [0; 2] {
        getrandom::fill(key.as_mut_bytes()).map_err(|error| {
            KernelError::system("draw random bytes")(io::Error::other(error.to_string()))
        })?;
        outcome = keys.set(&0, &key);
    }
    key.words.zeroize();
    outcome
}

/// The program that identifies files.
#[derive(Debug)]
pub struct Identifier(OwnedFd);

impl Identifier {
    /// The identifying program of this object.
    ///
    /// # Errors
    /// [`KernelError::MissingPart`].
    pub fn of(object: &Object) -> Result<Self, KernelError> {
        object.program(IDENTIFY).map(Self)
    }

    /// The identity of an open file (also by O_PATH). Keep it open while its identity is compared,
    /// or the kernel may reuse it for another file.
    pub fn identify(&self, file: BorrowedFd<'_>) -> Result<Option<ProgramId>, KernelError> {
        Ok(ProgramId::new(self.query(file)?.program))
    }

    /// The identity of an open file's place. None if `directory`, which is open, is not the file's
    /// directory. Keep the directory open while the identity is compared.
    pub fn place(
        &self,
        file: BorrowedFd<'_>,
        directory: BorrowedFd<'_>,
    ) -> Result<Option<PlaceId>, KernelError> {
        let (of_file, of_directory) = (self.query(file)?, self.query(directory)?);
        let is_there = of_file.directory == of_directory.program;
        Ok(PlaceId::new(of_file.place).filter(|_| is_there))
    }

    /// The identities of an open file that a process executes, and of the file's place. That process keeps
    /// the directory of the place.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn executed(
        &self,
        file: BorrowedFd<'_>,
    ) -> Result<(Option<ProgramId>, Option<PlaceId>), KernelError> {
        let answer = self.query(file)?;
        Ok((ProgramId::new(answer.program), PlaceId::new(answer.place)))
    }

    /// The identity that an open file has when it is executed as a script.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn script(&self, file: BorrowedFd<'_>) -> Result<Option<ScriptId>, KernelError> {
        Ok(ScriptId::new(self.query(file)?.script))
    }

    fn query(&self, file: BorrowedFd<'_>) -> Result<ProgramQuery, KernelError> {
        let mut query = ProgramQuery {
            descriptor: file.as_raw_fd().unsigned_abs(),
            ..ProgramQuery::zeroed()
        };
        match run(self.0.as_fd(), OPERATION, &mut query)? {
            0 => Ok(query),
            errno => Err(KernelError::system(OPERATION)(
                io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(libc::EINVAL)),
            )),
        }
    }
}
