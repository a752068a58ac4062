//! `usher mac ls`: files with their labels.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use usher::mac::{Label, LabelledFile};

use crate::failure::{At, Failure};
use crate::output::{Output, or_dash, row, table};

/// A file.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct File {
    /// Its path.
    path: String,
    /// The path in hexadecimal digits, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    /// Null: the file has none.
    label: Option<Label>,
    /// The reason that the label cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints files with their labels: of a directory the files in it, of a symbolic link its own label.
///
/// # Errors
/// When a directory cannot be read.
pub(super) fn run(output: &Output, paths: &[PathBuf], directories: bool) -> Result<(), Failure> {
    let mut files = Vec::new();
    for path in paths {
        let listed = if directories {
            Ok(vec![path.clone()])
        } else {
            listed(path)
        };
        files.extend(listed.at(path)?.iter().map(|path| file(path)));
    }
    // JSON of `usher mac ls`: a list of [`File`].
    output.print(&files, || files_text(&files));
    Ok(())
}

/// The files of a directory by name; any other file alone.
fn listed(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<io::Result<Vec<OsString>>>()?;
    names.sort();
    let is_here = path == Path::new(".");
    Ok(names
        .into_iter()
        .map(|name| {
            if is_here {
                PathBuf::from(name)
            } else {
                path.join(name)
            }
        })
        .collect())
}

fn file(path: &Path) -> File {
    let bytes = path.as_os_str().as_bytes();
    let hexadecimal = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (label, error) = match LabelledFile::Link(path).label() {
        Ok(label) => (label, None),
        Err(error) => (None, Some(error.to_string())),
    };
    File {
        path: path.to_string_lossy().into_owned(),
        path_bytes: path.to_str().is_none().then(hexadecimal),
        label,
        error,
    }
}

fn files_text(files: &[File]) -> String {
    let rows = files.iter().map(|file| {
        let label = match &file.error {
            Some(error) => format!("({error})"),
            None => or_dash(file.label.as_ref()),
        };
        // A line feed in a name must not look like another file.
        row![label, file.path.replace('\n', "\\n").replace('\t', "\\t")]
    });
    table(["LABEL", "FILE"], rows)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_directory_is_listed_by_name_and_not_below() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("b/inner"), "").unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        let expected = ["a", "b"].map(|name| folder.path().join(name));
        assert_eq!(listed(folder.path()).unwrap(), expected);
        assert_eq!(listed(&expected[0]).unwrap(), expected[..1]);
        assert!(listed(&folder.path().join("none")).is_err());
    }

    #[test]
    fn a_name_stays_on_its_line() {
        let path = PathBuf::from(OsString::from_vec(b"/no\nfile\xff".to_vec()));
        let one = file(&path);
        assert!(one.error.is_some());
        assert_eq!(one.path_bytes.as_deref(), Some("2f6e6f0a66696c65ff"));
        assert_eq!(files_text(&[one]).lines().count(), 2);
    }
}
