//! The files of /etc/usher, or of a copy of a host's. Another person may have filled a copy, so its links and
//! includes never lead outside.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::error::ConfigurationError;
use crate::paths;
use crate::reading::{file_error, optional, read_open, text_of_file};
use usher_daemon::files::{file_flags, folder_flags, only_file};

/// How often a path with `..` is resolved again after a concurrent rename (openat2(2)).
const ATTEMPTS: usize = 64;

/// The open folder of a copy.
#[derive(Debug)]
pub struct ConfigurationCopy {
    folder: PathBuf,
    descriptor: OwnedFd,
}

impl ConfigurationCopy {
    /// Opens a copy. The folder itself may be a link, as its caller chose it.
    ///
    /// # Errors
    /// When it is not a folder or cannot be opened.
    pub fn open(folder: &Path) -> Result<Self, ConfigurationError> {
        let descriptor = openat(CWD, folder, folder_flags(), Mode::empty());
        Ok(Self {
            folder: folder.to_owned(),
            descriptor: descriptor.map_err(|error| file_error(folder, error.into()))?,
        })
    }

    /// The copy's path.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the copy has this folder.
    ///
    /// # Errors
    /// When the entry is not a folder or cannot be opened.
    pub fn has_folder(&self, name: &str) -> Result<bool, ConfigurationError> {
        let path = self.folder.join(name);
        let opened = self.open_beneath(&path, folder_flags());
        Ok(optional(opened.map_err(|error| file_error(&path, error)))?.is_some())
    }

    /// The text of this file; none if it does not exist.
    ///
    /// # Errors
    /// As [`crate::reading::read_bounded`]; when it is not a file.
    pub fn text(&self, name: &str) -> Result<Option<String>, ConfigurationError> {
        optional(read_in(&self.folder.join(name), Some(self)))
    }

    /// Opens a path in the copy. Links are followed within it, by relative paths.
    pub(crate) fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let below = path
            .strip_prefix(&self.folder)
            .map_err(|_| self.leads_out())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut opened = Err(Errno::AGAIN);
        for _ in 0..ATTEMPTS {
            opened = openat2(&self.descriptor, below, flags, Mode::empty(), resolve);
            if opened.as_ref().err() != Some(&Errno::AGAIN) {
                break;
            }
        }
        opened.map(File::from).map_err(|error| match error {
            Errno::XDEV => self.leads_out(),
            error => error.into(),
        })
    }

    /// The error of a path that leaves the folder, itself or by links.
    pub(crate) fn leads_out(&self) -> io::Error {
        io::Error::other(format!(
            "it leads out of {}, a copy of {}; put its target into the copy",
            self.folder.display(),
            paths::CONFIGURATION_DIRECTORY
        ))
    }
}

/// The policy files of a folder (`*.policy`), in the order of their names. `copy` is the copy that the
/// folder belongs to, if any.
///
/// # Errors
/// When the folder exists and cannot be read.
pub fn policy_files(
    directory: &Path,
    copy: Option<&ConfigurationCopy>,
) -> Result<Vec<PathBuf>, ConfigurationError> {
    let mut files = sorted(directory, copy)?;
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "policy")
    });
    Ok(files)
}

