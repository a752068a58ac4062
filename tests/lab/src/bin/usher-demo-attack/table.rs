//! The table: configurations, rows, and what documentation and program expect in each cell.

use serde_json::{Value, json};

use crate::rows::{REMAINS, ROWS};

/// A combination of the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// Its column.
    pub(crate) name: &'static str,
    pub(crate) netauth: bool,
    pub(crate) ipsec: bool,
    pub(crate) bsdextended: bool,
    pub(crate) biba: bool,
}

const fn with(name: &'static str, [netauth, ipsec, bsdextended, biba]: [bool; 4]) -> Configuration {
    Configuration {
        name,
        netauth,
        ipsec,
        bsdextended,
        biba,
    }
}

/// The columns.
pub(crate) const CONFIGURATIONS: [Configuration; COLUMNS] = [
    with("plain", [false, false, false, false]),
    with("plain + bsdextended", [false, false, true, false]),
    with("netAuth", [true, false, false, false]),
    with("netAuth + IPsec", [true, true, false, false]),
    with("netAuth + bsdextended", [true, false, true, false]),
    with("netAuth + biba", [true, false, false, true]),
    with("all", [true, true, true, true]),
];
const COLUMNS: usize = 7;

/// A measured or expected result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    /// The attack has had its effect; of work: it goes on.
    Reached,
    /// It has had none; of work: it does not go on.
    Refused,
    /// The target is not there in this configuration.
    Absent,
}

/// A row, with the expected cells: `R`, `.` and `-` in the order of the columns.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    expected: &'static str,
}

impl Row {
    pub(crate) const fn new(name: &'static str, expected: &'static str) -> Self {
        assert!(expected.len() == COLUMNS, "a cell for each column");
        Self { name, expected }
    }

    fn is_work(&self) -> bool {
        self.name.starts_with("work: ")
    }

    fn word(&self, cell: Cell) -> &'static str {
        match (cell, self.is_work()) {
            (Cell::Reached, true) => "works",
            (Cell::Refused, true) => "fails",
            (Cell::Reached, false) => "reached",
            (Cell::Refused, false) => "refused",
            (Cell::Absent, _) => "—",
        }
    }

    fn expected(&self, column: usize) -> Cell {
        match self.expected.as_bytes()[column] {
            b'R' => Cell::Reached,
            b'.' => Cell::Refused,
            _ => Cell::Absent,
        }
    }
}

/// The cells that are known; none: not measured.
#[derive(Debug)]
pub(crate) struct Table(Vec<[Option<Cell>; COLUMNS]>);

impl Table {
    pub(crate) fn empty() -> Self {
        Self(vec![[None; COLUMNS]; ROWS.len()])
    }

    /// The table that the documentation shows.
    pub(crate) fn expected() -> Self {
        let cells = |row: &Row| std::array::from_fn(|column| Some(row.expected(column)));
        Self(ROWS.iter().map(cells).collect())
    }

    /// Notes a result. Returns its word, with a remark if it is not the expected one; an unknown row is
    /// a mistake of the program.
    pub(crate) fn note(&mut self, row: &str, column: usize, cell: Cell) -> Result<String, String> {
        let at = ROWS.iter().position(|known| known.name == row);
        let at = at.ok_or_else(|| format!("the table has no row {row:?}"))?;
        self.0[at][column] = Some(cell);
        let (word, expected) = (ROWS[at].word(cell), ROWS[at].expected(column));
        Ok(if expected == cell {
            word.to_owned()
        } else {
            format!("{word}, where {} is expected", ROWS[at].word(expected))
        })
    }

    /// In Markdown, as the documentation has it.
    pub(crate) fn markdown(&self) -> String {
        let mut lines = vec![
            format!("| | {} |", CONFIGURATIONS.map(|one| one.name).join(" | ")),
            format!("|{}", " --- |".repeat(COLUMNS + 1)),
        ];
        for (row, cells) in ROWS.iter().zip(&self.0) {
            let words = cells.map(|cell| cell.map_or("not tried", |cell| row.word(cell)));
            lines.push(format!("| {} | {} |", row.name, words.join(" | ")));
        }
        lines.join("\n") + "\n"
    }

    pub(crate) fn json(&self) -> Value {
        let rows = ROWS.iter().zip(&self.0).map(|(row, cells)| {
            let cells = CONFIGURATIONS
                .iter()
                .zip(cells)
                .map(|(configuration, cell)| {
                    (
                        configuration.name.to_owned(),
                        cell.map_or(Value::Null, |cell| row.word(cell).into()),
                    )
                });
            json!({ "row": row.name, "cells": cells.collect::<serde_json::Map<_, _>>() })
        });
        json!({
            "rows": rows.collect::<Vec<_>>(),
            "remains": REMAINS,
            "differences": self.differences(),
        })
    }

    /// A sentence for each measured cell that is not the expected one, and one for each column in
    /// which some cells were measured and others not.
    pub(crate) fn differences(&self) -> Vec<String> {
        let mut differences = Vec::new();
        for (column, configuration) in CONFIGURATIONS.iter().enumerate() {
            if self.0.iter().all(|cells| cells[column].is_none()) {
                continue;
            }
            for (row, cells) in ROWS.iter().zip(&self.0) {
                let expected = row.expected(column);
                if cells[column] != Some(expected) {
                    let found = cells[column].map_or("not tried", |cell| row.word(cell));
                    differences.push(format!(
                        "{}, {}: {found}, and the documentation says {}",
                        row.name,
                        configuration.name,
                        row.word(expected)
                    ));
                }
            }
        }
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_table_has_no_differences_and_each_cell_counts() {
        assert_eq!(Table::expected().differences(), [] as [String; 0]);
        for row in ROWS {
            for (column, configuration) in CONFIGURATIONS.iter().enumerate() {
                let mut table = Table::expected();
                let other = match row.expected(column) {
                    Cell::Reached => Cell::Refused,
                    Cell::Refused | Cell::Absent => Cell::Reached,
                };
                let told = table.note(row.name, column, other).expect("a row");
                assert!(told.contains("is expected"), "{told}");
                let differences = table.differences();
                assert_eq!(differences.len(), 1, "{differences:?}");
                let begin = format!("{}, {}: ", row.name, configuration.name);
                assert!(differences[0].starts_with(&begin), "{differences:?}");
            }
        }
    }

    #[test]
    fn a_cell_that_was_forgotten_is_a_difference() {
        assert_eq!(
            Table::empty().differences(),
            [] as [String; 0],
            "nothing tried"
        );
        let mut table = Table::empty();
        table
            .note(ROWS[0].name, 0, ROWS[0].expected(0))
            .expect("a row");
        let differences = table.differences();
        assert_eq!(differences.len(), ROWS.len() - 1, "{differences:?}");
        assert!(differences[0].contains("not tried"), "{differences:?}");
        assert!(table.note("no such row", 0, Cell::Reached).is_err());
    }
}
