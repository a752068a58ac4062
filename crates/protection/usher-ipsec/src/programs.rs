//! The executables that the policy names.
//!
//! A named file stays open, so that no other file gets its identity in the kernel. When another file
//! takes its place, both count: processes that run the former file stay protected. The new file is
//! recognised by its place (its name in its directory) even before it is looked up, so it is governed
//! from its first call on. A place counts only if root alone can put a file there.
//!
//! A file counts for one `application` block only. The name of a program may lead through folders of
//! another account, so only root can make a file of another account count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::mem::discriminant;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use usher_bpf::executables::{Identifier, PlaceId, ProgramId, ScriptId};
use usher_protection::{ProgramName, Rules, SYSTEM_FOLDERS};

use crate::error::IpsecError;
use crate::patience::{Answer, Patience};
use crate::way::{Masters, Trail};

/// Limit of files of one name that count, former ones included, and of places. The oldest
/// makes room: what still runs from it is no longer governed when it makes a socket.
const MOST_FILES: usize = 64;

/// Open files of the programs that the policy names.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    known: BTreeMap<ProgramName, Vec<Known>>,
    refused: Vec<Refused>,
    unread: Vec<PathBuf>,
    patience: Patience,
    /// The trail of all paths. None: the trail of some path is unknown.
    trail: Option<Arc<Trail>>,
    /// A look-up at [`Occasion::Follow`] has found no change. While no step of the trail changes, the
    /// next one would find none either.
    is_settled: bool,
}

/// How a program is recognised. The file decides; the place, where no block has the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// An executable, or a script as it is executed.
    File(ProgramId),
    /// A script that a process executes.
    Script(ScriptId),
    Place(PlaceId),
}

/// A file or place that counts. The file, or the directory of the place, stays open.
#[derive(Debug, Clone)]
struct Known {
    id: Identity,
    _open: Arc<OwnedFd>,
}

impl Known {
    fn is_place(&self) -> bool {
        matches!(self.id, Identity::Place(_))
    }
}

/// Leaves the last [`MOST_FILES`] of the files, scripts and places.
fn limit(known: &mut Vec<Known>) {
    let of_kind = |known: &[Known], id| {
        let kind = discriminant(&id);
        let same = known.iter().filter(|one| discriminant(&one.id) == kind);
        same.count()
    };
    let all = known.clone();
    let mut at = 0;
    known.retain(|one| {
        at += 1;
        of_kind(&all[at..], one.id) < MOST_FILES
    });
}

/// The executable of Usher's daemons, which no block may name: see [`IpsecError::OfDaemons`].
#[derive(Debug)]
pub(crate) struct Daemons {
    pub program: Option<ProgramId>,
    pub place: Option<PlaceId>,
    /// Open, so that no other file gets its identity.
    pub _open: File,
}

impl Daemons {
    /// Returns whether a file is theirs, or takes their file's place.
    fn are(&self, id: Identity) -> bool {
        match id {
            Identity::File(id) => self.program == Some(id),
            Identity::Place(id) => self.place == Some(id),
            Identity::Script(_) => false,
        }
    }
}

/// The kernel, as far as it identifies files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel<'a> {
    pub identifier: &'a Identifier,
    pub daemons: &'a Daemons,
    /// Whether scripts count; otherwise only their interpreters do.
    pub tells_scripts_apart: bool,
}

/// A socket's maker, as the kernel knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maker {
    pub script: Option<ScriptId>,
    pub place_of_script: Option<PlaceId>,
    pub program: Option<ProgramId>,
    pub place: Option<PlaceId>,
}

/// The identities of some programs.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    /// The identities of their files.
    pub programs: Vec<ProgramId>,
    /// The identities of their files as scripts.
    pub scripts: Vec<ScriptId>,
    /// The identities of their places.
    pub places: Vec<PlaceId>,
}

/// A file that a program's name leads to, and that does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The program, as the policy names it.
    pub program: ProgramName,
    /// The path that was followed.
    pub path: PathBuf,
    /// The reason that it does not count.
    pub reason: Reason,
}

