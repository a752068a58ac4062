//! The specification of the policy: the label that each file should have, and the elements that the labeller
//! sets by itself.
//!
//! Everyday tools lose labels: they write a new file and rename it over the labelled one. The labeller gives
//! the new file elements that the specification has for its path, but only where no module can have held the
//! file's maker to less:
//!
//! - the level of `mls`, where the file has `low` or no level, and its directory a level that dominates the
//!   new one: a process of a lower level does not get into that directory, so an exempt process has made the
//!   file;
//! - another element, where the file lacks it and root alone can make names in the directory. Modules may
//!   restrict a process of root, too, so a level is set only where the directory's level shows that the maker
//!   had it: in `biba` and `lomac` a level that dominates the new one, and for `low` of `mls` the level
//!   `low`;
//! - the type of `te`, where root alone can make names in the directory, no domain can make names in
//!   directories of the directory's type or write files of that type, and no domain can move a directory on
//!   the way. It also replaces a type that the file has inherited from its directory.
//!
//! All else is for `usher mac relabel`, which an administrator runs.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use usher_label::{FileKind, Flavour, Label, Level, Specification, SpecificationSet};
use usher_local::requests::digest_of;
use usher_policy::Policy;
use usher_policy::mac::ModuleSettings;
use usher_policy::mac::te::{MODULE as TE, TypeEnforcement};
use usher_system::roots_file;
use usher_system_label::file::{first_of, kind_of};

use super::error::MacError;
use super::labels;
use super::makers::{
    self, BIBA, LOMAC, MLS, Shared, UNTYPED, is_makers, is_secret, level, shared, type_of,
};
use super::patience::Patience;
use super::tree::Tree;

/// Limit of entry points that are looked at.
const MOST_ENTRY_POINTS: usize = 256;

/// How much of a specification file is read: the most that it may have, and one byte, by which a longer one
/// is noticed.
const LIMIT: usize = (1 << 20) + 1;

/// Questions about types of files, which may time out.
pub(super) type Types = Patience<io::Result<Option<String>>>;

/// A specification in force.
#[derive(Debug)]
pub(super) struct Filing {
    path: String,
    /// SHA-256 of the file as it was read.
    digest: String,
    set: SpecificationSet,
    /// The types that domains reach. `None`: all, because a domain is permissive.
    shared: Option<Shared>,
    /// Paths of programs by which domains are entered, with the type of each.
    entry_points: Vec<(PathBuf, String)>,
}

impl Filing {
    /// Reads the specification that a policy names; `None` if the policy names none.
    ///
    /// # Errors
    /// The file is missing, not root's alone, or has a mistake.
    pub(super) fn read(policy: Option<&Policy>) -> Result<Option<Self>, MacError> {
        let Some((place, path)) = labels::specification(policy) else {
            return Ok(None);
        };
        let refused = |reason: String| MacError::Specification {
            place: place.clone(),
            path: path.to_owned(),
            reason,
        };
        let text = contents(Path::new(path)).map_err(refused)?;
        let digest = digest_of(text.as_bytes());
        let source = usher_policy::Source {
            name: path.to_owned(),
            text,
        };
        let read = Specification::parse(source, Flavour::Labels);
        let read = read.map_err(|found| refused(first_of(found).to_string()))?;
        let te = type_enforcement(policy);
        let entry_points = te.map_or_else(Vec::new, |te| entry_points(&read, te));
        let set = SpecificationSet::new(vec![read]);
        Ok(Some(Self {
            path: path.to_owned(),
            digest,
            set: set.map_err(|mistake| refused(mistake.to_string()))?,
            shared: te.map_or_else(|| Some(Shared::default()), shared),
            entry_points,
        }))
    }

