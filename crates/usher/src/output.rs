//! Views for people and for programs.

use std::borrow::Cow;
use std::io::Write;

use serde::Serialize;

/// How to print.
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
            // A reader that has seen enough (`usher who | head`) is no failure.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                tell(&format!("usher: cannot write: {error}\n"));
            }
            _ => {}
        }
    }
}

/// Warns on standard error of what does not stop the command.
pub fn warn(warning: &str) {
    tell(&format!("warning: {}\n", escaped(warning)));
}

/// Writes to standard error. Nobody may read it any more (`usher policy check 2>&1 | head`): that is
/// no failure of the command, and `eprintln!` would end it.
pub fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Text with nothing in it that a terminal would obey or hide, which comes from files, their names
/// and daemons: such a character stands there as `\u{1b}` does for escape. Lines and tabs stay.
/// Whoever colours a text does so afterwards.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if text.chars().all(usher_policy::is_plain) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match usher_policy::is_plain(character) {
            true => shown.push(character),
            false => shown.extend(character.escape_default()),
        }
    }
    shown.into()
}

/// Columns, each as wide as its widest cell.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    std::iter::once(line(heading.to_vec()))
        .chain(
            rows.iter()
                .map(|row| line(row.iter().map(String::as_str).collect())),
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{escaped, table};

    #[test]
    fn what_a_terminal_obeys_or_hides_is_escaped_and_nothing_else_is() {
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
        let rows = [
            vec!["alice".into(), "1".into()],
            vec!["b".into(), "22".into()],
        ];
        assert_eq!(
            table(&["USER", "UID"], &rows),
            "USER   UID\nalice  1\nb      22\n"
        );
    }
}