/// The reason that a file does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It cannot be opened; the kernel's error number. EACCES: or it is no regular file.
    Unreadable(i32),
    /// Its file system does not answer.
    Hangs,
    /// It was not looked up, because paths of other programs had used up the time.
    Late,
    /// Accounts other than root and its owner can put another file there.
    Replaceable,
    /// It is a script, and the kernel does not tell scripts of one interpreter apart.
    Script,
    /// It counts for another `application` block, or two blocks have come to name it at once.
    OfAnotherBlock,
    /// It is the executable of Usher's daemons, to which the name has come to lead.
    OfDaemons,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.reason {
            Reason::Unreadable(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                write!(
                    formatter,
                    "{path}: {error}; this file is not governed: let the path lead to a regular file that \
                     the protector can open"
                )
            }
            Reason::Hangs => write!(
                formatter,
                "{path}: its file system does not answer; files of the program that counted before \
                 stay governed, and a new one there is not; name programs on local file systems only"
            ),
            Reason::Late => write!(
                formatter,
                "{path}: not looked up yet, because file systems of other programs' paths are slow; \
                 files of the program that counted before stay governed, and a new one there is not; \
                 name programs on local file systems only"
            ),
            Reason::Replaceable => write!(
                formatter,
                "{path}: accounts other than root and the file's owner can replace it, so it is not \
                 governed; let root own all folders on the way, links followed, and let no one else \
                 write to them"
            ),
            Reason::Script => write!(
                formatter,
                "{path}: a script is not governed, because without LSM programs this kernel does not \
                 tell scripts of one interpreter apart; give it an interpreter of its own (a copy, named \
                 in its first line) and name that"
            ),
            Reason::OfAnotherBlock => write!(
                formatter,
                "{path}: links lead to an executable of another `application` block, which stays \
                 that block's; remove the link, or name the program in one block"
            ),
            Reason::OfDaemons => write!(
                formatter,
                "{path}: links lead to the executable of Usher's daemons, which no block governs; remove \
                 the link"
            ),
        }
    }
}

/// The occasion on which programs are looked up.
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
    /// Its path leads to the file, through a link or folder that an account other than root may change.
    ByAccount,
    /// At [`Occasion::Apply`]: it has counted.
    Former,
    /// Its path leads to the file, and only root may change that.
    ByRoot,
    /// At [`Occasion::Follow`]: it has counted.
    InForce,
}

/// The claim of a block to a file or a place, which it has if no other block's claim is as good.
struct Claim<'a> {
    block: usize,
    program: &'a ProgramName,
    /// None: it is not there any more.
    path: Option<PathBuf>,
    reach: Reach,
    known: Known,
}

impl Programs {
    /// The programs of these blocks, looked up again; others are forgotten.
    ///
    /// # Errors
    /// [`IpsecError::TwoBlocks`] or [`IpsecError::OfDaemons`], at [`Occasion::Apply`] only; or the kernel's
    /// error.
    pub fn look_up(
        &self,
        blocks: &[Rules],
        occasion: Occasion,
        kernel: Kernel<'_>,
    ) -> Result<Self, IpsecError> {
        let named = blocks.iter().flat_map(|rules| &rules.programs);
        let answers = self.patience.follow_all(named.flat_map(places).collect());
        let mut found = Self {
            patience: self.patience.clone(),
            trail: answers.trail,
            ..Self::default()
        };
        let answers = answers.by_path;
        let mut claims: BTreeMap<Identity, Vec<Claim>> = BTreeMap::new();
        let mut order = Vec::new();
        for (block, rules) in blocks.iter().enumerate() {
            for program in &rules.programs {
                let known = self.known(block, program, occasion);
                let named = found.claims(block, program, &answers, occasion, kernel)?;
                for claim in known.chain(named) {
                    order.push((program, claim.known.clone()));
                    claims.entry(claim.known.id).or_default().push(claim);
                }
            }
        }
        let mut owners = BTreeMap::new();
        for (id, claims) in claims {
            let owner = owner(&claims, occasion)?;
            owners.insert(id, owner);
            // A block that loses only a place has lost no file.
            let losers = claims
                .into_iter()
                .filter(|claim| !claim.known.is_place() && Some(claim.block) != owner);
            for claim in losers {
                let refused = claim.path.map(|path| Refused {
                    program: claim.program.clone(),
                    path,
                    reason: Reason::OfAnotherBlock,
                });
                // A script has two identities, as a file and as a script, and is refused once.
                found
                    .refused
                    .extend(refused.filter(|one| !found.refused.contains(one)));
            }
        }
        for (block, rules) in blocks.iter().enumerate() {
            for program in &rules.programs {
                let mut seen = BTreeSet::new();
                let known = order.iter().filter(|(name, known)| {
                    *name == program && owners[&known.id] == Some(block) && seen.insert(known.id)
                });
                let mut known = known.map(|(_, known)| known.clone()).collect();
                limit(&mut known);
                found.known.insert(program.clone(), known);
            }
        }
        Ok(found)
    }

    /// Returns whether a look-up at [`Occasion::Follow`] is known to find no change. This costs much
    /// less than the look-up.
    pub fn would_stay(&self) -> bool {
        let trail = self.trail.as_ref().filter(|_| self.is_settled);
        trail.is_some_and(|trail| self.patience.is_same(trail))
    }

    /// Notes that a look-up at [`Occasion::Follow`] has found no change.
    pub fn settled(self) -> Self {
        Self {
            is_settled: true,
            ..self
        }
    }

