//! Finds the file at a path, and the accounts that can put another file there.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use usher_system::access_lists::Writers;

/// Limit of links on the way, the kernel's own.
const MOST_LINKS: usize = 40;
const ROOT: u32 = 0;
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_ALL: u32 = 0o002;

/// The accounts that can change to which file a path leads: they own a folder on the way, or may
/// write to it, by its mode or its access control list. Folders behind links are on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Masters {
    Root,
    /// This account, and root.
    Account(u32),
    /// More than one account beside root, perhaps all.
    Several,
}

impl Masters {
    /// The sticky bit of a folder makes no difference: any of its writers can make the entry first.
    fn of(folder: &Stat, writers: &Writers) -> Self {
        let of_group = |group: u32, may_write: bool| {
            if may_write && group != ROOT {
                Self::Several
            } else {
                Self::Root
            }
        };
        let by_mode = folder.st_mode & WRITABLE_BY_GROUP != 0;
        let others = match writers {
            _ if folder.st_mode & WRITABLE_BY_ALL != 0 => Self::Several,
            Writers::ByMode => of_group(folder.st_gid, by_mode),
            Writers::Listed {
                owning_group,
                users,
                groups,
            } => {
                let owning = of_group(folder.st_gid, *owning_group);
                let groups = groups.iter().map(|group| of_group(*group, true));
                let users = users.iter().map(|user| Self::account(*user));
                groups.chain(users).fold(owning, Self::and)
            }
            Writers::Unknown => Self::Several,
        };
        others.and(Self::account(folder.st_uid))
    }

    fn account(uid: u32) -> Self {
        match uid {
            ROOT => Self::Root,
            uid => Self::Account(uid),
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Root, one) | (one, Self::Root) => one,
            (Self::Account(one), Self::Account(other)) if one == other => self,
            _ => Self::Several,
        }
    }

    /// Returns whether these accounts can make a file of this owner count. None can do so for another
    /// account's file.
    pub fn may_name(self, owner: u32) -> bool {
        match self {
            Self::Root => true,
            Self::Account(account) => account == owner,
            Self::Several => false,
        }
    }
}

/// The file at a path.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Opened as O_PATH.
    pub file: Arc<OwnedFd>,
    /// Its folder, likewise.
    pub folder: Arc<OwnedFd>,
    pub owner: u32,
    pub masters: Masters,
    /// True if the kernel hands the file to an interpreter. None: the file cannot be read.
    pub is_script: Option<bool>,
}

/// A change within this time after another one may be hidden by the clock of the file system.
const FRESH: Duration = Duration::from_secs(2);

/// Everything that decides where paths lead, and whether a file counts there: the state of each folder,
/// link and file on the way. While it is unchanged, following the paths again finds the same files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trail {
    steps: BTreeMap<PathBuf, Step>,
    /// A step changed meanwhile.
    is_torn: bool,
}

/// None: nothing was at the path.
type Step = Option<Properties>;

/// The properties by which a file, link or folder counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Properties {
    device: u64,
    inode: u64,
    mode: u32,
    owner: (u32, u32),
    /// Only of a folder.
    masters: Option<Masters>,
    /// The last change, in seconds and nanoseconds. None for a folder, because its contents have steps
    /// of their own.
    changed: Option<(i64, i64)>,
}

impl Properties {
    /// The properties of a file, link or folder. `writers` finds the accounts that may write to a folder.
    fn of(about: &Stat, writers: impl FnOnce() -> Writers) -> Self {
        let is_folder = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
        let changed = (about.st_ctime, about.st_ctime_nsec.cast_signed());
        Self {
            device: about.st_dev,
            inode: about.st_ino,
            mode: about.st_mode,
            owner: (about.st_uid, about.st_gid),
            masters: is_folder.then(|| Masters::of(about, &writers())),
            changed: (!is_folder).then_some(changed),
        }
    }
}

impl Trail {
    fn add(&mut self, path: PathBuf, step: Step) {
        let former = self.steps.insert(path, step);
        self.is_torn |= former.is_some_and(|former| former != step);
    }

    /// Adds the steps of another trail.
    pub fn extend(&mut self, other: Self) {
        self.is_torn |= other.is_torn;
        for (path, step) in other.steps {
            self.add(path, step);
        }
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether a step has changed so lately that it may change again and look the same.
    fn is_fresh(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let latest = now
            .unwrap_or_default()
            .saturating_sub(FRESH)
            .as_secs()
            .cast_signed();
        let changes = self.steps.values().filter_map(|step| (*step)?.changed);
        changes.max().is_some_and(|(second, _)| second >= latest)
    }

    /// Returns whether every step is as it was.
    pub fn is_same(&self) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let is_same = |(path, step): (&PathBuf, &Step)| match statat(CWD, path, flags) {
            Ok(about) => {
                let writers = || Writers::of_no_link(path, about.st_mode);
                *step == Some(Properties::of(&about, writers))
            }
            Err(Errno::NOENT) => step.is_none(),
            Err(_) => false,
        };
        !self.is_torn && self.steps.iter().all(is_same)
    }
}

