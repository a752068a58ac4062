//! The cost of a flood for the flooded host, the paper's figure 8: see `usher-bench-flood`.

use std::error::Error;
use std::path::Path;

use crate::guest;
use crate::report::{Row, relate_by_ending};

/// The time limit of the guest in seconds: several times what it takes on idle processors.
const SECONDS: u32 = 3600;

/// Measures on this kernel. `sizes` are the packets of each flood and the rounds. Ratios are to SYN
/// cookies.
pub fn measure(
    kernel: &str,
    programs: &Path,
    sizes: [usize; 2],
) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("floods, in a guest ...");
    let program = programs.join("usher-bench-flood");
    let mut rows = guest::rows(kernel, SECONDS, &program, &sizes)?;
    let compared: Vec<String> = rows
        .iter()
        .filter(|row| row.unit == "instructions a packet" && !row.name.ends_with("/sent"))
        .filter_map(|row| Some(format!("/{}", row.name.rsplit_once('/')?.1)))
        .collect();
    let compared: Vec<&str> = compared.iter().map(String::as_str).collect();
    relate_by_ending(&mut rows, "/cookies", &compared);
    Ok(rows)
}