/// The entries of a folder, in the order of their names; none if it does not exist.
pub(crate) fn sorted(
    directory: &Path,
    copy: Option<&ConfigurationCopy>,
) -> Result<Vec<PathBuf>, ConfigurationError> {
    let opened = open_with(directory, folder_flags(), copy);
    let opened = opened.map_err(|error| file_error(directory, error));
    let Some(folder) = optional(opened)? else {
        return Ok(Vec::new());
    };
    let failed = |error: rustix::io::Errno| file_error(directory, error.into());
    let mut found = Vec::new();
    for entry in Dir::new(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if ![&b"."[..], b".."].contains(&name) {
            found.push(directory.join(OsStr::from_bytes(name)));
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a text file of the configuration, or of a copy of one. Unlike [`crate::reading::read_bounded`] it refuses pipes and
/// devices, and so never waits.
pub(crate) fn read_in(
    path: &Path,
    copy: Option<&ConfigurationCopy>,
) -> Result<String, ConfigurationError> {
    text_of_file(path, read_bytes(path, copy)?)
}

pub(crate) fn read_bytes(
    path: &Path,
    copy: Option<&ConfigurationCopy>,
) -> Result<Vec<u8>, ConfigurationError> {
    let file = open(path, copy).map_err(|error| file_error(path, error))?;
    read_open(path, &file)
}

/// Opens a regular file or /dev/null, to which administrators link files that should be empty. A pipe could
/// make the caller wait, and other devices have no end.
pub(crate) fn open(path: &Path, copy: Option<&ConfigurationCopy>) -> io::Result<File> {
    only_file(open_with(path, file_flags(), copy)?)
}

fn open_with(path: &Path, flags: OFlags, copy: Option<&ConfigurationCopy>) -> io::Result<File> {
    match copy {
        Some(copy) => copy.open_beneath(path, flags),
        None => Ok(openat(CWD, path, flags, Mode::empty())?.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::applied::Applied;
    use crate::collect::tests::tree;

    fn collect(host: &Path) -> Result<Applied, ConfigurationError> {
        let copy = ConfigurationCopy::open(host).unwrap();
        Applied::collect(host, Some(&copy))
    }

    #[test]
    fn a_link_that_leads_out_of_a_copy_is_refused_by_name() {
        let (host, outside) = (tree(), tempfile::tempdir().unwrap());
        for folder in [host.path(), outside.path()] {
            std::fs::create_dir_all(folder.join("real/folder")).unwrap();
            std::fs::write(folder.join("real/file"), "").unwrap();
        }
        let beside = Path::new("..").join(outside.path().file_name().unwrap());
        for (link, target) in [
            ("policy.d/site.policy", "real/file"),
            ("policy.d", "real/folder"),
            ("revoked_keys", "real/file"),
            ("user_ca_keys", "real/file"),
            ("users/alice/authorized_keys", "real/file"),
            ("users/alice/authorized_keys.mail", "real/file"),
            ("users/alice/disabled", "real/file"),
            ("users/bob", "real/folder"),
            ("users", "real/folder"),
        ] {
            let place = host.path().join(link);
            let _ = std::fs::remove_dir_all(&place);
            let up: PathBuf = "../".repeat(link.matches('/').count()).into();
            symlink(up.join(target), &place).unwrap();
            collect(host.path()).unwrap();
            for elsewhere in [outside.path().to_owned(), up.join(&beside)] {
                std::fs::remove_file(&place).unwrap();
                symlink(elsewhere.join(target), &place).unwrap();
                assert!(place.exists(), "{link}");
                let refused = collect(host.path()).unwrap_err().to_string();
                let named = refused.starts_with(place.to_str().unwrap());
                let said = refused.contains(": it leads out of ");
                assert!(named && said, "{link}: {refused}");
            }
            std::fs::remove_file(&place).unwrap();
        }
    }

    #[test]
    fn a_copy_distinguishes_its_own_files_from_missing_ones() {
        let host = tree();
        let path = |name: &str| host.path().join(name);
        std::fs::write(path("groups"), "ops:x:70:\n").unwrap();
        symlink("groups", path("inside")).unwrap();
        symlink("/etc/passwd", path("passwd")).unwrap();
        symlink("/etc", path("etc")).unwrap();
        let copy = ConfigurationCopy::open(host.path()).unwrap();
        assert_eq!(copy.text("groups").unwrap().unwrap(), "ops:x:70:\n");
        assert_eq!(copy.text("inside").unwrap().unwrap(), "ops:x:70:\n");
        assert_eq!(copy.text("missing").unwrap(), None);
        assert!(copy.text("passwd").is_err() && copy.text("etc/passwd").is_err());
        assert!(copy.has_folder("users").unwrap());
        assert!(!copy.has_folder("missing").unwrap());
        assert!(copy.has_folder("etc").is_err());
        assert!(ConfigurationCopy::open(&path("missing")).is_err());
    }

    #[test]
    fn only_files_are_read_and_dev_null_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        std::os::unix::fs::symlink("/dev/null", path("null")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, path("pipe"), fifo, Mode::RUSR, 0).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        assert_eq!(read_in(&path("file"), None).unwrap(), "text");
        assert_eq!(read_in(&path("null"), None).unwrap(), "");
        for other in ["device", "pipe", "folder"] {
            let refused = read_in(&path(other), None).unwrap_err().to_string();
            let said = format!("{other}: not a regular file");
            assert!(refused.ends_with(&said), "{refused}");
        }
    }
}
