//! File transfers by ESP, the paper's tables 1 and 2: see `usher-bench-transfers`.

use std::error::Error;
use std::path::Path;

use crate::guest;
use crate::report::{Row, relate_by_ending};

/// The time limit of the guest in seconds: several times what 500 files take on idle processors.
const SECONDS: u32 = 7200;

/// Measures on this kernel. `sizes` are the number of files of 2 KB, the megabytes of the large file,
/// and the rounds. Ratios are to IPsec configured by hand.
pub fn measure(
    kernel: &str,
    programs: &Path,
    sizes: [usize; 3],
) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("file transfers, in a guest ...");
    let program = programs.join("usher-bench-transfers");
    let mut rows = guest::rows(kernel, SECONDS, &program, &sizes)?;
    let compared = ["/plain", "/by_hand", "/policy", "/other"];
    relate_by_ending(&mut rows, "/by_hand", &compared);
    Ok(rows)
}
