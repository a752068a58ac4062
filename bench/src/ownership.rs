//! What the ownership programs cost, from a guest that counts instructions.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use usher_bench::Ownership;

use crate::report::Row;

const RUNNER: &str = "tests/vm/run";
/// For the measurement; with idle processors it takes a sixth of this.
const SECONDS: &str = "600";

/// Boots this kernel and measures there. The runner says on standard error why a guest fails.
pub fn measure(kernel: &str, programs: &Path) -> Result<Ownership, Box<dyn Error>> {
    let output = Command::new(RUNNER)
        .args(["--icount", "--timeout", SECONDS, "--kernel", kernel, "--"])
        .arg(programs.join("usher-bench-ownership"))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{RUNNER}: {error}: run this in the project's directory"))?;
    if !output.status.success() {
        let status = output.status;
        return Err(format!("the guest with kernel {kernel} did not measure: {status}").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// One row for each operation and state. Ratios are to the operation without the programs.
pub fn rows(figures: &Ownership) -> Vec<Row> {
    let mut rows = Vec::new();
    for (without, with) in figures.without.iter().zip(&figures.with) {
        let base = format!("ownership/{}/without", without.operation);
        let states = [
            ("without", Some(without.own)),
            ("unlabelled", Some(with.own)),
            ("labelled", with.given),
        ];
        for (state, spread) in states {
            let Some(spread) = spread else { continue };
            rows.push(Row {
                name: format!("ownership/{}/{state}", without.operation),
                unit: "instructions",
                median: spread.median,
                p99: spread.p99,
                samples: spread.samples,
                ratio_to: Some(base.clone()),
                ratio: Some(spread.median / without.own.median),
                kernel: figures.kernel.clone(),
                command: "make bench".into(),
            });
        }
    }
    rows
}

/// Prints the table for people.
pub fn print(figures: &Ownership) {
    let kernel = &figures.kernel;
    println!("ownership programs: instructions, medians, in a guest with kernel {kernel}");
    println!(
        "{:<30} {:>9} {:>11} {:>6} {:>9} {:>6}",
        "", "without", "unlabelled", "ratio", "labelled", "ratio"
    );
    for (without, with) in figures.without.iter().zip(&figures.with) {
        let base = without.own.median;
        let [count, ratio] = with.given.map_or(["-".into(), "-".into()], |labelled| {
            let median = labelled.median;
            [format!("{median:.0}"), format!("{:.3}", median / base)]
        });
        println!(
            "{:<30} {:>9.0} {:>11.0} {:>6.3} {:>9} {:>6}",
            without.operation,
            base,
            with.own.median,
            with.own.median / base,
            count,
            ratio,
        );
    }
    println!(
        "ratio: to the same without the programs. Two listeners without a label differ by {:.1} % \
         at most",
        noise(figures) * 100.0
    );
}

/// The largest difference, as a share, between two that nothing tells apart.
fn noise(figures: &Ownership) -> f64 {
    figures
        .without
        .iter()
        .filter_map(|measured| {
            let again = measured.given?.median;
            Some((again / measured.own.median - 1.0).abs())
        })
        .fold(0.0, f64::max)
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
    fn ratios_are_to_the_operation_without_the_programs() {
        let figures = Ownership {
            kernel: "6.12".into(),
            without: measured(100.0, Some(90.0)),
            with: measured(150.0, Some(300.0)),
        };
        let found: Vec<_> = rows(&figures)
            .into_iter()
            .map(|row| (row.name, row.ratio))
            .collect();
        let expected = [("without", 1.0), ("unlabelled", 1.5), ("labelled", 3.0)]
            .map(|(state, ratio)| (format!("ownership/read/{state}"), Some(ratio)));
        assert_eq!(found, expected);
        assert!((noise(&figures) - 0.1).abs() < 1e-9);
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
