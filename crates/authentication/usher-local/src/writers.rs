//! Finds other accounts that may write the configuration's files, as sshd's StrictModes does for users'
//! files. It only warns, because a group may keep policies in a repository. The check comes after the files
//! were read: it finds a lasting state, not a race.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{Metadata, symlink_metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::process::geteuid;

use crate::applied::Applied;
use crate::keys::LIST;
use crate::paths;

/// Limit of links that are followed on the way to a file, as by the kernel.
const MAXIMUM_LINKS: usize = 40;

/// Warnings about the files of this host's configuration, and the folders and links on their paths, that
/// an account other than root and the caller may write. Each has its remedy.
#[must_use]
pub fn warnings(applied: &Applied) -> Vec<String> {
    let users = Path::new(paths::USERS_DIRECTORY);
    let mut files: Vec<PathBuf> = [
        paths::POLICY_DIRECTORY,
        paths::USERS_DIRECTORY,
        paths::REVOKED_KEYS,
        paths::USER_AUTHORITIES,
    ]
    .map(PathBuf::from)
    .into();
    files.extend(applied.sources.iter().map(|file| PathBuf::from(&file.name)));
    for (user, entry) in &applied.users {
        let folder = users.join(user.as_str());
        let lists = entry.authorized_keys_for.keys();
        files.extend(lists.map(|purpose| folder.join(format!("{LIST}.{purpose}"))));
        files.push(folder.join(LIST));
        files.push(folder);
    }
    written_by_others(&files)
}

/// Warnings about any files. A missing file counts as its folder.
fn written_by_others(files: &[PathBuf]) -> Vec<String> {
    let mut found: BTreeMap<PathBuf, (Fault, Vec<&Path>)> = BTreeMap::new();
    for file in files {
        for (place, fault) in faults(file) {
            let (_, files) = found.entry(place).or_insert((fault, Vec::new()));
            files.push(file);
        }
    }
    let warnings = found.into_iter();
    warnings
        .map(|(place, (fault, files))| fault.warning(&place, &files))
        .collect()
}

/// The reason why others may write a file.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Another account owns the file.
    Owner(u32),
    /// The file's group may write it.
    Group(u32),
    /// Every account may write the file.
    Everybody,
}

impl Fault {
    fn of(found: &Metadata) -> Option<Self> {
        if !is_trusted(found) {
            Some(Self::Owner(found.uid()))
        } else if found.mode() & 0o002 != 0 {
            Some(Self::Everybody)
        } else if found.mode() & 0o020 != 0 {
            Some(Self::Group(found.gid()))
        } else {
            None
        }
    }

    fn warning(self, place: &Path, files: &[&Path]) -> String {
        let argument = for_shell(place);
        let place_shown = place.display();
        let (who, remedy) = match self {
            Self::Owner(uid) => (format!("its owner (uid {uid})"), "chown -h root"),
            Self::Group(gid) => (format!("its group (gid {gid})"), "chmod g-w"),
            Self::Everybody => ("everybody".to_owned(), "chmod go-w"),
        };
        let others: Vec<&&Path> = files.iter().filter(|file| **file != place).collect();
        let so = match others.as_slice() {
            [] => String::new(),
            [file] => format!(" and so change {}", file.display()),
            [file, more @ ..] => {
                let (file, more) = (file.display(), more.len());
                format!(" and so change {file} and {more} more")
            }
        };
        format!("{place_shown}: {who} may write it{so}: `{remedy} {argument}`")
    }
}

