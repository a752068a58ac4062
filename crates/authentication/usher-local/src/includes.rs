//! The files of a policy: those of its folder, and those that they include.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use usher_policy::{Include, PolicyError, Source, includes};

use crate::copy::{ConfigurationCopy, open};
use crate::error::ConfigurationError;
use crate::paths;
use crate::reading::{file_error, read_bounded_open, read_open};

/// Limit of files that all files of a policy include together.
pub const MAXIMUM_INCLUDED: usize = 256;

/// Limit of the depth of includes.
pub const MAXIMUM_DEPTH: usize = 16;

/// The files that were read.
#[derive(Debug, Default)]
pub struct Files {
    /// The given files in their order, then the included files. Each file appears once, even under
    /// several paths.
    pub sources: Vec<Source>,
    /// For each file that cannot be read, the place at fault: its `include`, or the first byte of a given
    /// file that is not UTF-8.
    pub mistakes: Vec<PolicyError>,
}

/// Reads files, which `open_given` opens, and the files that they include. If they are in a copy of a
/// host's configuration, `copy` is that copy, and includes are resolved only in it.
///
/// # Errors
/// Names the first of the given files that cannot be opened or is too large.
pub fn read_included(
    files: &[PathBuf],
    open_given: impl Fn(&Path) -> io::Result<File>,
    copy: Option<&ConfigurationCopy>,
) -> Result<Files, ConfigurationError> {
    let mut read = Files::default();
    let mut seen = BTreeSet::new();
    let mut pending = Vec::new();
    for path in files {
        let (file, identity) = open_given(path)
            .and_then(identified)
            .map_err(|error| file_error(path, error))?;
        let bytes = read_open(path, &file)?;
        if seen.insert(identity) {
            match Source::from_utf8(path.display().to_string(), bytes) {
                Ok(source) => read.add(path, source, &mut pending),
                Err(mistake) => read.mistakes.push(*mistake),
            }
        }
    }
    let (mut depth, mut included) = (0, 0);
    while !pending.is_empty() {
        depth += 1;
        for (folder, include) in std::mem::take(&mut pending) {
            let path = place_of_include(&folder, &include, copy);
            let opened = path.and_then(|path| Ok((open(&path, copy).and_then(identified)?, path)));
            let found =
                opened
                    .map_err(|error| error.to_string())
                    .and_then(|((file, identity), path)| {
                        if seen.contains(&identity) {
                            return Ok(None);
                        }
                        if depth > MAXIMUM_DEPTH {
                            return Err(format!(
                                "files are included more than {MAXIMUM_DEPTH} deep"
                            ));
                        }
                        if included == MAXIMUM_INCLUDED {
                            return Err(format!("more than {MAXIMUM_INCLUDED} files are included"));
                        }
                        let text =
                            read_bounded_open(&path, &file).map_err(|error| error.to_string())?;
                        seen.insert(identity);
                        Ok(Some((path, text)))
                    });
            match found {
                Ok(Some((path, text))) => {
                    included += 1;
                    let name = path.display().to_string();
                    read.add(&path, Source { name, text }, &mut pending);
                }
                Ok(None) => {}
                Err(reason) => read.mistakes.push(include.unreadable(reason)),
            }
        }
    }
    Ok(read)
}

/// An open file with its file system and inode, which identify it under any path.
fn identified(file: File) -> io::Result<(File, (u64, u64))> {
    let metadata = file.metadata()?;
    Ok((file, (metadata.dev(), metadata.ino())))
}

impl Files {
    fn add(&mut self, path: &Path, source: Source, pending: &mut Vec<(PathBuf, Include)>) {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let found = includes(&source).into_iter();
        pending.extend(found.map(|include| (folder.to_owned(), include)));
        self.sources.push(source);
    }
}

