//! Runs measuring programs in a guest whose clock counts instructions (QEMU's `-icount shift=0`).
//! Their figures do not depend on the machine or on its other work. Instructions are not time: they
//! leave out caches, branches and the processor's flushes.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use usher_bench::Figure;

use crate::report::Row;

const RUNNER: &str = "tests/vm/run";

/// Boots this kernel, runs a program there for at most `seconds`, and returns its output. The
/// runner reports on standard error why a guest fails.
pub fn run(
    kernel: &str,
    seconds: u32,
    program: &Path,
    arguments: &[String],
) -> Result<Vec<u8>, Box<dyn Error>> {
    run_as(&[], kernel, seconds, program, arguments)
}

/// Like [`run`], in a guest with these options of the runner.
pub fn run_as(
    options: &[&str],
    kernel: &str,
    seconds: u32,
    program: &Path,
    arguments: &[String],
) -> Result<Vec<u8>, Box<dyn Error>> {
    let seconds = seconds.to_string();
    let output = Command::new(RUNNER)
        .args(options)
        .args(["--icount", "--timeout", &seconds, "--kernel", kernel, "--"])
        .arg(program)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{RUNNER}: {error}: run this in the project's directory"))?;
    if !output.status.success() {
        let status = output.status;
        return Err(format!("the guest with kernel {kernel} did not measure: {status}").into());
    }
    Ok(output.stdout)
}

/// Like [`run`], with these numbers as the program's arguments. Makes a row of each figure that the program
/// prints.
pub fn rows(
    kernel: &str,
    seconds: u32,
    program: &Path,
    sizes: &[usize],
) -> Result<Vec<Row>, Box<dyn Error>> {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let figures: Vec<Figure> = serde_json::from_slice(&run(kernel, seconds, program, &sizes)?)?;
    Ok(figures
        .into_iter()
        .map(|figure| row(kernel, figure))
        .collect())
}

/// A row of a figure that a program in a guest with this kernel has printed.
pub fn row(kernel: &str, figure: Figure) -> Row {
    Row {
        kernel: kernel.into(),
        ..Row::in_unit(&figure.name, &figure.unit, figure.samples)
    }
}
