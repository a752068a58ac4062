//! Rows of figures, as a table for people and as JSON for programs.

use std::error::Error;
use std::path::Path;

use serde::Serialize;
use usher_bench::Spread;

/// One row.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Name of the measurement.
    pub name: String,
    /// Unit of `median` and `p99`.
    pub unit: String,
    /// Half of the samples are below.
    pub median: f64,
    /// 99 of 100 samples are below.
    pub p99: f64,
    /// The number of samples.
    pub samples: usize,
    /// The row to which `ratio` compares.
    pub ratio_to: Option<String>,
    /// This row's median over that row's.
    pub ratio: Option<f64>,
    /// The kernel's release.
    pub kernel: String,
    /// The command that repeats the measurement.
    pub command: String,
}

impl Row {
    /// A row of samples in microseconds.
    pub fn new(name: &str, samples: Vec<f64>) -> Self {
        let Spread {
            median,
            p99,
            samples,
        } = Spread::new(samples);
        Self {
            name: name.into(),
            unit: "us".into(),
            median,
            p99,
            samples,
            ratio_to: None,
            ratio: None,
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned()),
            command: "make bench".into(),
        }
    }

    /// A row of samples in this unit.
    pub fn in_unit(name: &str, unit: &str, samples: Vec<f64>) -> Self {
        Self {
            unit: unit.into(),
            ..Self::new(name, samples)
        }
    }

    /// A row of one number of bytes.
    pub fn bytes(name: &str, bytes: f64) -> Self {
        Self::in_unit(name, "bytes", vec![bytes])
    }

    /// A row of rates, each measured over about a second.
    pub fn rates(name: &str, rates: Vec<f64>) -> Self {
        Self::in_unit(name, "per second", rates)
    }

    /// Sets each row's ratio to the row `base`.
    pub fn relate<const N: usize>(mut rows: [Self; N], base: &str) -> [Self; N] {
        let median = rows
            .iter()
            .find(|row| row.name == base)
            .map(|row| row.median);
        for row in &mut rows {
            row.ratio_to = median.map(|_| base.into());
            row.ratio = median.map(|median| row.median / median);
        }
        rows
    }
}

/// Relates each row with one of the endings `compared` to the row with the same beginning and the
/// ending `base`: `a/fast` to `a/base`.
pub fn relate_by_ending(rows: &mut [Row], base: &str, compared: &[&str]) {
    let bases: Vec<(String, f64)> = rows
        .iter()
        .filter(|row| row.name.ends_with(base))
        .map(|row| (row.name.clone(), row.median))
        .collect();
    for row in rows {
        let Some(common) = compared.iter().find_map(|end| row.name.strip_suffix(end)) else {
            continue;
        };
        let base = format!("{common}{base}");
        if let Some((_, median)) = bases.iter().find(|(name, _)| *name == base) {
            row.ratio = Some(row.median / median);
            row.ratio_to = Some(base);
        }
    }
}

/// Prints the table.
pub fn print(rows: &[Row]) {
    println!("{}", machine());
    println!(
        "{:<46} {:>10} {:>10} {:>8} {:>7} unit",
        "", "median", "p99", "samples", "ratio"
    );
    for row in rows {
        let ratio = row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        println!(
            "{:<46} {:>10.1} {:>10.1} {:>8} {:>7} {}",
            row.name, row.median, row.p99, row.samples, ratio, row.unit
        );
    }
    let mut bases: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.ratio_to.as_deref())
        .collect();
    bases.sort_unstable();
    bases.dedup();
    match bases.as_slice() {
        [] => {}
        [base] => println!("ratio: median over the median of {base}, of this run"),
        _ => println!("ratio: median over the median of another row of this run, its ratio_to"),
    }
}

/// Writes the file.
pub fn write(rows: &[Row], path: &Path) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, serde_json::to_vec_pretty(rows)?)?;
    println!("written to {}", path.display());
    Ok(())
}

/// A one-line description of the machine.
fn machine() -> String {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {model}, kernel {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::{Row, relate_by_ending};

    #[test]
    fn medians_and_ratios() {
        let slow = Row::new("slow", (1..=100).map(|n| f64::from(n) * 2.0).collect());
        let base = Row::new("base", (1..=100).map(f64::from).collect());
        let [slow, base] = Row::relate([slow, base], "base");
        assert_eq!((base.median, base.p99, base.samples), (51.0, 100.0, 100));
        assert_eq!((slow.ratio, base.ratio), (Some(2.0), Some(1.0)));
    }

    #[test]
    fn rows_are_compared_to_the_base_of_their_beginning() {
        let row = |name: &str, median| Row::new(name, vec![median]);
        let mut rows = [
            row("a/bare", 2.0),
            row("a/governed", 3.0),
            row("a/work", 1.0),
            row("b/bare", 4.0),
            row("b/governed", 4.0),
        ];
        relate_by_ending(&mut rows, "/bare", &["/bare", "/governed"]);
        let ratios = rows.map(|row| row.ratio);
        assert_eq!(ratios, [Some(1.0), Some(1.5), None, Some(1.0), Some(1.0)]);
    }
}