/// Follows an absolute path. Also returns its trail, if the path led to a file or to nothing, and has
/// not changed lately.
pub(crate) fn follow(path: &Path) -> (Result<Found, Errno>, Option<Trail>) {
    let mut trail = Trail::default();
    let found = walk(path, &mut trail);
    let is_complete = matches!(found, Ok(_) | Err(Errno::NOENT));
    let is_known = is_complete && !trail.is_fresh();
    (found, is_known.then_some(trail))
}

/// Follows one name after another, so that no folder is left out.
fn walk(path: &Path, trail: &mut Trail) -> Result<Found, Errno> {
    let mut names = VecDeque::new();
    prepend(&mut names, path.as_os_str());
    let root = open_in_folder(CWD, OsStr::new("/"))?;
    let mut here = root.try_clone().map_err(errno)?;
    let mut passed = PathBuf::from("/");
    let mut folder = None;
    let mut about = fstat(&here)?;
    let at_root = Properties::of(&about, || writers(&here, &about));
    let mut of_folder = at_root.masters;
    trail.add(passed.clone(), Some(at_root));
    let mut masters = Masters::Root;
    let mut links = 0;
    while let Some(name) = names.pop_front() {
        // Only a folder has entries: if `here` is a file, the kernel refuses to open a name in it.
        masters = masters.and(of_folder.unwrap_or(Masters::Several));
        let path = passed.join(&name);
        let next = open_in_folder(&here, &name).inspect_err(|_| trail.add(path.clone(), None))?;
        let about_next = fstat(&next)?;
        let properties = Properties::of(&about_next, || writers(&next, &about_next));
        trail.add(path.clone(), Some(properties));
        if FileType::from_raw_mode(about_next.st_mode) == FileType::Symlink {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            let target = readlinkat(&next, "", Vec::new())?;
            let target = OsString::from_vec(target.into_bytes());
            if target.as_bytes().starts_with(b"/") {
                here = root.try_clone().map_err(errno)?;
                passed = PathBuf::from("/");
                about = fstat(&here)?;
                of_folder = at_root.masters;
            }
            prepend(&mut names, &target);
        } else {
            passed = path;
            folder = Some(std::mem::replace(&mut here, next));
            about = about_next;
            of_folder = properties.masters;
        }
    }
    let is_file = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
    let folder = folder.filter(|_| is_file).ok_or(Errno::ACCESS)?;
    Ok(Found {
        is_script: is_script(&here),
        file: Arc::new(here),
        folder: Arc::new(folder),
        owner: about.st_uid,
        masters,
    })
}

