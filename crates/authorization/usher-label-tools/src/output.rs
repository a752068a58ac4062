//! The output of the commands: text for people, or one JSON object a line.

use std::fmt::Display;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

/// Prints for one command. Paths are printed so that none can imitate another line or move the cursor.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The command, which begins each line on standard error.
    pub command: &'static str,
    /// Prints JSON on standard output.
    pub is_json: bool,
    /// Prints no warnings.
    pub is_quiet: bool,
}

impl Output {
    /// A line on standard output: text, or an object.
    ///
    /// # Errors
    ///
    /// As write(2): a reader that has gone ends the command.
    pub fn print(&self, text: &str, object: Map<String, Value>) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.is_json {
            writeln!(out, "{}", Value::Object(object))
        } else {
            writeln!(out, "{text}")
        }
    }

    /// A line on standard error.
    pub fn complain(&self, text: &impl Display) {
        eprintln!("{}: {text}", self.command);
    }

    /// Something that went wrong with one file, after which the command goes on.
    ///
    /// # Errors
    ///
    /// As [`Output::print`].
    pub fn warn(&self, path: &[u8], text: &str) -> io::Result<()> {
        if self.is_json {
            let mut object = of_path(path);
            object.insert("error".to_owned(), json!(text));
            return self.print("", object);
        }
        if !self.is_quiet {
            self.complain(&format_args!("{}: {text}", shown(path)));
        }
        Ok(())
    }
}

/// An object with a `path`; also with `path_bytes`, in hexadecimal digits, where the path is not UTF-8.
pub fn of_path(path: &[u8]) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("path".to_owned(), json!(String::from_utf8_lossy(path)));
    if std::str::from_utf8(path).is_err() {
        object.insert("path_bytes".to_owned(), json!(hexadecimal(path)));
    }
    object
}

/// Bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path for a terminal: control characters and bytes outside UTF-8 are escaped, and so is the
/// backslash.
pub fn shown(path: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in path.utf8_chunks() {
        for one in chunk.valid().chars() {
            match one {
                '\\' => shown.push_str("\\\\"),
                one if one.is_ascii() && !one.is_ascii_control() => shown.push(one),
                one if one.is_alphanumeric() => shown.push(one),
                one => shown.extend(one.escape_default()),
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_escapes_its_line() {
        assert_eq!(
            shown(b"/a b/\n\x1b[2J\xff\\n"),
            "/a b/\\n\\u{1b}[2J\\xff\\\\n"
        );
        assert_eq!(shown("/é/\u{202e}".as_bytes()), "/é/\\u{202e}");
    }
}