/// The path of an included file. In a copy, the copy stands for /etc/usher. Opening the file checks that
/// the path does not leave the copy.
fn place_of_include(
    folder: &Path,
    include: &Include,
    copy: Option<&ConfigurationCopy>,
) -> io::Result<PathBuf> {
    let path = Path::new(&include.path);
    match copy {
        Some(copy) if path.is_absolute() => path
            .strip_prefix(paths::CONFIGURATION_DIRECTORY)
            .map(|below| copy.folder().join(below))
            .map_err(|_| copy.leads_out()),
        _ => Ok(folder.join(path)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(files: &Files, folder: &Path) -> Vec<String> {
        let names = files.sources.iter();
        names
            .map(|file| {
                let name = Path::new(&file.name).strip_prefix(folder);
                name.unwrap().display().to_string()
            })
            .collect()
    }

    fn reasons(files: &Files) -> Vec<String> {
        files.mistakes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_included_twice_by_any_path_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
        std::fs::create_dir(path("sub")).unwrap();
        write(
            "a.policy",
            "include \"sub/c\"; include \"b.policy\"; include \"./sub/../sub/c\";",
        );
        write("b.policy", "include \"a.policy\";");
        write(
            "sub/c",
            "include \"d\"; include \"link\"; include \"c\"; include \"../loop\";",
        );
        write(
            "sub/d",
            &format!("include \"{}\";", path("sub/c").display()),
        );
        symlink(path("b.policy"), path("sub/link")).unwrap();
        symlink(path("loop"), path("loop")).unwrap();
        write("sub/d~", "left by an editor");
        let files = [path("a.policy"), path("b.policy")];
        let found = read_included(&files, |path| open(path, None), None).unwrap();
        let expected = ["a.policy", "b.policy", "sub/c", "sub/d"];
        assert_eq!(names(&found, folder.path()), expected);
        let told = reasons(&found);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("sub/c:1:43: ../loop cannot be included: "),
            "{told:?}"
        );
    }

    #[test]
    fn an_unreadable_or_excessive_include_is_a_mistake() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let told = |text: &str| {
            std::fs::write(path("a.policy"), text).unwrap();
            reasons(&read_included(&[path("a.policy")], |path| File::open(path), None).unwrap())
        };
        assert_eq!(told("users u { }"), [""; 0]);
        let missing = told("users u { }\n  include \"missing\";");
        assert!(
            missing[0].contains("a.policy:2:3: missing cannot be included: "),
            "{missing:?}"
        );
        assert!(told("include \"/dev/zero\";")[0].ends_with("not a regular file"));
        assert!(told("include \".\";")[0].ends_with("not a regular file"));
        std::fs::write(path("binary"), b"\xff").unwrap();
        assert!(told("include \"binary\";")[0].ends_with("not UTF-8"));
        for number in 0..300 {
            std::fs::write(path(&number.to_string()), "").unwrap();
        }
        let text: String = (0..300)
            .map(|number| format!("include \"{number}\";"))
            .collect();
        let many = told(&text);
        assert_eq!(many.len(), 300 - MAXIMUM_INCLUDED);
        assert!(
            many[0].ends_with("more than 256 files are included"),
            "{many:?}"
        );
        for number in 0..=20 {
            let next = format!("include \"{}\";", number + 1);
            std::fs::write(path(&number.to_string()), next).unwrap();
        }
        let deep = told("include \"0\";");
        assert!(
            deep[0].ends_with("files are included more than 16 deep"),
            "{deep:?}"
        );
        assert!(deep[0].contains("/15:1:1: "), "{deep:?}");
    }

    #[test]
    fn a_copy_is_not_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("host/policy.d")).unwrap();
        std::fs::write(path("outside"), "secret").unwrap();
        std::fs::write(path("host/inside"), "").unwrap();
        symlink("../inside", path("host/policy.d/link")).unwrap();
        symlink("..", path("host/policy.d/up")).unwrap();
        symlink(path("outside"), path("host/policy.d/absolute")).unwrap();
        symlink("../../outside", path("host/policy.d/relative")).unwrap();
        symlink("../..", path("host/policy.d/folder")).unwrap();
        symlink("/proc/self/cwd", path("host/policy.d/magic")).unwrap();
        let read_copy = |include: &str| {
            let text = format!("include \"{include}\";");
            std::fs::write(path("host/policy.d/a.policy"), text).unwrap();
            let copy = ConfigurationCopy::open(&path("host")).unwrap();
            let files = [path("host/policy.d/a.policy")];
            read_included(&files, |path| open(path, Some(&copy)), Some(&copy)).unwrap()
        };
        for inside in [
            "../inside",
            "/etc/usher/inside",
            "/etc/usher/policy.d/../inside",
            "link",
            "/etc/usher/policy.d/link",
            "up/inside",
        ] {
            let found = read_copy(inside);
            assert_eq!(
                (found.sources.len(), reasons(&found)),
                (2, vec![]),
                "{inside}"
            );
        }
        for outside in [
            "../../outside",
            "/etc/passwd",
            "/etc/usher/../passwd",
            "/etc/usherx",
            "../../host/inside",
            "absolute",
            "relative",
            "folder/outside",
            "magic/x",
        ] {
            let found = read_copy(outside);
            assert_eq!(found.sources.len(), 1, "{outside}");
            let told = reasons(&found);
            assert!(told[0].contains("it leads out of "), "{outside}: {told:?}");
        }
    }
}