    /// SHA-256 of the file as it was read, in hexadecimal digits.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// The elements that the labeller sets by itself on a file of a tree; `None` if it sets none. `has` is
    /// the file's label.
    ///
    /// # Errors
    /// The file, or a directory on the way to it, cannot be looked at.
    pub(super) fn missing(
        &self,
        tree: &Tree,
        file: BorrowedFd<'_>,
        has: Option<&Label>,
    ) -> io::Result<Option<Label>> {
        let Some(found) = tree.only_path(file)? else {
            return Ok(None);
        };
        let (path, stat, directory) = (found.path, found.stat, found.directory.as_ref());
        let whole = tree.whole(&path);
        let decided = self
            .set
            .decide(
                whole.as_os_str().as_bytes(),
                kind_of(FileType::from_raw_mode(stat.st_mode)),
            )
            .label;
        let Some(wanted) = decided else {
            return Ok(None);
        };
        let mut is_roots = None;
        let mut set = Vec::new();
        for (name, value) in wanted.elements() {
            let of_file = has.and_then(|label| label.value(name.as_ref()));
            let differs = of_file.is_none_or(|of_file| of_file.as_ref() != value.as_ref());
            if !differs {
                continue;
            }
            let mut by_root = || -> io::Result<bool> {
                match is_roots {
                    Some(known) => Ok(known),
                    None => Ok(*is_roots.insert(tree.is_roots_alone(&path, &stat)?)),
                }
            };
            let gets = match (name.as_ref(), of_file) {
                (MLS, None) if level(MLS, value) == Some(Level::Low) => {
                    by_root()? && is_makers(directory, MLS, value)?
                }
                (MLS, of_file) => is_secret(directory, of_file, value)?,
                (TE, of_file) => {
                    by_root()?
                        && makers::is_no_domains(
                            self.shared.as_ref(),
                            tree,
                            &path,
                            directory,
                            of_file,
                        )?
                }
                (name @ (BIBA | LOMAC), None) => by_root()? && is_makers(directory, name, value)?,
                (_, None) => by_root()?,
                (_, Some(_)) => false,
            };
            if gets {
                set.push(format!("{}/{}", name.as_ref(), value.as_ref()));
            }
        }
        if set.is_empty() {
            return Ok(None);
        }
        set.join(",").parse().map(Some).map_err(io::Error::other)
    }

    /// Checks that each program by which a domain is entered has its type.
    ///
    /// # Errors
    /// The first program that lacks its type, or whose type cannot be read.
    pub(super) fn require_entry_points(&self, patience: &Types) -> Result<(), MacError> {
        for (path, wanted) in &self.entry_points {
            let found = patience.ask(&path.to_string_lossy(), {
                let path = path.clone();
                move || type_at(&path)
            });
            let found = match found.and_then(|found| found) {
                Ok(found) => found.unwrap_or_else(|| UNTYPED.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    let path = path.clone();
                    return Err(MacError::EntryPointUnread { path, error });
                }
            };
            if found != *wanted {
                return Err(MacError::EntryPoint {
                    path: path.clone(),
                    found,
                    wanted: wanted.clone(),
                    specification: self.path.clone(),
                });
            }
        }
        Ok(())
    }
}

/// The contents of a file that belongs to root alone.
fn contents(path: &Path) -> Result<String, String> {
    let missing = || "there is no such file; write it, or leave the statement out".to_owned();
    let (Some(folder), Some(name)) = (
        path.parent(),
        path.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(missing());
    };
    let folder = roots_file::open_folder(folder).map_err(|error| error.to_string())?;
    let folder = folder.ok_or_else(missing)?;
    let read = roots_file::read_in(&folder, name, path, LIMIT);
    let read = read.map_err(|error| error.to_string())?;
    String::from_utf8(read.ok_or_else(missing)?).map_err(|error| error.to_string())
}

fn type_enforcement(policy: Option<&Policy>) -> Option<&TypeEnforcement> {
    let mut blocks = policy?.mac.iter();
    blocks.find_map(|block| match &block.settings {
        ModuleSettings::Te(te) => Some(te),
        _ => None,
    })
}

