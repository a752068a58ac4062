//! The executables that the policy names.
//!
//! A file that is named stays open, so that the kernel's identity of it is no other file's. When
//! another file takes its place, both count: what runs from the former one stays protected.
//!
//! A file counts for one `application` block only. And no account but root makes another's file
//! count: the name of a program may lead through folders of such an account.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use usher_bpf::executables::{Identifier, ProgramId};
use usher_protection::{ProgramName, Rules, SYSTEM_FOLDERS};

use crate::error::IpsecError;
use crate::way::{self, Masters};

/// The most files of one name that count, former ones included. The oldest makes room: what still
/// runs from it is no longer governed when it makes a socket.
const MOST_FILES: usize = 64;

/// Open files of the programs that the policy names.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    files: BTreeMap<ProgramName, Vec<Known>>,
    refused: Vec<Refused>,
}

/// A file that counts. It stays open.
#[derive(Debug, Clone)]
struct Known {
    id: ProgramId,
    _file: Arc<OwnedFd>,
}

/// A file that a program's name leads to, and that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The program, as the policy names it.
    pub program: ProgramName,
    /// The path that was followed.
    pub path: PathBuf,
    /// Why not.
    pub reason: Reason,
}

/// Why a file does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It cannot be opened; the kernel's error number. EACCES: or it is no regular file.
    Unreadable(i32),
    /// Accounts other than root and its owner can put another file there.
    Replaceable,
    /// It counts for another `application` block, or two blocks have come to name it at once.
    OfAnotherBlock,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.reason {
            Reason::Unreadable(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                write!(formatter, "{path}: {error}; this file is not governed")
            }
            Reason::Replaceable => write!(
                formatter,
                "{path}: accounts other than root and the file's owner can replace it, so it is not \
                 governed; let root own all folders on the way, links followed, and let nobody else \
                 write to them"
            ),
            Reason::OfAnotherBlock => write!(
                formatter,
                "{path}: links lead to an executable of another `application` block, which stays \
                 that block's; remove the link, or name the program in one block"
            ),
        }
    }
}

/// Why programs are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Tables are put in force.
    Apply,
    /// The tables are in force: what counts goes on to count.
    Follow,
}

/// A block's reason to have a file; a later one is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// Its path leads there, by an account's will.
    ByAccount,
    /// At [`Occasion::Apply`]: it has counted.
    Former,
    /// Its path leads there, by root's will.
    ByRoot,
    /// At [`Occasion::Follow`]: it has counted.
    InForce,
}

/// A block has a file if no other block's claim is as good.
struct Claim<'a> {
    block: usize,
    program: &'a ProgramName,
    /// None: it is not there any more.
    path: Option<PathBuf>,
    reach: Reach,
    file: Known,
}

impl Programs {
    /// The programs of these blocks, looked up again; others are forgotten.
    ///
    /// # Errors
    /// [`IpsecError::TwoBlocks`], at [`Occasion::Apply`] only; or the kernel's error.
    pub fn look_up(
        &self,
        blocks: &[Rules],
        occasion: Occasion,
        identifier: &Identifier,
    ) -> Result<Self, IpsecError> {
        let mut found = Self::default();
        let mut claims: BTreeMap<ProgramId, Vec<Claim>> = BTreeMap::new();
        let mut order = Vec::new();
        for (block, rules) in blocks.iter().enumerate() {
            for program in &rules.programs {
                for claim in
                    self.claims(block, program, occasion, identifier, &mut found.refused)?
                {
                    order.push((program, claim.file.clone()));
                    claims.entry(claim.file.id).or_default().push(claim);
                }
            }
        }
        let mut owners = BTreeMap::new();
        for (id, claims) in claims {
            let owner = owner(&claims, occasion)?;
            owners.insert(id, owner);
            let losers = claims
                .into_iter()
                .filter(|claim| Some(claim.block) != owner);
            found.refused.extend(losers.filter_map(|claim| {
                Some(Refused {
                    program: claim.program.clone(),
                    path: claim.path?,
                    reason: Reason::OfAnotherBlock,
                })
            }));
        }
        for (block, rules) in blocks.iter().enumerate() {
            for program in &rules.programs {
                let mut seen = BTreeSet::new();
                let files = order.iter().filter(|(name, file)| {
                    *name == program && owners[&file.id] == Some(block) && seen.insert(file.id)
                });
                let mut files: Vec<Known> = files.map(|(_, file)| file.clone()).collect();
                let excess = files.len().saturating_sub(MOST_FILES);
                files.drain(..excess);
                found.files.insert(program.clone(), files);
            }
        }
        Ok(found)
    }

