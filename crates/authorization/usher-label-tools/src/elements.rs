//! The elements that a command prints.

use std::path::Path;

use usher_file_label::{MAC_CONF, ReadError, read_defaults};
use usher_label::ElementList;

use crate::error::ToolError;

/// Those of the option `-l`, or those that mac.conf(5) has for a class of objects. `None`: all.
pub(crate) fn elements(
    option: Option<&str>,
    class: &str,
) -> Result<Option<ElementList>, ToolError> {
    if let Some(text) = option {
        return text.parse().map(Some).map_err(ToolError::Elements);
    }
    match read_defaults(Path::new(MAC_CONF)) {
        Ok(defaults) => Ok(defaults.elements(class).cloned()),
        Err(ReadError::Io(_, error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
