//! The files of a policy: those of its folder, and those that they include.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use usher_policy::{Include, PolicyError, Source, includes};

use crate::applied::PolicyFile;
use crate::error::ConfigurationError;
use crate::files::read_bounded;
use crate::paths;

/// Most files that all files of a policy include together.
pub const MAXIMUM_INCLUDED: usize = 256;

/// How deep included files may include others.
pub const MAXIMUM_DEPTH: usize = 16;

/// What was read.
#[derive(Debug, Default)]
pub struct Files {
    /// The given files in their order, then those that are included. No file is there twice, by
    /// whatever path it is named.
    pub sources: Vec<PolicyFile>,
    /// An `include` for each file that cannot be read.
    pub mistakes: Vec<PolicyError>,
}

/// Reads files and what they include. `copy` is where a copy of /etc/usher is when they are of one:
/// what is included is looked for there, and nowhere else.
///
/// # Errors
/// Names the first of the given files that cannot be read.
pub fn read(files: &[PathBuf], copy: Option<&Path>) -> Result<Files, ConfigurationError> {
    let mut read = Files::default();
    let mut seen = BTreeSet::new();
    let mut pending = Vec::new();
    for path in files {
        let text = read_bounded(path)?;
        // What was just read can be found.
        if seen.insert(std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())) {
            read.add(path, text, &mut pending);
        }
    }
    let (mut depth, mut included) = (0, 0);
    while !pending.is_empty() {
        depth += 1;
        for (folder, include) in std::mem::take(&mut pending) {
            let found = find(&folder, &include, copy).and_then(|path| {
                let whole = std::fs::canonicalize(&path).map_err(|error| error.to_string())?;
                if seen.contains(&whole) {
                    return Ok(None);
                }
                if depth > MAXIMUM_DEPTH {
                    return Err(format!("files are included more than {MAXIMUM_DEPTH} deep"));
                }
                if included == MAXIMUM_INCLUDED {
                    return Err(format!("more than {MAXIMUM_INCLUDED} files are included"));
                }
                // A pipe would be waited for, and a device has no end.
                if !whole.is_file() {
                    return Err("it is not a file".to_owned());
                }
                let text = read_bounded(&whole).map_err(|error| error.to_string())?;
                seen.insert(whole);
                Ok(Some((path, text)))
            });
            match found {
                Ok(Some((path, text))) => {
                    included += 1;
                    read.add(&path, text, &mut pending);
                }
                Ok(None) => {}
                Err(reason) => read.mistakes.push(include.unreadable(reason)),
            }
        }
    }
    Ok(read)
}

impl Files {
    fn add(&mut self, path: &Path, text: String, pending: &mut Vec<(PathBuf, Include)>) {
        let source = Source {
            name: path.display().to_string(),
            text,
        };
        let folder = path.parent().unwrap_or(Path::new("/"));
        let found = includes(&source).into_iter();
        pending.extend(found.map(|include| (folder.to_owned(), include)));
        self.sources.push(PolicyFile {
            name: source.name,
            text: source.text,
        });
    }
}

/// Where an included file is to be read.
fn find(folder: &Path, include: &Include, copy: Option<&Path>) -> Result<PathBuf, String> {
    let Some(copy) = copy else {
        return Ok(folder.join(&include.path));
    };
    let path = Path::new(&include.path);
    let path = match path.is_absolute() {
        false => folder.join(path),
        true => match path.strip_prefix(paths::CONFIGURATION_DIRECTORY) {
            Ok(below) => copy.join(below),
            Err(_) => return Err(not_in_the_copy()),
        },
    };
    let below = path.strip_prefix(copy).map_err(|_| not_in_the_copy())?;
    let mut depth = 0_usize;
    for component in below.components() {
        depth = match component {
            Component::ParentDir => depth.checked_sub(1).ok_or_else(not_in_the_copy)?,
            Component::Normal(_) => depth + 1,
            _ => depth,
        };
    }
    Ok(path)
}

fn not_in_the_copy() -> String {
    let whole = paths::CONFIGURATION_DIRECTORY;
    format!("it is not below {whole}, so a copy of {whole} does not have it")
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
    fn what_is_included_is_read_once_however_often_and_by_whatever_path() {
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
        let found = read(&files, None).unwrap();
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
    fn what_cannot_be_read_is_a_mistake_of_the_statement_and_too_many_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let told = |text: &str| {
            std::fs::write(path("a.policy"), text).unwrap();
            reasons(&read(&[path("a.policy")], None).unwrap())
        };
        assert_eq!(told("users u { }"), [""; 0]);
        let missing = told("users u { }\n  include \"missing\";");
        assert!(
            missing[0].contains("a.policy:2:3: missing cannot be included: "),
            "{missing:?}"
        );
        assert!(told("include \"/dev/zero\";")[0].ends_with("it is not a file"));
        assert!(told("include \".\";")[0].ends_with("it is not a file"));
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
        std::fs::write(path("outside"), "").unwrap();
        std::fs::write(path("host/inside"), "").unwrap();
        let read_copy = |include: &str| {
            let text = format!("include \"{include}\";");
            std::fs::write(path("host/policy.d/a.policy"), text).unwrap();
            read(&[path("host/policy.d/a.policy")], Some(&path("host"))).unwrap()
        };
        for inside in [
            "../inside",
            "/etc/usher/inside",
            "/etc/usher/policy.d/../inside",
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
        ] {
            let found = read_copy(outside);
            assert_eq!(found.sources.len(), 1, "{outside}");
            assert!(
                reasons(&found)[0].contains("it is not below /etc/usher"),
                "{outside}"
            );
        }
    }
}
