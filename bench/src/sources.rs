//! The C project that `usher-bench-mac` compiles: zlib, as the crate libbpf-sys has it, which every build
//! of Usher unpacks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where cargo has unpacked crates, unless the environment said otherwise when this was built.
const CARGO_HOME: &str = env!("USHER_BENCH_CARGO_HOME");
/// Which version of libbpf-sys was built.
const LOCK: &str = include_str!("../../Cargo.lock");

/// The folder of zlib's sources.
///
/// # Errors
/// `NotFound` when cargo has not unpacked them, or no longer has them.
pub fn zlib() -> io::Result<PathBuf> {
    find(Path::new(CARGO_HOME), LOCK)
}

/// The same in this folder of cargo, for this Cargo.lock.
fn find(cargo_home: &Path, lock: &str) -> io::Result<PathBuf> {
    let version = lock
        .split_once("name = \"libbpf-sys\"\nversion = \"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(version, _)| version)
        .ok_or_else(|| io::Error::other("Cargo.lock has no libbpf-sys"))?;
    let unpacked = cargo_home.join("registry/src");
    let absent = |error: &dyn std::fmt::Display| {
        let place = unpacked.display();
        let text = format!(
            "{place}: no sources of zlib in libbpf-sys {version} ({error}): run `cargo fetch`, and build \
             usher-bench with the same CARGO_HOME"
        );
        io::Error::new(io::ErrorKind::NotFound, text)
    };
    // One folder for each registry.
    for registry in fs::read_dir(&unpacked).map_err(|error| absent(&error))? {
        let sources = registry?.path().join(format!("libbpf-sys-{version}/zlib"));
        if sources.join("zlib.h").is_file() {
            return Ok(sources);
        }
    }
    Err(absent(&"in no registry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "[[package]]\nname = \"libbpf-sys\"\nversion = \"2.0\"\n";

    #[test]
    fn the_sources_of_this_build_are_found() {
        let found = zlib().unwrap();
        assert!(found.join("inflate.c").is_file(), "{}", found.display());
    }

    #[test]
    fn only_the_version_that_was_built_counts() {
        let home = std::env::temp_dir().join(format!("usher-bench-sources-{}", std::process::id()));
        for version in ["1.0", "2.0"] {
            let folder = home.join(format!(
                "registry/src/some-{version}/libbpf-sys-{version}/zlib"
            ));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("zlib.h"), "").unwrap();
        }
        let found = find(&home, TWO).unwrap();
        assert!(
            found.ends_with("some-2.0/libbpf-sys-2.0/zlib"),
            "{}",
            found.display()
        );
        let error = find(&home, &TWO.replace("2.0", "3.0")).unwrap_err();
        assert!(error.to_string().contains("libbpf-sys 3.0"), "{error}");
        fs::remove_dir_all(&home).unwrap();
        let error = find(&home, TWO).unwrap_err();
        assert!(error.to_string().contains("cargo fetch"), "{error}");
    }
}