/// The path of an open file, whichever name it has.
fn path_of(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

fn writers(folder: &impl AsFd, about: &Stat) -> Writers {
    Writers::of(&path_of(folder), about.st_mode)
}

fn is_script(file: &impl AsFd) -> Option<bool> {
    let mut beginning = [0; 2];
    let file = openat(
        CWD,
        path_of(file),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let length = rustix::io::read(file, &mut beginning).ok()?;
    Some(length == beginning.len() && beginning == *b"#!")
}

fn prepend(names: &mut VecDeque<OsString>, path: &OsStr) {
    let parts = path.as_bytes().split(|byte| *byte == b'/');
    for part in parts.rev().filter(|part| !part.is_empty()) {
        names.push_front(OsStr::from_bytes(part).to_owned());
    }
}

fn open_in_folder(folder: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_account_names_a_file_of_another() {
        let (bob, eve) = (Masters::Account(1), Masters::Account(2));
        assert!(Masters::Root.may_name(0) && Masters::Root.may_name(1));
        assert!(bob.may_name(1) && !bob.may_name(0) && !bob.may_name(2));
        assert_eq!(Masters::Root.and(bob), bob);
        assert_eq!(bob.and(bob), bob);
        assert_eq!(bob.and(eve), Masters::Several);
        assert!(!Masters::Several.may_name(0) && !Masters::Several.may_name(1));
    }

    #[test]
    fn a_link_leads_to_the_file_that_the_kernel_finds() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("deep")).unwrap();
        std::fs::write(path("deep/file"), "").unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, path(name));
        link("deep/../deep/file", "relative").unwrap();
        link(path("relative").to_str().unwrap(), "absolute").unwrap();
        link("round", "round").unwrap();
        let follow = |path: &Path| super::follow(path).0;
        let found = follow(&path("absolute")).unwrap();
        let expected = rustix::fs::stat(path("deep/file")).unwrap();
        assert_eq!(fstat(&found.file).unwrap().st_ino, expected.st_ino);
        assert_eq!(follow(&path("round")).unwrap_err(), Errno::LOOP);
        assert_eq!(follow(&path("deep")).unwrap_err(), Errno::ACCESS);
        assert_eq!(follow(&path("deep/file/more")).unwrap_err(), Errno::NOTDIR);
        assert_eq!(follow(&path("nothing")).unwrap_err(), Errno::NOENT);
        // A folder that everybody may write to is on the way.
        let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path("deep"), mode(0o1777)).unwrap();
        assert_eq!(follow(&path("absolute")).unwrap().masters, Masters::Several);
    }

    /// An entry of an access control list: its tag, permissions and number.
    type Entry = (u16, u16, u32);

    /// Sets the access control list of a folder that root owns, with mode 0775.
    fn share(folder: &Path, entries: &[Entry]) {
        let mut list = vec![2, 0, 0, 0];
        let fixed = [(1, 7, u32::MAX), (4, 5, u32::MAX)];
        let end = [(0x10, 7, u32::MAX), (0x20, 5, u32::MAX)];
        let mut entries: Vec<_> = fixed.iter().chain(entries).chain(&end).collect();
        // The kernel wants them in the order of their tags.
        entries.sort();
        for (tag, permissions, number) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(number.to_le_bytes());
        }
        let flags = rustix::fs::XattrFlags::empty();
        let name = "system.posix_acl_access";
        rustix::fs::setxattr(folder, name, &list, flags).expect("a file system with lists");
    }

    const USER: u16 = 2;
    const GROUP: u16 = 8;

    // Threat model: P44
    #[test]
    fn accounts_of_an_access_control_list_are_masters() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let shared = folder.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::write(shared.join("file"), "").unwrap();
        let mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&shared, mode).unwrap();
        };
        let masters = || {
            let about = rustix::fs::stat(&shared).unwrap();
            assert_eq!((about.st_mode & 0o777, about.st_gid), (0o775, 0));
            let opened = open_in_folder(CWD, shared.as_os_str()).unwrap();
            Masters::of(&about, &writers(&opened, &about))
        };
        mode(0o775);
        assert_eq!(masters(), Masters::Root);
        // The mode is the same for all of these.
        let rows: [(&[Entry], Masters); 6] = [
            (&[], Masters::Root),
            (&[(USER, 5, 1000)], Masters::Root),
            (&[(USER, 7, 0), (GROUP, 7, 0)], Masters::Root),
            (&[(USER, 7, 1000)], Masters::Account(1000)),
            (&[(USER, 7, 1000), (USER, 7, 1001)], Masters::Several),
            (&[(GROUP, 7, 100)], Masters::Several),
        ];
        for (entries, expected) in rows {
            let trail = trail_to(&shared.join("file"));
            let before = masters();
            share(&shared, entries);
            assert_eq!(masters(), expected, "{entries:?}");
            assert_eq!(trail.is_same(), before == expected, "{entries:?}");
        }
    }

    fn trail_to(path: &Path) -> Trail {
        let mut trail = Trail::default();
        let found = walk(path, &mut trail);
        assert!(matches!(found, Ok(_) | Err(Errno::NOENT)));
        trail
    }

    #[test]
    fn a_trail_is_the_same_until_a_step_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mode = |name: &str, mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(path(name), mode).unwrap();
        };
        let link = |target: &str| {
            std::os::unix::fs::symlink(target, path("new")).unwrap();
            std::fs::rename(path("new"), path("link")).unwrap();
        };
        let replace = |name: &str| {
            std::fs::write(path("new"), "").unwrap();
            std::fs::rename(path("new"), path(name)).unwrap();
        };
        let make = |name: &str| std::fs::create_dir(path(name)).unwrap();
        make("one");
        make("two");
        replace("one/file");
        replace("two/file");
        link("one");
        let changes: [(&str, &dyn Fn()); 9] = [
            ("a new file", &|| replace("one/file")),
            ("another owner", &|| {
                std::os::unix::fs::chown(path("one/file"), Some(1), None).unwrap();
            }),
            ("other rights at the folder", &|| mode("one", 0o1777)),
            ("a link that leads elsewhere", &|| link("two")),
            ("the same link, made anew", &|| link("two")),
            ("no file", &|| {
                std::fs::remove_file(path("two/file")).unwrap()
            }),
            ("a file where there was none", &|| replace("two/file")),
            ("no folder", &|| {
                std::fs::remove_dir_all(path("two")).unwrap()
            }),
            ("a file for the folder", &|| replace("two")),
        ];
        for (name, change) in changes {
            let trail = trail_to(&path("link/file"));
            assert!(trail.is_same(), "{name}");
            replace("one/other");
            assert!(trail.is_same(), "{name}: another file");
            change();
            assert!(!trail.is_same(), "{name}");
        }
        assert!(follow(Path::new("/bin/sh")).1.is_some());
        assert!(
            follow(&path("link/file")).1.is_none(),
            "no folder: nothing is known"
        );
        assert!(
            follow(&path("one/file")).1.is_none(),
            "it has changed just now"
        );
    }

    #[test]
    fn a_way_that_changed_meanwhile_is_no_trail() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let mut trail = trail_to(&file);
        std::fs::write(&file, "").unwrap();
        let later = trail_to(&file);
        assert!(later.is_same());
        trail.extend(later);
        assert!(!trail.is_same());
    }

    #[test]
    fn a_script_in_place_of_a_program_ends_its_trail() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let trail = trail_to(file.path());
        // The clock of the file system is as fine as the kernel's ticks.
        while trail.is_same() {
            std::fs::write(file.path(), "#!/bin/sh\n").unwrap();
        }
        assert_eq!(follow(file.path()).0.unwrap().is_script, Some(true));
    }
}
