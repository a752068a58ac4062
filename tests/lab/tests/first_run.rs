//! What a reader of README meets first: the toolchain that scripts/setup asks for, and the program that
//! serves mail.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What works in the demo is what readers are told to write.
#[test]
fn documents_start_imap_as_the_demo_does() -> Result {
    fn words(text: &str) -> String {
        let words = text.split_whitespace().filter(|word| *word != "#");
        words.collect::<Vec<_>>().join(" ")
    }
    for document in [
        "README.md",
        "docs/start.md",
        "docs/policy.md",
        "docs/writing-a-service.md",
        "crates/usher/src/commands/example.policy",
        "crates/usher/src/commands/setup/site.rs",
    ] {
        let text = words(&fs::read_to_string(root().join(document))?);
        let begin = text.matches("/usr/lib/dovecot/imap\" ").count();
        let whole = text.matches(&words(usher_lab::imap!())).count();
        assert!(begin > 0 && begin == whole, "{document}: {begin}, {whole}");
    }
    Ok(())
}

/// A folder with programs that print these versions as cargo and rustc do.
fn toolchain(name: &str, cargo: &str, rustc: &str) -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("usher-{name}-{}", std::process::id()));
    fs::create_dir_all(folder.join("bin"))?;
    for (tool, version) in [("cargo", cargo), ("rustc", rustc)] {
        let path = folder.join("bin").join(tool);
        fs::write(&path, format!("#!/bin/sh\necho '{tool} {version}'\n"))?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    }
    Ok(folder)
}

/// Runs scripts/setup, which finds the first toolchain in PATH, and the second, if any, in rustup's place.
fn setup(in_path: &Path, of_rustup: Option<&Path>) -> Result<Output> {
    let home = of_rustup.unwrap_or_else(|| Path::new("/nonexistent"));
    let path = format!("{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", in_path.display());
    let mut setup = Command::new(root().join("scripts/setup"));
    setup.arg("build").env("PATH", path).env("CARGO_HOME", home);
    Ok(setup.output()?)
}

#[test]
fn setup_names_a_toolchain_that_is_too_old() -> Result {
    let old = toolchain("old", "1.85.1 (d73d2caf9 2024-12-31)", "1.95.0 (x)")?;
    let odd = toolchain("odd", "1.95.0 (x)", "1.85.1 (d73d2caf9 2024-12-31)")?;
    for (folder, tool) in [(&old, "cargo"), (&odd, "rustc")] {
        let output = setup(folder, None)?;
        let told = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{told}");
        let named = format!("{}/bin/{tool} is {tool} 1.85.1", folder.display());
        assert!(told.contains(&named) && told.contains("rustup"), "{told}");
    }
    let new = toolchain("new", "1.90.0 (x)", "1.90.0 (x)")?;
    for output in [setup(&new, None)?, setup(&old, Some(&new))?] {
        let told = String::from_utf8(output.stdout)?;
        assert!(output.status.success(), "{told}");
        assert!(told.contains("nothing to install"), "{told}");
    }
    for folder in [old, odd, new] {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}
