//! Compiles the servers that Usher is compared with. In C, since one of them forks.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=servers");
    let server = PathBuf::from(env::var("OUT_DIR")?).join("usher-bench-server");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([server.as_os_str(), "servers/server.c".as_ref()])
        .status()?;
    if !status.success() {
        return Err(format!("cc: {status}").into());
    }
    Ok(())
}
