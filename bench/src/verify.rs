//! Measures verifications of authenticators on one processor.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::numbers;
use crate::report::Row;

/// Runs the measuring program, which needs no host.
pub fn measure(programs: &Path, rounds: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("verifications: {rounds} rounds ...");
    let output = Command::new(programs.join("usher-bench-verify"))
        .arg(rounds.to_string())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("usher-bench-verify: {}", output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let [whole, dalek, aws] = numbers(&text)?;
    Ok(Row::relate(
        [
            Row::new("verify/authenticators", whole),
            Row::new("verify/ed25519_dalek", dalek),
            Row::new("verify/ed25519_aws_lc_rs", aws),
        ],
        "verify/authenticators",
    )
    .into())
}