/// Quotes a path as one word for a shell. If the path has characters that are shown as escapes, the word is
/// another path.
fn for_shell(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+,:@%=-".contains(&byte);
    if path.bytes().all(plain) {
        path
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}

/// Whether a file belongs to root or to the caller.
fn is_trusted(found: &Metadata) -> bool {
    found.uid() == 0 || found.uid() == geteuid().as_raw()
}

/// Everything through which others may change a file, from the root of the file system on: the folders
/// that resolve its path, those of links included, and the file.
fn faults(file: &Path) -> Vec<(PathBuf, Fault)> {
    let mut found = Vec::new();
    let mut place = PathBuf::from("/");
    let mut ahead: Vec<OsString> = Vec::new();
    let push = |ahead: &mut Vec<OsString>, path: &Path| {
        let components = path.components().rev();
        ahead.extend(components.map(|component| component.as_os_str().to_owned()));
    };
    push(&mut ahead, file);
    let mut links = 0;
    while let Some(next) = ahead.pop() {
        match Path::new(&next).components().next() {
            Some(Component::RootDir) => place = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                place.pop();
            }
            Some(Component::Normal(name)) => {
                let entry = place.join(name);
                let (folder, there) = (symlink_metadata(&place), symlink_metadata(&entry));
                if let Ok(folder) = &folder {
                    let sticky = folder.mode() & 0o1000 != 0 && is_trusted(folder);
                    match &there {
                        // In a sticky folder an account may change only what it owns.
                        Ok(there) if sticky && !is_trusted(there) => {
                            found.push((entry.clone(), Fault::Owner(there.uid())));
                        }
                        Ok(_) if sticky => {}
                        _ => found.extend(Fault::of(folder).map(|fault| (place.clone(), fault))),
                    }
                }
                let Ok(there) = there else {
                    break;
                };
                if there.is_symlink() {
                    links += 1;
                    let Ok(target) = std::fs::read_link(&entry) else {
                        break;
                    };
                    if links > MAXIMUM_LINKS {
                        break;
                    }
                    push(&mut ahead, &target);
                    continue;
                }
                // A folder is checked with the name that is looked up in it. A device such as /dev/null
                // has no text.
                if ahead.is_empty() && (there.is_file() || there.is_dir()) {
                    found.extend(Fault::of(&there).map(|fault| (entry.clone(), fault)));
                }
                place = entry;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    #[test]
    fn files_that_others_may_write_are_reported_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mode = |name: &str, mode| {
            set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        };
        let told = |name: &str| written_by_others(&[path(name)]);
        create_dir(path("shared")).unwrap();
        write(path("shared/a.policy"), "").unwrap();
        symlink("shared/a.policy", path("link")).unwrap();
        symlink("/dev/null", path("null")).unwrap();
        mode("shared", 0o755);
        let file = path("shared/a.policy").display().to_string();
        let around = format!(
            "../{}/shared/a.policy",
            folder.path().file_name().unwrap().display()
        );
        for (bits, remedy) in [(0o644, ""), (0o664, "chmod g-w"), (0o646, "chmod go-w")] {
            mode("shared/a.policy", bits);
            for name in ["shared/a.policy", "link", &around] {
                let told = told(name).join("\n");
                assert_eq!(told.is_empty(), remedy.is_empty(), "{name}: {told}");
                let mended = told.ends_with(&format!(": `{remedy} {file}`"));
                assert_eq!(mended, !remedy.is_empty(), "{name}: {told}");
            }
        }
        mode("shared/a.policy", 0o644);
        assert_eq!(told("null"), [""; 0]);
        // One warning for a folder, however many of the files are in it. A file that is missing counts, too.
        mode("shared", 0o775);
        let files = ["shared/a.policy", "link", "shared/missing"].map(path);
        let warnings = written_by_others(&files);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let shared = path("shared").display().to_string();
        let gid = symlink_metadata(path("shared")).unwrap().gid();
        let expected = format!(
            "{shared}: its group (gid {gid}) may write it and so change {shared}/a.policy and 2 \
             more: `chmod g-w {shared}`"
        );
        assert_eq!(warnings, [expected]);
        // In a sticky folder, writers can change only their own entries: files in it are safe, missing ones
        // are not.
        mode("shared", 0o1777);
        assert_eq!(told("shared/a.policy"), [""; 0]);
        assert!(told("shared/missing")[0].contains("everybody may write it"));
    }

    #[test]
    fn a_remedy_is_what_a_shell_can_be_given() {
        let folder = tempfile::tempdir().unwrap();
        let told = |name: &str| {
            let path = folder.path().join(name);
            write(&path, "").unwrap();
            set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
            let warning = written_by_others(&[path]).pop().unwrap();
            warning.split('`').nth(1).unwrap().to_owned()
        };
        let remedy = |path: &str| {
            let folder = folder.path().display();
            format!("chmod go-w {}", path.replace("DIR", &folder.to_string()))
        };
        assert_eq!(told("a-1.policy"), remedy("DIR/a-1.policy"));
        for (name, path) in [
            ("two words", "'DIR/two words'"),
            ("$(reboot);", "'DIR/$(reboot);'"),
            ("it's", "'DIR/it'\\''s'"),
        ] {
            assert_eq!(told(name), remedy(path));
        }
        // The path as the shell reads it.
        let path = folder.path().join("it's; $(x)");
        let echoed = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {}", for_shell(&path))])
            .output()
            .unwrap();
        assert_eq!(echoed.stdout, path.to_str().unwrap().as_bytes());
    }

    #[test]
    fn only_files_of_other_accounts_are_reported() {
        if !geteuid().is_root() {
            println!("skipped: gives files to others, which takes root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let told = |name: &str| written_by_others(&[path(name)]).join("\n");
        create_dir(path("sub")).unwrap();
        write(path("sub/file"), "").unwrap();
        set_permissions(path("sub"), Permissions::from_mode(0o1777)).unwrap();
        symlink("file", path("sub/link")).unwrap();
        assert_eq!(told("sub/link"), "");
        for place in ["sub/file", "sub/link", "sub"] {
            lchown(path(place), Some(1), None).unwrap();
            let remedy = format!("`chown -h root {}`", path(place).display());
            let warning = told("sub/link");
            assert!(warning.contains(&remedy), "{place}: {warning}");
            assert!(
                warning.contains("its owner (uid 1) may write it"),
                "{warning}"
            );
            lchown(path(place), Some(0), None).unwrap();
        }
        assert_eq!(told("sub/link"), "");
    }
}
