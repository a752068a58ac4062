//! `usher policy fmt`: rewrites policy files in their canonical form.

use std::path::{Path, PathBuf};

use usher_daemon::files::Rewritable;
use usher_local::copy::policy_files;
use usher_local::paths;
use usher_local::reading::read_bounded_open;
use usher_policy::Source;

use crate::failure::{At, Failure};
use crate::output::Output;

/// Rewrites the given files, or those of the policy folder, in their canonical form. With `check`, only
/// names the files that differ.
///
/// # Errors
/// The mistakes of the first file that has some, or a file that cannot be read; nothing is written then.
/// A file that cannot be written. [`Failure::NotFormatted`] with `check`.
pub fn run(output: &Output, files: &[PathBuf], check: bool) -> Result<(), Failure> {
    let folder;
    let files = if files.is_empty() {
        folder = policy_files(Path::new(paths::POLICY_DIRECTORY), None)?;
        folder.as_slice()
    } else {
        files
    };
    let mut different = Vec::new();
    for path in files {
        let (file, opened) = Rewritable::open(path).at(path)?;
        let source = Source {
            name: path.display().to_string(),
            text: read_bounded_open(path, &opened)?,
        };
        let formatted = match usher_policy::format(&source) {
            Ok(formatted) => formatted,
            Err(errors) => {
                let sources = vec![source];
                return Err(Failure::Policy { errors, sources });
            }
        };
        if formatted != source.text {
            different.push((path, file, formatted));
        }
    }
    let mut changed = Vec::new();
    for (path, file, formatted) in different {
        if !check {
            file.rewrite(formatted.as_bytes()).at(path)?;
        }
        changed.push(path.display().to_string());
    }
    // JSON of `usher policy fmt`:
    //   files: How many files were looked at.
    //   changed: List of texts: the files that were not in the canonical form.
    let value = serde_json::json!({ "files": files.len(), "changed": changed });
    output.print(&value, || {
        changed.iter().map(|name| format!("{name}\n")).collect()
    });
    if check && !changed.is_empty() {
        return Err(Failure::NotFormatted(changed.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const OUTPUT: Output = Output { json: false };

    #[test]
    fn a_file_is_written_once_and_keeps_its_mode_and_its_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "users u{member a;}").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o664)).unwrap();
        symlink("file", &link).unwrap();
        let files = [link.clone()];
        assert!(matches!(
            run(&OUTPUT, &files, true),
            Err(Failure::NotFormatted(1))
        ));
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "users u{member a;}"
        );
        run(&OUTPUT, &files, false).unwrap();
        run(&OUTPUT, &files, true).unwrap();
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "users u {\n  member a;\n}\n"
        );
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o664);
        assert!(link.is_symlink());
    }

    #[test]
    fn a_file_with_mistakes_and_its_neighbours_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["sound", "file"].map(|name| folder.path().join(name));
        let texts = ["users u{member a;}", "users u{member a}"];
        for (file, text) in files.iter().zip(texts) {
            std::fs::write(file, text).unwrap();
        }
        let refused = run(&OUTPUT, &files, false);
        assert!(matches!(refused, Err(Failure::Policy { .. })));
        for (file, text) in files.iter().zip(texts) {
            assert_eq!(std::fs::read_to_string(file).unwrap(), text);
        }
    }
}
