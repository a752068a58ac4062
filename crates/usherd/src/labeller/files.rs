//! Modules from files: `NAME.bpf.o` in a folder that belongs to root.
//!
//! libbpf and the kernel work on such a file with the labeller's privileges. So only root may be able to
//! write or to replace it: the file, and each folder on the way to it, belongs to root, can be written by
//! root only, and is no link. The file is read once; everything that follows gets the bytes that were
//! checked.

use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use usher_mac::{MAX_MODULE_SIZE, Module, NotAModule, is_module_name};
use usher_system::roots_file::{RootsFileError, open_folder, read_in, unreadable};

/// The end of a file's name, after the module's.
const ENDING: &str = ".bpf.o";
/// Limit of listed files. Files beyond it can be loaded, too.
const MAX_LISTED: usize = 64;

/// A reason that the file of a module is not used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Unreadable, or not root's alone.
    #[error(transparent)]
    Roots(#[from] RootsFileError),
    /// Not an object file of a module for this version.
    #[error("{path}: {reason}")]
    NotAModule {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: NotAModule,
    },
    /// A module whose statements the policy cannot tell from its own.
    #[error(
        "{path}: the module has the statement `{keyword}`, a word that begins something else in the policy; \
         compile it with another name for this member of its settings"
    )]
    Taken {
        /// The file.
        path: PathBuf,
        /// The word.
        keyword: String,
    },
    /// The module's name in the file is not the name of the file.
    #[error("{path} declares the module {declared}; name the file {declared}{ENDING}")]
    OtherName {
        /// The file.
        path: PathBuf,
        /// The module.
        declared: String,
    },
}

/// A module from a file.
#[derive(Debug)]
pub(super) struct ModuleFile {
    pub(super) module: Module,
    /// SHA-256 of the file, in hexadecimal digits.
    pub(super) digest: String,
}

/// The folder of modules. It need not be there.
#[derive(Debug)]
pub(super) struct ModuleFolder {
    path: PathBuf,
}

