//! MAC labels: text, the labels of files and processes, and whether a policy module is loaded.
//!
//! The C interface is `include/usher_mac.h`; see usher_mac(3).
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use usher::mac::LabelledFile;
//! let file = LabelledFile::Path("/srv/report".as_ref());
//! file.set(&"biba/high".parse()?)?;
//! assert_eq!(file.label()?.unwrap().value("biba").unwrap().as_ref(), "high");
//! # Ok(()) }
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use usher_label::{
    ClassName, Defaults, ElementKind, ElementList, ElementName, ElementValue, Label, LabelError,
    LabelMistake, LoginLabels, LoginLine, LoginSubject, MissingElement, Wanted,
};
pub use usher_system_label::file::{
    ATTRIBUTE, Change, FileLabelError, LabelledFile, MAC_CONF, ReadError, read_defaults,
};
pub use usher_system_label::process::{
    ProcessLabelError, call_module, label_of_process, labels_of_processes, set_at_exec, set_own,
};

/// The names of the loaded policy modules, one a line, which the labeller writes for everyone to read. There is no file
/// while none is loaded.
pub use usher_local::paths::SHOWN_MODULES as MODULES;

/// Longest file of modules that is read: the framework has at most eight, of 31 letters each.
const MODULES_BYTES: u64 = 4096;

/// Whether a policy module is loaded; without a name, whether any is.
///
/// # Errors
///
/// The file [`MODULES`] is there and cannot be read.
pub fn is_present(module: Option<&ElementName>) -> io::Result<bool> {
    is_listed(Path::new(MODULES), module)
}

fn is_listed(file: &Path, module: Option<&ElementName>) -> io::Result<bool> {
    let mut text = String::new();
    match File::open(file) {
        Ok(file) => file.take(MODULES_BYTES).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(module.is_none_or(|module| text.lines().any(|line| line == module.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_modules_are_present() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("modules");
        let present = |name: &str| is_listed(&file, Some(&name.parse().unwrap())).unwrap();
        assert!(!present("biba"));
        assert!(!is_listed(&file, None).unwrap());
        std::fs::write(&file, "bsdextended\nbiba\n").unwrap();
        assert!(present("biba"));
        assert!(!present("bib"));
        assert!(is_listed(&file, None).unwrap());
        assert!(is_listed(folder.path(), None).is_err());
    }
}
