//! Declares what the toolkit shares with all programs.

use usher_bpf_build::{Build, Declarations, Failure};

fn main() -> Result<(), Failure> {
    Build::new("../../bpf")?.declare(&mut Declarations::default(), "usher_layout")
}
