//! Views for people and for programs.

use std::io::Write;

use serde::Serialize;

/// How to print.
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// Prints a view: `text` for people, `value` for programs.
    pub fn print(&self, value: &impl Serialize, text: impl FnOnce() -> String) {
        let text = if self.json {
            match serde_json::to_string_pretty(value) {
                Ok(json) => json,
                Err(error) => return eprintln!("usher: cannot write JSON: {error}"),
            }
        } else {
            text()
        };
        if text.is_empty() {
            return;
        }
        match writeln!(std::io::stdout(), "{}", text.trim_end()) {
            // A reader that has seen enough (`usher who | head`) is no failure.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                eprintln!("usher: cannot write: {error}");
            }
            _ => {}
        }
    }
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
    use super::table;

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
