//! Finds Debian's Python: policies govern a program by its file, and /usr/bin/python3 is a link to one with
//! the version in its name, another one in each release of Debian.

use std::path::Path;

const LINK: &str = "/usr/bin/python3";

fn main() {
    println!("cargo::rerun-if-changed={LINK}");
    // Where there is none, what needs it says so.
    let python = std::fs::canonicalize(LINK).unwrap_or_else(|_| Path::new(LINK).into());
    println!("cargo::rustc-env=USHER_LAB_PYTHON={}", python.display());
}
