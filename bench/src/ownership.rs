//! The cost of the ownership programs, from a guest that counts instructions.

use std::error::Error;
use std::path::Path;

use usher_bench::Ownership;

use crate::guest;
use crate::report::Row;

/// The time limit of the measurement; with idle processors it takes a sixth of this.
const SECONDS: u32 = 600;

/// Boots this kernel and measures there.
pub fn measure(kernel: &str, programs: &Path) -> Result<Ownership, Box<dyn Error>> {
    let output = guest::run(
        kernel,
        SECONDS,
        &programs.join("usher-bench-ownership"),
        &[],
    )?;
    Ok(serde_json::from_slice(&output)?)
}

/// One row for each operation and state. Ratios are to the same listener before the programs.
pub fn rows(figures: &Ownership) -> Vec<Row> {
    let mut rows = Vec::new();
    for (without, with) in figures.without.iter().zip(&figures.with) {
        let pairs = [
            ("own", Some(without.own), "unowned", Some(with.own)),
            ("given", without.given, "owned", with.given),
        ];
        for (listener, before, state, after) in pairs {
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            let base = format!("ownership/{}/without/{listener}", without.operation);
            let name = format!("ownership/{}/{state}", without.operation);
            for (name, spread) in [(base.clone(), before), (name, after)] {
                rows.push(Row {
                    name,
                    unit: "instructions".into(),
                    median: spread.median,
                    p99: spread.p99,
                    samples: spread.samples,
                    ratio_to: Some(base.clone()),
                    ratio: Some(spread.median / before.median),
                    kernel: figures.kernel.clone(),
                    command: "make bench".into(),
                });
            }
        }
    }
    rows
}

/// Prints the table for people.
pub fn print(figures: &Ownership) {
    let kernel = &figures.kernel;
    println!("ownership programs: instructions, medians, in a guest with kernel {kernel}");
    println!(
        "{:<26} {:>9} {:>11} {:>6} {:>9} {:>9} {:>6}",
        "", "without", "unowned", "ratio", "without", "owned", "ratio"
    );
    for (without, with) in figures.without.iter().zip(&figures.with) {
        let (before, after) = (without.own.median, with.own.median);
        print!(
            "{:<26} {before:>9.0} {after:>11.0} {:>6.3}",
            without.operation,
            after / before
        );
        match (without.given, with.given) {
            (Some(before), Some(after)) => {
                let (before, after) = (before.median, after.median);
                println!(" {before:>9.0} {after:>9.0} {:>6.3}", after / before);
            }
            _ => println!(" {:>9} {:>9} {:>6}", "-", "-", "-"),
        }
    }
    println!("ratio: to the same listener before the programs were attached");
    for (operation, share) in noise(figures) {
        let percent = share * 100.0;
        println!("noise: {operation}: two listeners without a label differ by {percent:.1} %");
    }
}

/// The share from which on a difference between two identical listeners is shown.
const NOISE: f64 = 0.005;

/// Operations whose two listeners differ without the programs, and by which share.
fn noise(figures: &Ownership) -> Vec<(&str, f64)> {
    figures
        .without
        .iter()
        .filter_map(|measured| {
            let share = (measured.given?.median / measured.own.median - 1.0).abs();
            (share >= NOISE).then_some((measured.operation.as_str(), share))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{noise, rows};
    use usher_bench::{Measured, Ownership, Spread};

    fn measured(own: f64, given: Option<f64>) -> Vec<Measured> {
        let spread = |instructions| Spread::new(vec![instructions]);
        vec![Measured {
            operation: "read".into(),
            own: spread(own),
            given: given.map(spread),
        }]
    }

    #[test]
    fn ratios_are_to_the_same_listener_without_the_programs() {
        let figures = Ownership {
            kernel: "6.12".into(),
            without: measured(100.0, Some(125.0)),
            with: measured(150.0, Some(375.0)),
        };
        let found: Vec<_> = rows(&figures)
            .into_iter()
            .map(|row| (row.name, row.ratio))
            .collect();
        let expected = [
            ("without/own", 1.0),
            ("unowned", 1.5),
            ("without/given", 1.0),
            ("owned", 3.0),
        ]
        .map(|(state, ratio)| (format!("ownership/read/{state}"), Some(ratio)));
        assert_eq!(found, expected);
        assert_eq!(noise(&figures), [("read", 0.25)]);
    }

    #[test]
    fn what_uses_no_socket_has_no_labelled_row() {
        let figures = Ownership {
            kernel: "6.12".into(),
            without: measured(100.0, None),
            with: measured(110.0, None),
        };
        assert_eq!(rows(&figures).len(), 2);
    }
}
