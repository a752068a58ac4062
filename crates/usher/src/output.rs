//! Output for people and for programs.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;

use serde::Serialize;
use usher_policy::joined;

/// The form of the output.
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// Prints a view: `text` for people, [`escaped`], `value` for programs.
    pub fn print(&self, value: &impl Serialize, text: impl FnOnce() -> String) {
        let text = if self.json {
            match serde_json::to_string_pretty(value) {
                Ok(json) => json,
                Err(error) => return tell(&format!("usher: cannot write JSON: {error}\n")),
            }
        } else {
            escaped(&text()).into_owned()
        };
        if text.is_empty() {
            return;
        }
        match writeln!(std::io::stdout(), "{}", text.trim_end()) {
            // A reader may close early (`usher who | head`).
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                tell(&format!("usher: cannot write: {error}\n"));
            }
            _ => {}
        }
    }
}

/// Prints a warning on standard error.
pub fn warn(warning: &str) {
    tell(&format!("warning: {}\n", escaped(warning)));
}

/// Writes to standard error. Its reader may have closed it (`usher policy check 2>&1 | head`), which
/// would make `eprintln!` panic.
pub fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Escapes the characters that a terminal would obey or hide, such as `\u{1b}`, in a text from files,
/// file names and daemons. Line feeds and tabs stay. Colours are added afterwards.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if text.chars().all(usher_policy::is_plain) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if usher_policy::is_plain(character) {
            shown.push(character)
        } else {
            shown.extend(character.escape_default())
        }
    }
    shown.into()
}

/// A table of columns, each as wide as its widest cell; empty without rows.
pub fn table<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut lines = vec![heading.map(str::to_owned)];
    lines.extend(rows);
    if lines.len() == 1 {
        return String::new();
    }
    let width = |column: usize| lines.iter().map(move |cells| cells[column].chars().count());
    let widths: [usize; N] = std::array::from_fn(|column| width(column).max().unwrap_or(0));
    let lines = lines.iter().map(|cells| {
        let cells = cells.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    });
    lines.collect()
}

/// The first names, at most `most`, and the number of the rest.
pub fn first<T: AsRef<str>>(names: &[T], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        rest => format!("{} and {rest} more", shown.join(", ")),
    }
}

/// A value that may be missing, as a cell has it.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// All values, separated by commas; a dash if there are none.
pub fn some(values: impl IntoIterator<Item = impl Display>) -> String {
    or_dash(Some(joined(values, ", ")).filter(|text| !text.is_empty()))
}

/// The cells of a row, from values that can be displayed.
macro_rules! row {
    ($($cell:expr),* $(,)?) => {
        [$($cell.to_string()),*]
    };
}
pub(crate) use row;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_characters_that_a_terminal_obeys_or_hides_are_escaped() {
        let honest = "a\tb\nJos\u{e9} \u{4f60}\u{597d} \u{1f511} \\u{1b} \"x\"\n";
        assert_eq!(escaped(honest), honest);
        for (hostile, shown) in [
            ("\u{1b}]0;OWNED\u{7}", "\\u{1b}]0;OWNED\\u{7}"),
            ("a\rb\u{8}c\u{0}", "a\\rb\\u{8}c\\u{0}"),
            ("\u{7f}\u{9b}31m", "\\u{7f}\\u{9b}31m"),
            ("\u{202e}\u{2066}\u{200f}", "\\u{202e}\\u{2066}\\u{200f}"),
        ] {
            assert_eq!(escaped(hostile), shown);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = [row!["alice", 1], row!["b", 22]];
        assert_eq!(
            table(["USER", "UID"], rows),
            "USER   UID\nalice  1\nb      22\n"
        );
        assert_eq!(table(["USER"], []), "");
    }
}
