//! Files that are replaced atomically.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fsync, makedev, openat, renameat, unlinkat};

/// Replaces a file by rename, so that a reader sees the old or the new text and nothing between, also
/// after a power cut. A link at its path is replaced, not followed, so that other writers of the folder
/// cannot redirect it.
///
/// # Errors
/// The system's error; the old file is then untouched.
pub fn write_atomically(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    write_file(path, bytes, mode, None)
}

/// As [`write_atomically`], for a file that belongs to an account. No other account can read it at any
/// time.
///
/// # Errors
/// As [`write_atomically`]; when this process may not give files away.
pub fn write_atomically_for(path: &Path, bytes: &[u8], mode: u32, owner: Owner) -> io::Result<()> {
    write_file(path, bytes, mode, Some(owner))
}

/// The owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The account's user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl Owner {
    fn of(file: &Metadata) -> Self {
        let (uid, gid) = (file.uid(), file.gid());
        Self { uid, gid }
    }
}

fn write_file(path: &Path, bytes: &[u8], mode: u32, owner: Option<Owner>) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    let folder = openat(CWD, parent, folder_flags(), Mode::empty())?;
    let name = path.file_name().unwrap_or_default();
    replace(&folder, name, bytes, mode, owner)
}

/// A file whose text is replaced and whose attributes stay. Its folder stays open, and the file is
/// replaced in it, even if a folder of the path is renamed meanwhile.
#[derive(Debug)]
pub struct Rewritable {
    folder: OwnedFd,
    name: OsString,
    former: Metadata,
}

impl Rewritable {
    /// Opens a file to read its text, and follows links to it.
    ///
    /// # Errors
    /// The system's error; when not a regular file.
    pub fn open(path: &Path) -> io::Result<(Self, File)> {
        let place = path.canonicalize()?;
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let folder = openat(CWD, parent, folder_flags(), Mode::empty())?;
        let flags = file_flags() | OFlags::NOFOLLOW;
        let file = only_file(openat(&folder, name, flags, Mode::empty())?.into())?;
        let found = Self {
            folder,
            name: name.to_owned(),
            former: file.metadata()?,
        };
        Ok((found, file))
    }

    /// Replaces the file as [`write_atomically`] does, and keeps its mode and its owner.
    ///
    /// # Errors
    /// As [`write_atomically`]; also when this process may not give the owner a file.
    pub fn rewrite(&self, bytes: &[u8]) -> io::Result<()> {
        let (mode, owner) = (self.former.mode() & 0o777, Owner::of(&self.former));
        replace(&self.folder, &self.name, bytes, mode, Some(owner))
    }
}

/// Replaces a name in a folder by a new file.
fn replace(
    folder: &OwnedFd,
    name: &OsStr,
    bytes: &[u8],
    mode: u32,
    owner: Option<Owner>,
) -> io::Result<()> {
    // The temporary name cannot be guessed, and must not exist.
    let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    let mut fresh = OsString::from(".");
    fresh.push(name);
    fresh.push(format!(".new-{random:016x}"));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(folder, &fresh, flags, Mode::RUSR | Mode::WUSR)?.into();
    let replaced =
        fill(file, bytes, mode, owner).and_then(|()| Ok(renameat(folder, &fresh, folder, name)?));
    if replaced.is_err() {
        // The error of `replaced` is returned, not that of unlinkat(2).
        let _ = unlinkat(folder, &fresh, AtFlags::empty());
    }
    replaced?;
    Ok(fsync(folder)?)
}

fn fill(mut file: File, bytes: &[u8], mode: u32, owner: Option<Owner>) -> io::Result<()> {
    file.write_all(bytes)?;
    let own = Owner::of(&file.metadata()?);
    if let Some(Owner { uid, gid }) = owner.filter(|&owner| owner != own) {
        std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

/// Removes a file, if it is there.
///
/// # Errors
/// As unlink(2).
pub fn remove_if_there(path: impl AsRef<Path>) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The file, if it is a regular one or /dev/null.
///
/// # Errors
/// When it is anything else.
pub fn only_file(file: File) -> io::Result<File> {
    let metadata = file.metadata()?;
    let is_null = metadata.file_type().is_char_device() && metadata.rdev() == makedev(1, 3);
    if metadata.is_file() || is_null {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// Flags for opening a path that may not be a regular file.
#[must_use]
pub fn file_flags() -> OFlags {
    OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK
}

/// Flags for opening folders.
#[must_use]
pub fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_rewritten_in_the_folder_in_which_it_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let names = |name: &str| {
            let entries = std::fs::read_dir(path(name)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<Vec<_>>()
        };
        for name in ["user", "roots"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("user/file"), "old").unwrap();
        std::fs::set_permissions(path("user/file"), Permissions::from_mode(0o640)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path("user/file"), Some(1), Some(2)).unwrap();
        }
        let former = std::fs::metadata(path("user/file")).unwrap();
        let (file, opened) = Rewritable::open(&path("user/file")).unwrap();
        assert_eq!(io::read_to_string(opened).unwrap(), "old");
        file.rewrite(b"new").unwrap();
        // The owner of the file's folder puts another folder in its place.
        std::fs::rename(path("user"), path("elsewhere")).unwrap();
        std::os::unix::fs::symlink(path("roots"), path("user")).unwrap();
        file.rewrite(b"newer").unwrap();
        assert_eq!(names("roots"), [""; 0]);
        assert_eq!(names("elsewhere"), ["file"]);
        let written = std::fs::metadata(path("elsewhere/file")).unwrap();
        let of = |file: &Metadata| (file.uid(), file.gid(), file.mode());
        assert_eq!(of(&written), of(&former));
        let text = std::fs::read_to_string(path("elsewhere/file")).unwrap();
        assert_eq!(text, "newer");
    }

    #[test]
    fn a_file_is_made_anothers_and_may_be_refused_to_all_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let own = Owner::of(&std::fs::metadata(folder.path()).unwrap());
        let owner = if rustix::process::geteuid().is_root() {
            Owner { uid: 1, gid: 2 }
        } else {
            own
        };
        write_atomically_for(&path, b"old", 0o644, own).unwrap();
        write_atomically_for(&path, b"new", 0o400, owner).unwrap();
        let written = std::fs::metadata(&path).unwrap();
        assert_eq!(Owner::of(&written), owner);
        assert_eq!(written.mode() & 0o7777, 0o400);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_link_in_a_files_place_is_replaced_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "old").unwrap();
        std::fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write_atomically(&link, b"new", 0o644).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o7777, 0o600);
        let written = std::fs::symlink_metadata(&link).unwrap();
        assert!(written.is_file() && written.mode() & 0o7777 == 0o644);
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "new");
        // No temporary file is left, also when the new file cannot be put in place.
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        write_atomically(&folder.path().join("folder"), b"new", 0o644).unwrap_err();
        let left = std::fs::read_dir(folder.path()).unwrap();
        assert!(
            !left
                .flatten()
                .any(|entry| entry.file_name().to_string_lossy().contains(".new-"))
        );
    }
}
