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
    build.compile("../bench/modules", "file_open", "file_open", &[])?;
    let home = cargo_home()?;
    println!("cargo::rustc-env=USHER_BENCH_CARGO_HOME={}", home.display());
    Ok(())
}

/// Where cargo unpacks crates: `bench/src/sources.rs` looks there when it runs. It is not asked here:
/// `cargo metadata --offline` fails without crates that no build fetches.
fn cargo_home() -> Result<PathBuf, Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=CARGO_HOME");
    match env::var_os("CARGO_HOME") {
        Some(home) => Ok(home.into()),
        None => Ok(env::home_dir().ok_or("no home directory")?.join(".cargo")),
    }
}

fn compile(program: &Path, source: &str, options: &[&str]) -> Result<(), Box<dyn Error>> {
    let status = Command::new("cc")
        // Warnings are refused by a test of usher-bpf-build.
        .arg("-O2")
        .args(options)
        .arg("-o")
        .args([program.as_os_str(), source.as_ref()])
        .status()?;
    if !status.success() {
        return Err(format!("cc: {status}").into());
    }
    Ok(())
}
