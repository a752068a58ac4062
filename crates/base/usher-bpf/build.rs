//! Declares the data that the toolkit shares with all programs.

use usher_bpf_build::{Build, Declarations, Failure};

fn main() -> Result<(), Failure> {
    let build = Build::new("../../../bpf")?;
    let mut declarations = Declarations::default();
    build.declare(&mut declarations, "usher_layout")?;
    build.declare(&mut declarations, "usher_program")?;
    build.declare(&mut declarations, "usher_guard")
}
