//! The elements that a command prints.

use std::path::Path;

use usher_file_label::{MAC_CONF, ReadError, read_defaults};
use usher_label::ElementList;

/// Those of the option `-l`, or those that mac.conf(5) has for a class of objects. `None`: all.
pub(crate) fn elements(option: Option<&str>, class: &str) -> Result<Option<ElementList>, String> {
    if let Some(text) = option {
        let list = text.parse::<ElementList>();
        return list
            .map(Some)
            .map_err(|error| format!("-l: {error}; {}", error.remedy()));
    }
    match read_defaults(Path::new(MAC_CONF)) {
        Ok(defaults) => Ok(defaults.elements(class).cloned()),
        Err(ReadError::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