impl ModuleFolder {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.into() }
    }

    /// The file of a module.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}{ENDING}"))
    }

    /// Whether root has put anything at the path of a module's file; false if others can write the folder.
    pub(super) fn has(&self, name: &str) -> Result<bool, FileError> {
        let Ok(Some(folder)) = open_folder(&self.path) else {
            return Ok(false);
        };
        match statat(
            &folder,
            format!("{name}{ENDING}"),
            AtFlags::SYMLINK_NOFOLLOW,
        ) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(unreadable(&self.path(name))(error).into()),
        }
    }

    /// The names of the modules in the folder, sorted, at most [`MAX_LISTED`]; and the number of module files
    /// left out.
    pub(super) fn names(&self) -> Result<(Vec<String>, usize), FileError> {
        let Some(folder) = open_folder(&self.path)? else {
            return Ok((Vec::new(), 0));
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = openat(&folder, ".", flags, Mode::empty());
        let entries = listed.and_then(Dir::new).map_err(unreadable(&self.path))?;
        let (mut names, mut others) = (Vec::new(), 0);
        for entry in entries {
            let entry = entry.map_err(unreadable(&self.path))?;
            let file = entry.file_name().to_string_lossy();
            match file.strip_suffix(ENDING) {
                Some(name) if is_module_name(name) => names.push(name.to_owned()),
                Some(_) => others += 1,
                None => {}
            }
        }
        names.sort_unstable();
        others += names.len().saturating_sub(MAX_LISTED);
        names.truncate(MAX_LISTED);
        Ok((names, others))
    }

    /// Reads the module of this name, which must be a possible name. `None` if there is no file.
    pub(super) fn read(&self, name: &str) -> Result<Option<ModuleFile>, FileError> {
        let path = self.path(name);
        let Some(folder) = open_folder(&self.path)? else {
            return Ok(None);
        };
        let file = format!("{name}{ENDING}");
        // Read one byte more than a module may have, so that a larger file is refused for its size.
        let Some(bytes) = read_in(&folder, &file, &path, MAX_MODULE_SIZE + 1)? else {
            return Ok(None);
        };
        let digest = digest(&SHA256, &bytes);
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        let digest = digits.collect();
        let module = match Module::from_object(bytes) {
            Err(reason) => return Err(FileError::NotAModule { path, reason }),
            Ok(module) => module,
        };
        if module.name() != name {
            let declared = module.name().to_owned();
            return Err(FileError::OtherName { path, declared });
        }
        let mut keywords = module.statements().iter().map(|one| &one.keyword);
        if let Some(taken) = keywords.find(|keyword| usher_policy::begins_outside(keyword)) {
            let keyword = taken.clone();
            return Err(FileError::Taken { path, keyword });
        }
        Ok(Some(ModuleFile { module, digest }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use tempfile::TempDir;

    use super::*;

    /// The object file of the module `none`.
    fn sample() -> Vec<u8> {
        Module::none().object().to_vec()
    }

    /// A folder with the sample. Only root can write the folder, and those on the way to it.
    fn folder() -> Option<(ModuleFolder, TempDir)> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root's files are modules");
            return None;
        }
        let made = tempfile::tempdir_in("/run").unwrap();
        fs::set_permissions(made.path(), Permissions::from_mode(0o755)).unwrap();
        let folder = ModuleFolder::new(&made.path().join("mac"));
        fs::create_dir(&folder.path).unwrap();
        fs::write(folder.path("none"), sample()).unwrap();
        Some((folder, made))
    }

    fn reason(folder: &ModuleFolder) -> String {
        folder.read("none").unwrap_err().to_string()
    }

    #[test]
    fn a_module_of_roots_is_read_and_listed() {
        let Some((folder, _made)) = folder() else {
            return;
        };
        let read = folder.read("none").unwrap().unwrap();
        assert_eq!((read.module.name(), read.digest.len()), ("none", 64));
        fs::write(folder.path.join("README"), "").unwrap();
        assert_eq!(folder.names().unwrap(), (vec!["none".to_owned()], 0));
        assert!(folder.has("none").unwrap() && !folder.has("other").unwrap());
        // Where others can write, a file is no reason to refuse a built-in module.
        fs::set_permissions(&folder.path, Permissions::from_mode(0o777)).unwrap();
        assert!(!folder.has("none").unwrap());
        fs::set_permissions(&folder.path, Permissions::from_mode(0o755)).unwrap();
        assert!(folder.read("other").unwrap().is_none());
        let nowhere = ModuleFolder::new(Path::new("/usr/lib/usher-nowhere/mac"));
        assert!(nowhere.read("none").unwrap().is_none());
        assert_eq!(nowhere.names().unwrap(), (Vec::new(), 0));
    }

    // Threat model: M14
    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let Some((folder, _made)) = folder() else {
            return;
        };
        let path = folder.path("none");
        for mode in [0o664, 0o646] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let reason = reason(&folder);
            assert!(
                reason.contains("others than root can write") && reason.contains("install -m 644")
            );
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(3900), None).unwrap();
        assert!(reason(&folder).contains("belongs to uid 3900"));
        chown(&path, Some(0), Some(3900)).unwrap();
        assert!(folder.read("none").unwrap().is_some());
    }

    // Threat model: M14
    #[test]
    fn a_folder_on_the_way_that_others_can_write_is_refused() {
        let Some((folder, _made)) = folder() else {
            return;
        };
        for above in [&*folder.path, folder.path.parent().unwrap()] {
            fs::set_permissions(above, Permissions::from_mode(0o775)).unwrap();
            let told = reason(&folder);
            assert!(
                told.starts_with(&format!("others than root can write {} ", above.display())),
                "{told}"
            );
            assert!(folder.names().is_err());
            fs::set_permissions(above, Permissions::from_mode(0o755)).unwrap();
            chown(above, Some(3900), None).unwrap();
            assert!(reason(&folder).contains("belongs to uid 3900"));
            chown(above, Some(0), None).unwrap();
            assert!(folder.read("none").unwrap().is_some());
        }
    }

    // Threat model: M14
    #[test]
    fn a_link_is_refused_wherever_it_is() {
        let Some((folder, _made)) = folder() else {
            return;
        };
        let (path, aside) = (folder.path("none"), folder.path("aside"));
        fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        assert!(reason(&folder).contains("is a symbolic link"));
        fs::rename(&aside, &path).unwrap();
        assert!(folder.read("none").unwrap().is_some());
        let aside = folder.path.with_file_name("aside");
        fs::rename(&folder.path, &aside).unwrap();
        symlink(&aside, &folder.path).unwrap();
        let told = reason(&folder);
        assert!(
            told.starts_with(&format!("{} is a symbolic", folder.path.display())),
            "{told}"
        );
    }

    #[test]
    fn what_is_no_file_or_too_large_is_refused() {
        let Some((folder, _made)) = folder() else {
            return;
        };
        let path = folder.path("none");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(reason(&folder).contains("is not a regular file"));
        fs::remove_dir(&path).unwrap();
        let mut large = sample();
        large.resize(MAX_MODULE_SIZE, 0);
        fs::write(&path, &large).unwrap();
        assert!(folder.read("none").unwrap().is_some());
        large.push(0);
        fs::write(&path, &large).unwrap();
        assert!(reason(&folder).contains("a module has at most 1048576"));
    }

    #[test]
    fn the_name_in_the_file_is_the_files_name() {
        let Some((folder, _made)) = folder() else {
            return;
        };
        fs::copy(folder.path("none"), folder.path("other")).unwrap();
        let told = folder.read("other").unwrap_err().to_string();
        assert!(
            told.ends_with("declares the module none; name the file none.bpf.o"),
            "{told}"
        );
    }

    #[test]
    fn more_files_than_the_limit_are_not_listed() {
        let Some((folder, _made)) = folder() else {
            return;
        };
        for number in 1..MAX_LISTED {
            fs::write(folder.path(&format!("m{number}")), "").unwrap();
        }
        let (names, others) = folder.names().unwrap();
        assert_eq!((names.len(), others), (MAX_LISTED, 0));
        fs::write(folder.path("zero"), "").unwrap();
        fs::write(folder.path("No\u{1b}Name"), "").unwrap();
        let (names, others) = folder.names().unwrap();
        assert_eq!((names.len(), others), (MAX_LISTED, 2));
    }
}
