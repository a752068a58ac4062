//! Compiles the servers to which Usher is compared, the acts that usher-bench-mac counts, and its BPF
//! programs. Servers and acts are in C, because some fork.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use usher_bpf_build::Build;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=servers");
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    compile(&folder.join("usher-bench-server"), "servers/server.c", &[])?;
    compile(
        &folder.join("usher-bench-tiny"),
        "servers/tiny.c",
        &["-static"],
    )?;
    compile(
        &folder.join("usher-bench-acts"),
        "servers/acts.c",
        &["-static"],
    )?;
    println!("cargo::rerun-if-changed=modules");
    let build = Build::new("../bpf")?;
    build.compile("../bench/modules", "empty", "empty", &[])?;
    build.compile("../bench/modules", "file_open", "file_open", &[])
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
