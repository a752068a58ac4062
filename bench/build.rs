//! Compiles the servers to which Usher is compared, the acts that usher-bench-mac counts, and its BPF
//! programs. Servers and acts are in C, because some fork. Finds the C project that usher-bench-mac
//! compiles: zlib, as libbpf-sys has it.

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
    println!("cargo::rerun-if-changed=../Cargo.lock");
    println!("cargo::rustc-env=USHER_BENCH_ZLIB={}", zlib()?.display());
    Ok(())
}

/// The folder of zlib's sources.
fn zlib() -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", &env::var("TARGET")?])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let package = packages
        .iter()
        .find(|package| package["name"] == "libbpf-sys");
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.ok_or("no libbpf-sys, which has the sources of zlib")?;
    Ok(Path::new(manifest).with_file_name("zlib"))
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