/// The entry points: paths of lines without special characters, whose type is that of a transition's program.
fn entry_points(of: &Specification, te: &TypeEnforcement) -> Vec<(PathBuf, String)> {
    let programs: BTreeSet<String> = te
        .transitions
        .keys()
        .map(|(_, program)| program.to_string())
        .collect();
    let lines = of.entries().iter().filter_map(|entry| {
        let path = entry.literal()?;
        // A later line may decide about the path.
        let decides = of.find(path.as_bytes(), FileKind::Regular)?.line == entry.line;
        let wanted = entry.label.as_ref()?.value(TE)?.as_ref().to_owned();
        (decides && programs.contains(&wanted)).then(|| (path.into(), wanted))
    });
    lines.take(MOST_ENTRY_POINTS).collect()
}

/// The type of the file at a path.
fn type_at(path: &Path) -> io::Result<Option<String>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    type_of(&openat(CWD, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    use std::os::fd::{AsFd, OwnedFd};

    use usher_system_label::file::LabelledFile;

    use super::*;

    /// A folder where root alone can make names.
    fn folder() -> tempfile::TempDir {
        // The folder's name has no point, which a pattern would take for any byte.
        let folder = tempfile::Builder::new()
            .prefix("filing")
            .tempdir_in("/run")
            .unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        level_of(folder.path(), "mls/high,biba/high");
        folder
    }

    fn level_of(path: &Path, level: &str) {
        let label = level.parse().unwrap();
        LabelledFile::Path(path).set(&label).unwrap();
    }

    fn policy(specification: &Path, te: &str) -> Policy {
        let text = format!(
            "mac framework {{ multilabel \"/run\"; specification \"{}\"; }}\nmac te {{ domain d; type program, plain; \
             transition unconfined program d; {te} }}",
            specification.display()
        );
        let name = "a.policy".into();
        usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap()
    }

    /// A specification of these lines, in which `@` stands for the folder.
    fn filing(folder: &Path, lines: &str, te: &str) -> Filing {
        let policy = policy(Path::new("/etc/a"), te);
        let source = usher_policy::Source {
            name: "a".into(),
            text: lines.replace('@', folder.to_str().unwrap()),
        };
        let read = Specification::parse(source, Flavour::Labels).unwrap();
        let te = type_enforcement(Some(&policy)).unwrap();
        Filing {
            path: "/etc/a".into(),
            digest: String::new(),
            entry_points: entry_points(&read, te),
            set: SpecificationSet::new(vec![read]).unwrap(),
            shared: shared(te),
        }
    }

    fn gets(filing: &Filing, path: &Path, has: &str) -> Option<String> {
        let file = File::open(path).unwrap();
        let tree = Tree::new(File::open(path.parent().unwrap()).unwrap().into()).unwrap();
        let has = (!has.is_empty()).then(|| has.parse().unwrap());
        let missing = filing.missing(&tree, file.as_fd(), has.as_ref()).unwrap();
        missing.map(|label| label.to_string())
    }

    const LINES: &str = "@/.* mls/high,biba/high\n@/program -- te/program,mls/high\n";

    // Threat model: M102
    #[test]
    fn what_a_file_of_root_lacks_is_set_and_what_it_has_stays() {
        let folder = folder();
        let filing = filing(folder.path(), LINES, "");
        let [plain, program] = ["plain", "program"].map(|name| folder.path().join(name));
        for file in [&plain, &program] {
            fs::write(file, "").unwrap();
        }
        assert_eq!(
            gets(&filing, &plain, "").as_deref(),
            Some("biba/high,mls/high")
        );
        assert_eq!(
            gets(&filing, &plain, "biba/low").as_deref(),
            Some("mls/high")
        );
        assert_eq!(gets(&filing, &plain, "biba/low,mls/5"), None);
        // The directory has no type, so `te/plain` is not inherited from it; `te/untyped` is.
        assert_eq!(gets(&filing, &program, "te/plain,mls/high"), None);
        let inherited = "te/untyped,mls/high";
        assert_eq!(
            gets(&filing, &program, inherited).as_deref(),
            Some("te/program")
        );
        assert_eq!(gets(&filing, Path::new("/etc/passwd"), ""), None);
    }

    // Threat model: M102
    #[test]
    fn a_file_is_trusted_only_where_no_less_trusted_process_gets() {
        let folder = folder();
        let lines =
            "@/five biba/5,lomac/5\n@/low biba/low,lomac/low\n@/equal biba/equal,lomac/equal\n";
        let filing = filing(folder.path(), lines, "");
        let files = ["five", "low", "equal"].map(|name| folder.path().join(name));
        for file in &files {
            fs::write(file, "").unwrap();
        }
        // For each level of the directory, which of the files get their level.
        for (directory, expected) in [
            ("high", [true, true, true]),
            ("5", [true, true, false]),
            ("4", [false, true, false]),
            ("low", [false, true, false]),
            ("equal", [false, true, false]),
        ] {
            level_of(
                folder.path(),
                &format!("biba/{directory},lomac/{directory}"),
            );
            for (file, expected) in files.iter().zip(expected) {
                let name = file.file_name().unwrap().to_str().unwrap();
                let level = name.replace("five", "5");
                let all = format!("biba/{level},lomac/{level}");
                let got = gets(&filing, file, "");
                assert_eq!(got, expected.then_some(all), "{name} below {directory}");
            }
        }
        // The level of one module is not another's.
        let label = "biba/low,lomac/high[low]".parse().unwrap();
        LabelledFile::Path(folder.path()).replace(&label).unwrap();
        assert_eq!(gets(&filing, &files[0], "").as_deref(), Some("lomac/5"));
        let label = "mls/high".parse().unwrap();
        LabelledFile::Path(folder.path()).replace(&label).unwrap();
        assert_eq!(gets(&filing, &files[0], ""), None);
    }

    // Threat model: M102
    #[test]
    fn a_file_becomes_secret_only_where_no_lower_process_gets() {
        let folder = folder();
        let lines = "@/file mls/5:1\n@/low mls/low\n@/equal mls/equal\n";
        let filing = filing(folder.path(), lines, "");
        let [file, low, equal] = ["file", "low", "equal"].map(|name| folder.path().join(name));
        for file in [&file, &low, &equal] {
            fs::write(file, "").unwrap();
        }
        for (directory, gets_it) in [
            ("mls/high", true),
            ("mls/5:1+2", true),
            ("mls/5", false),
            ("mls/equal", false),
            ("mls/low", false),
        ] {
            level_of(folder.path(), directory);
            for has in ["", "mls/low"] {
                assert_eq!(gets(&filing, &file, has).is_some(), gets_it, "{directory}");
            }
            assert_eq!(gets(&filing, &file, "mls/equal"), None);
            assert_eq!(gets(&filing, &equal, ""), None);
            // In a directory of another level the file may hold a secret, so it does not become `low`.
            let low = gets(&filing, &low, "");
            assert_eq!(low.is_some(), directory == "mls/low", "{directory}");
        }
        assert_eq!(gets(&filing, &low, "").as_deref(), Some("mls/low"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(gets(&filing, &low, ""), None);
    }

    #[test]
    fn what_lies_too_deep_for_a_path_keeps_its_label() {
        let folder = folder();
        let filing = filing(folder.path(), "@/.* mls/high\n", "");
        let mut directory: OwnedFd = File::open(folder.path()).unwrap().into();
        let tree = Tree::new(directory.try_clone().unwrap()).unwrap();
        let name = "d".repeat(255);
        for depth in 0..17 {
            rustix::fs::mkdirat(&directory, &name, Mode::RWXU).unwrap();
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            directory = openat(&directory, &name, flags, Mode::empty()).unwrap();
            let missing = filing.missing(&tree, directory.as_fd(), None).unwrap();
            assert_eq!(missing.is_some(), depth == 0, "{depth}");
        }
    }

    // Threat model: M102
    #[test]
    fn where_others_make_names_only_secrecy_is_set() {
        let folder = folder();
        let filing = filing(folder.path(), LINES, "");
        let program = folder.path().join("program");
        fs::write(&program, "").unwrap();
        let inherited = "te/untyped";
        let all = Some("mls/high,te/program".to_owned());
        assert_eq!(gets(&filing, &program, inherited), all);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(
            gets(&filing, &program, inherited).as_deref(),
            Some("mls/high")
        );
        // A user could link another user's file below the path.
        fs::hard_link(&program, folder.path().join("other")).unwrap();
        assert_eq!(gets(&filing, &program, inherited), None);
    }

    // Threat model: M102
    #[test]
    fn a_type_stays_where_a_domain_could_have_made_the_name() {
        let folder = folder();
        let program = folder.path().join("program");
        fs::write(&program, "").unwrap();
        let has = "te/untyped,mls/high";
        for (te, gets_it) in [
            ("", true),
            ("allow d plain directory add_name;", true),
            ("allow d untyped directory add_name;", false),
            ("allow d plain directory rename;", true),
            ("allow d untyped directory remove_name;", true),
            ("allow d plain file write append;", true),
            ("allow d untyped file write;", false),
            ("allow d untyped file append;", false),
            ("permissive d;", false),
        ] {
            let filing = filing(folder.path(), LINES, te);
            for has in [has, "mls/high"] {
                assert_eq!(gets(&filing, &program, has).is_some(), gets_it, "{te}");
            }
        }
    }

    // Threat model: M102
    #[test]
    fn a_type_stays_where_a_domain_could_have_moved_a_directory() {
        let folder = folder();
        let inner = folder.path().join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        let program = inner.join("program");
        fs::write(&program, "").unwrap();
        level_of(folder.path(), "te/top");
        level_of(&folder.path().join("outer"), "te/outer");
        let tree = Tree::new(File::open(folder.path()).unwrap().into()).unwrap();
        for (te, gets_it) in [
            ("", true),
            ("allow d outer directory remove_name;", true),
            // No domain can move the root, which is mounted.
            ("allow d top directory rename;", true),
            ("allow d outer file rename;", true),
            ("allow d outer directory rename;", false),
            ("allow d untyped directory rename;", false),
        ] {
            let te = format!("type top, outer; {te}");
            let filing = filing(folder.path(), "@/outer/inner/program te/program\n", &te);
            let file = File::open(&program).unwrap();
            let gets = filing.missing(&tree, file.as_fd(), None).unwrap();
            assert_eq!(gets.is_some(), gets_it, "{te}");
        }
    }

    #[test]
    fn an_entry_point_without_its_type_is_named() {
        let folder = folder();
        let lines = "@/program te/program\n@/[p]rogram te/program\n@/gone te/program\n";
        let program = folder.path().join("program");
        fs::write(&program, "").unwrap();
        let types = Types::default();
        // The second line decides. It is a pattern, so it names no entry point.
        let others = filing(folder.path(), lines, "");
        assert!(others.require_entry_points(&types).is_ok());
        let filing = filing(
            folder.path(),
            "@/program te/program\n@/gone te/program\n",
            "",
        );
        let said = filing.require_entry_points(&types).unwrap_err().to_string();
        assert!(said.contains("/program has the type untyped"), "{said}");
        assert!(said.contains("usher mac relabel"), "{said}");
        let label = "te/program".parse().unwrap();
        LabelledFile::Path(&program).set(&label).unwrap();
        assert!(filing.require_entry_points(&types).is_ok());
    }
}
