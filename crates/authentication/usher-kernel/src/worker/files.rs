//! Confines a worker to some files (Landlock, kernel 5.13). This bounds the service, as DAC bounds
//! its user. The child sets it itself, as the user, so that paths are resolved with the user's own
//! rights.

use std::ffi::CString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use landlock::{ABI, Access, AccessFs, BitFlags};
use usher_system::sandbox::landlock_version;

use super::SpawnError;
use super::child::errno;

/// Rights to a file, or to a folder and everything below it. The user's own rights also apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    /// Read files, list folders, execute programs.
    Read,
    /// Also change, make and remove files and folders.
    Write,
}

impl FileAccess {
    fn rights(self, abi: ABI) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::from_read(abi),
            Self::Write => AccessFs::from_all(abi),
        }
    }
}

/// The newest Landlock version whose rights are distinguished here: later ones would refuse access
/// that no policy can permit.
const NEWEST: ABI = ABI::V5;

/// The rights that this kernel's Landlock supports, up to [`NEWEST`].
fn version() -> ABI {
    let found = landlock_version();
    ABI::from(i32::try_from(found).unwrap_or(0)).min(NEWEST)
}

/// linux/landlock.h, struct landlock_path_beneath_attr; the kernel's is packed.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

const RULE_PATH_BENEATH: u32 = 1;

/// A path and the rights to it: those for a folder and everything below it, and the subset for a
/// file.
struct Rule {
    path: CString,
    below: u64,
    file: u64,
}

/// The confinement that the child sets, prepared before the fork.
pub(super) struct Confinement {
    /// All rights that are refused unless a rule permits them.
    handled: u64,
    rules: Vec<Rule>,
}

impl Confinement {
    /// Confines to these files, and to executing the program.
    ///
    /// # Errors
    /// [`SpawnError::NoLandlock`], [`SpawnError::Text`].
    pub(super) fn new(program: &Path, files: &[(PathBuf, FileAccess)]) -> Result<Self, SpawnError> {
        let abi = version();
        if abi == ABI::Unsupported {
            return Err(SpawnError::NoLandlock);
        }
        let program = std::iter::once((program, FileAccess::Read));
        let files = files.iter().map(|(path, access)| (path.as_path(), *access));
        let rules = program
            .chain(files)
            .map(|(path, access)| {
                let rights = access.rights(abi);
                Ok(Rule {
                    path: CString::new(path.as_os_str().as_bytes())?,
                    below: rights.bits(),
                    file: (rights & AccessFs::from_file(abi)).bits(),
                })
            })
            .collect::<Result<_, SpawnError>>()?;
        Ok(Self {
            handled: AccessFs::from_all(abi).bits(),
            rules,
        })
    }

    /// Confines this process for good.
    ///
    /// # Safety
    /// Only in the child of a fork, with `no_new_privs` set: it changes the process. Bare system
    /// calls, with pointers to local variables and to data made before the fork.
    pub(super) unsafe fn enforce(&self) -> Result<(), i32> {
        // SAFETY: see this function's contract.
        unsafe {
            let ruleset = libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const self.handled,
                size_of::<u64>(),
                0_u32,
            );
            if ruleset < 0 {
                return Err(errno());
            }
            for rule in &self.rules {
                rule.add(ruleset)?;
            }
            if libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0_u32) < 0 {
                return Err(errno());
            }
            // The kernel has made the ruleset's descriptor close-on-exec.
            Ok(())
        }
    }
}

impl Rule {
    /// Adds a rule. A path that is missing, or that the user cannot reach, is left out: it permits
    /// nothing.
    ///
    /// # Safety
    /// Like [`Confinement::enforce`].
    unsafe fn add(&self, ruleset: i64) -> Result<(), i32> {
        // SAFETY: see this function's contract.
        unsafe {
            let parent: RawFd = libc::open(self.path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if parent < 0 {
                return match errno() {
                    libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP => Ok(()),
                    other => Err(other),
                };
            }
            let mut found: libc::stat = std::mem::zeroed();
            if libc::fstat(parent, &raw mut found) < 0 {
                return Err(errno());
            }
            let allowed = if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                self.below
            } else {
                self.file
            };
            let rule = PathBeneath { allowed, parent };
            let added = libc::syscall(
                libc::SYS_landlock_add_rule,
                ruleset,
                RULE_PATH_BENEATH,
                &raw const rule,
                0_u32,
            );
            let outcome = if added < 0 { Err(errno()) } else { Ok(()) };
            libc::close(parent);
            outcome
        }
    }
}