    /// The claims of one program: former files first.
    fn claims<'a>(
        &self,
        block: usize,
        program: &'a ProgramName,
        occasion: Occasion,
        identifier: &Identifier,
        refused: &mut Vec<Refused>,
    ) -> Result<Vec<Claim<'a>>, IpsecError> {
        let known = self.files.get(program).into_iter().flatten();
        let reach = match occasion {
            Occasion::Apply => Reach::Former,
            Occasion::Follow => Reach::InForce,
        };
        let mut claims: Vec<Claim> = known
            .map(|file| Claim {
                block,
                program,
                path: None,
                reach,
                file: file.clone(),
            })
            .collect();
        for path in places(program) {
            let mut refuse = |path: &Path, reason| {
                refused.push(Refused {
                    program: program.clone(),
                    path: path.into(),
                    reason,
                });
            };
            let found = match way::follow(&path) {
                Ok(found) => found,
                // The block waits for it.
                Err(Errno::NOENT) => continue,
                Err(error) => {
                    refuse(&path, Reason::Unreadable(error.raw_os_error()));
                    continue;
                }
            };
            if !found.masters.may_name(found.owner) {
                refuse(&path, Reason::Replaceable);
                continue;
            }
            let Some(id) = identifier.identify(found.file.as_fd())? else {
                continue;
            };
            claims.push(Claim {
                block,
                program,
                path: Some(path),
                reach: match found.masters {
                    Masters::Root => Reach::ByRoot,
                    Masters::Account(_) | Masters::Several => Reach::ByAccount,
                },
                file: Known {
                    id,
                    _file: Arc::new(found.file),
                },
            });
        }
        Ok(claims)
    }

    /// What does not count.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Whether the same files count for the same programs, and the same are refused.
    pub fn are_those_of(&self, other: &Self) -> bool {
        let ids = |files: &[Known]| files.iter().map(|known| known.id).collect::<Vec<_>>();
        let files = |programs: &Self| {
            let files = programs.files.iter();
            let files = files.map(|(name, files)| (name.clone(), ids(files)));
            files.collect::<Vec<_>>()
        };
        files(self) == files(other) && self.refused == other.refused
    }

    /// The identities of a program; none if there is no such file.
    pub fn ids(&self, name: &ProgramName) -> Vec<ProgramId> {
        let files = self.files.get(name).into_iter().flatten();
        files.map(|known| known.id).collect()
    }
}

/// The block that has a file which all of these claim; none: no claim is better than the others.
fn owner(claims: &[Claim], occasion: Occasion) -> Result<Option<usize>, IpsecError> {
    let best = claims.iter().map(|claim| claim.reach).max();
    let best: Vec<&Claim> = claims
        .iter()
        .filter(|claim| Some(claim.reach) == best)
        .collect();
    let Some(first) = best.first() else {
        return Ok(None);
    };
    let Some(other) = best.iter().find(|claim| claim.block != first.block) else {
        return Ok(Some(first.block));
    };
    match (first.reach, occasion) {
        // It is at no path of theirs any more, and what runs from it stays governed.
        (Reach::Former | Reach::InForce, _) => Ok(Some(first.block)),
        (Reach::ByRoot, Occasion::Apply) => Err(IpsecError::TwoBlocks {
            one: first.program.clone(),
            other: other.program.clone(),
        }),
        (Reach::ByRoot | Reach::ByAccount, _) => Ok(None),
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