    /// The claims of one program by the files and places that have counted.
    fn known<'a>(
        &self,
        block: usize,
        program: &'a ProgramName,
        occasion: Occasion,
    ) -> impl Iterator<Item = Claim<'a>> {
        let known = self.known.get(program).into_iter().flatten();
        let reach = match occasion {
            Occasion::Apply => Reach::Former,
            Occasion::Follow => Reach::InForce,
        };
        known.map(move |known| Claim {
            block,
            program,
            path: None,
            reach,
            known: known.clone(),
        })
    }

    /// The claims of one program by its paths. Notes files that do not count, and files that cannot be
    /// read.
    fn claims<'a>(
        &mut self,
        block: usize,
        program: &'a ProgramName,
        answers: &BTreeMap<PathBuf, Answer>,
        occasion: Occasion,
        kernel: Kernel<'_>,
    ) -> Result<Vec<Claim<'a>>, IpsecError> {
        let mut claims = Vec::new();
        for path in places(program) {
            let mut refuse = |path: &Path, reason| {
                self.refused.push(Refused {
                    program: program.clone(),
                    path: path.into(),
                    reason,
                });
            };
            let found = match answers.get(&path).cloned() {
                Some(Ok(found)) => found,
                // The block waits for the file.
                Some(Err(Errno::NOENT)) => continue,
                Some(Err(Errno::AGAIN)) | None => {
                    refuse(&path, Reason::Late);
                    continue;
                }
                Some(Err(Errno::TIMEDOUT)) => {
                    refuse(&path, Reason::Hangs);
                    continue;
                }
                Some(Err(error)) => {
                    refuse(&path, Reason::Unreadable(error.raw_os_error()));
                    continue;
                }
            };
            if !found.masters.may_name(found.owner) {
                refuse(&path, Reason::Replaceable);
                continue;
            }
            match found.is_script {
                Some(true) if !kernel.tells_scripts_apart => {
                    refuse(&path, Reason::Script);
                    continue;
                }
                None if !kernel.tells_scripts_apart => self.unread.push(path.clone()),
                _ => {}
            }
            let identifier = kernel.identifier;
            let Some(id) = identifier.identify(found.file.as_fd())? else {
                continue;
            };
            let script = match found.is_script {
                Some(false) => None,
                Some(true) | None => identifier.script(found.file.as_fd())?,
            };
            let reach = match found.masters {
                Masters::Root => Reach::ByRoot,
                Masters::Account(_) | Masters::Several => Reach::ByAccount,
            };
            let place = match reach {
                Reach::ByRoot => identifier.place(found.file.as_fd(), found.folder.as_fd())?,
                _ => None,
            };
            let identities = [
                (Some(Identity::File(id)), Arc::clone(&found.file)),
                (script.map(Identity::Script), found.file),
                (place.map(Identity::Place), found.folder),
            ];
            let mut ids = identities.iter().filter_map(|(id, _)| *id);
            if ids.any(|id| kernel.daemons.are(id)) {
                if occasion == Occasion::Apply {
                    return Err(IpsecError::OfDaemons(program.clone()));
                }
                refuse(&path, Reason::OfDaemons);
                continue;
            }
            claims.extend(identities.into_iter().filter_map(|(id, open)| {
                Some(Claim {
                    block,
                    program,
                    path: Some(path.clone()),
                    reach,
                    known: Known {
                        id: id?,
                        _open: open,
                    },
                })
            }));
        }
        Ok(claims)
    }

    /// The files that do not count.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The files that count although they may be scripts, because they cannot be read.
    pub fn unread(&self) -> &[PathBuf] {
        &self.unread
    }

    /// Returns whether the same files and places count for the same programs, and the same are refused.
    pub fn are_those_of(&self, other: &Self) -> bool {
        let ids = |known: &[Known]| known.iter().map(|known| known.id).collect::<Vec<_>>();
        let known = |programs: &Self| {
            let known = programs.known.iter();
            let known = known.map(|(name, known)| (name.clone(), ids(known)));
            known.collect::<Vec<_>>()
        };
        known(self) == known(other)
            && (&self.refused, &self.unread) == (&other.refused, &other.unread)
    }

    /// Adds the identities of a program. Returns whether it has a file.
    pub fn identify(&self, name: &ProgramName, identities: &mut Identities) -> bool {
        let mut has_file = false;
        for known in self.known.get(name).into_iter().flatten() {
            match known.id {
                Identity::File(id) => {
                    identities.programs.push(id);
                    has_file = true;
                }
                Identity::Script(id) => identities.scripts.push(id),
                Identity::Place(id) => identities.places.push(id),
            }
        }
        has_file
    }

    /// The name of a socket's maker: of its script, otherwise of its executable. Either is known by its
    /// identity, otherwise by its place.
    pub fn name(&self, maker: Maker) -> Option<ProgramName> {
        let identities = [
            maker.script.map(Identity::Script),
            maker.place_of_script.map(Identity::Place),
            maker.program.map(Identity::File),
            maker.place.map(Identity::Place),
        ];
        identities.into_iter().flatten().find_map(|id| {
            let has = |known: &Vec<Known>| known.iter().any(|known| known.id == id);
            let found = self.known.iter().find(|(_, known)| has(known));
            found.map(|(name, _)| name.clone())
        })
    }
}

/// The block that has a file or a place which all of these claim; none: no claim is better than the others.
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
        // The file is at no path of these blocks any more, and what runs from it stays governed.
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
