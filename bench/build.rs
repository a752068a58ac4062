//! Compiles the servers to which Usher is compared. They are in C, because one of them forks.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=servers");
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    compile(&folder.join("usher-bench-server"), "servers/server.c", &[])?;
    compile(
        &folder.join("usher-bench-tiny"),
        "servers/tiny.c",
        &["-static"],
    )?;
    Ok(())
}

fn compile(program: &Path, source: &str, options: &[&str]) -> Result<(), Box<dyn Error>> {
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg("-o")
        .args([program.as_os_str(), source.as_ref()])
        .status()?;
    if !status.success() {
        return Err(format!("cc: {status}").into());
    }
    Ok(())
}
