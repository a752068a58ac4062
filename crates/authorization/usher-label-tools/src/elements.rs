//! The elements that a command prints.

use std::path::Path;

use usher_label::ElementList;
use usher_system_label::file::{MAC_CONF, ReadError, read_defaults};

use crate::error::ToolError;

/// The elements of the option `-l`, or those that mac.conf(5) has for a class of objects; none for all.
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
