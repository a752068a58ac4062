//! Compiles the kernel programs of `bpf/` with clang.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let architecture = env::var("CARGO_CFG_TARGET_ARCH")?;
    // Where Debian keeps asm/types.h.
    let headers = format!("/usr/include/{architecture}-linux-gnu");
    let compile = |folder: &str, program: &str, object: &str, definitions: &[&str]| {
        let common = [
            "-mcpu=v3",
            "-Wall",
            "-Werror",
            "-I../../bpf/include",
            "-idirafter",
            &headers,
        ];
        SkeletonBuilder::new()
            .source(root.join(folder).join(format!("{program}.bpf.c")))
            .obj(out.join(format!("{object}.bpf.o")))
            .clang_args(common.iter().chain(definitions))
            .build()
            .map_err(|error| format!("bpf/{folder}/{program}: {error:#}; clang and linux-libc-dev are needed (scripts/setup installs them)"))
    };
    for (folder, program) in [
        ("admission", "admission"),
        ("destinations", "destinations"),
        ("ownership", "connection"),
        ("ownership", "fence"),
        ("ownership", "protection"),
        ("ports", "ports"),
        ("probe", "probe"),
        ("ticket", "guard"),
        ("ticket", "ticket"),
        ("probe", "token_writer"),
    ] {
        compile(folder, program, program, &[])?;
    }
    // For a test only.
    compile(
        "admission",
        "admission",
        "admission_paused",
        &["-DUSHER_PAUSE"],
    )?;
    println!("cargo::rerun-if-changed=../../bpf");
    Ok(())
}
