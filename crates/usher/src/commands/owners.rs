//! The owners of Usher's files below /var/lib/usher. A backup restores owners by number, and on another
//! machine these may be the numbers of other accounts.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use usher_daemon::role::{HasRole, Role};
use usher_local::paths;
use usher_local::roles;

use crate::accounts;
use crate::failure::{At, Failure};

/// The files and folders that an account without privileges must own, with all that is in them. The rest
/// is root's.
const OWNED: [(&str, &Role); 2] = [
    (paths::LOG_DIRECTORY, roles::Recorder::ROLE),
    (paths::PRIVATE_KEYS_DIRECTORY, roles::Signer::ROLE),
];

/// Limit of the depth of folders in one of these. Daemons make no folders there.
const DEEPEST: usize = 16;

/// An account's numbers.
#[derive(Clone, Copy)]
struct Owner {
    uid: Uid,
    gid: Gid,
}

/// Gives each file to the account that must own it, and returns those that had another owner. Accounts that
/// can write these folders must not gain anything: links are left alone, and so is a file that has more than
/// one name.
///
/// # Errors
/// When an account is missing, the system refuses, or folders lie deeper than 16, each of which would take a
/// descriptor and a part of the stack. What was done until then stays.
pub fn repair() -> Result<Vec<PathBuf>, Failure> {
    let mut repaired = Vec::new();
    for (path, role) in OWNED {
        let account = accounts::account_of_role(role)?;
        let owner = Owner {
            uid: Uid::from_raw(account.uid.as_raw()),
            gid: Gid::from_raw(account.gid.as_raw()),
        };
        let path = Path::new(path);
        match look(CWD, path) {
            // The daemon of this role makes a missing folder.
            Err(Errno::NOENT) => {}
            found => give(
                found.map_err(std::io::Error::from).at(path)?,
                (path, 0),
                owner,
                &mut repaired,
            )?,
        }
    }
    Ok(repaired)
}

/// Opens a file without access to its contents; of a link, the link itself.
fn look(folder: impl AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// Gives a file, and what is in it if it is a folder, to its owner. `depth`: how deep it lies.
fn give(
    file: OwnedFd,
    (path, depth): (&Path, usize),
    owner: Owner,
    repaired: &mut Vec<PathBuf>,
) -> Result<(), Failure> {
    let failed = |error: Errno| Failure::File {
        path: path.into(),
        error: error.into(),
    };
    let found = rustix::fs::fstat(&file).map_err(failed)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    let is_folder = kind == FileType::Directory;
    if !is_folder && (kind != FileType::RegularFile || found.st_nlink > 1) {
        return Ok(());
    }
    if (found.st_uid, found.st_gid) != (owner.uid.as_raw(), owner.gid.as_raw()) {
        let (uid, gid) = (Some(owner.uid), Some(owner.gid));
        rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH).map_err(failed)?;
        repaired.push(path.into());
    }
    if is_folder && depth == DEEPEST {
        let reason = format!(
            "folders lie deeper than {DEEPEST} here, where no daemon makes any: cannot give what is below to its \
             account; move the folder away or remove it, then run `usher init` again"
        );
        return Err(Failure::of_file(path, reason));
    }
    if is_folder {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&file, ".", flags, Mode::empty()).map_err(failed)?;
        for entry in Dir::read_from(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let name = Path::new(OsStr::from_bytes(name.to_bytes()));
            match look(&folder, name) {
                // The file has just been removed.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(error)),
                Ok(inside) => give(inside, (&path.join(name), depth + 1), owner, repaired)?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn everything_in_a_folder_gets_its_owner_but_no_link_does() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root may give files away");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("log/inner")).unwrap();
        for name in ["outside", "twice", "log/a", "log/inner/b"] {
            std::fs::write(path(name), name).unwrap();
        }
        symlink(path("outside"), path("log/link")).unwrap();
        std::fs::hard_link(path("twice"), path("log/twice")).unwrap();
        let owner = Owner {
            uid: Uid::from_raw(3900),
            gid: Gid::from_raw(3901),
        };
        let all = |repaired: &mut Vec<PathBuf>| {
            let log = path("log");
            let given = give(look(CWD, &log).unwrap(), (&log, 0), owner, repaired);
            repaired.sort();
            given.map_err(|failure| failure.to_string())
        };
        let mut repaired = Vec::new();
        all(&mut repaired).unwrap();
        let expected = ["log", "log/a", "log/inner", "log/inner/b"].map(path);
        assert_eq!(repaired, expected);
        for file in &expected {
            let found = std::fs::metadata(file).unwrap();
            assert_eq!((found.uid(), found.gid()), (3900, 3901), "{file:?}");
        }
        for name in ["outside", "twice"] {
            assert_eq!(std::fs::metadata(path(name)).unwrap().uid(), 0, "{name}");
        }
        // Right owners stay.
        let mut again = Vec::new();
        all(&mut again).unwrap();
        assert!(again.is_empty(), "{again:?}");

        // The folder's account may make folders as deep as it likes.
        let deepest = (0..DEEPEST).fold(path("log"), |above, _| above.join("d"));
        std::fs::create_dir_all(&deepest).unwrap();
        let refused = all(&mut again).unwrap_err();
        assert!(
            refused.contains("/d/d: folders lie deeper than 16 here"),
            "{refused}"
        );
        std::fs::remove_dir(&deepest).unwrap();
        all(&mut again).unwrap();
        assert_eq!(again.len(), DEEPEST, "{again:?}");
    }
}
