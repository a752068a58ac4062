//! C programs of the tests, compiled against libusher like an administrator's own.

use std::path::{Path, PathBuf};

use crate::error::{Attempt, LabError};
use crate::host::Host;

/// The folder in which a host's programs find libusher.so: that of Usher's programs.
pub const LIBRARY_PATH: &str = crate::command::BINARIES;

impl Host {
    /// Compiles a C program with warnings as errors and puts it on the host. Run it with
    /// `LD_LIBRARY_PATH` set to [`LIBRARY_PATH`].
    ///
    /// # Errors
    /// The compiler's output.
    pub fn compile_c(&self, source: &str, path: impl AsRef<Path>) -> Result<(), LabError> {
        let file = tempfile::Builder::new()
            .suffix(".c")
            .tempfile()
            .attempt(|| "cannot make a temporary file".into())?;
        std::fs::write(file.path(), source).attempt(|| "cannot write a C program".into())?;
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut arguments = ["-I".into(), root.join("include"), file.path().into()].to_vec();
        arguments.extend(["-L".into(), self.binaries().into(), "-lusher".into()]);
        compile(&arguments, &self.path(path))
    }

    /// Compiles a file of `programs`, which uses nothing of Usher's, with these flags.
    ///
    /// # Errors
    /// The compiler's output.
    pub fn compile_alone(
        &self,
        file: &str,
        flags: &[&str],
        path: impl AsRef<Path>,
    ) -> Result<(), LabError> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("programs");
        // Libraries stand behind what needs them.
        let mut arguments = vec![folder.join(file)];
        arguments.extend(flags.iter().map(PathBuf::from));
        compile(&arguments, &self.path(path))
    }

    /// Puts a software security key on the host: a library that OpenSSH's programs load if
    /// SSH_SK_PROVIDER names it (`programs/security_key.c`).
    ///
    /// # Errors
    /// The compiler's output.
    pub fn install_security_key(&self, path: impl AsRef<Path>) -> Result<(), LabError> {
        let flags = ["-shared", "-fPIC", "-lcrypto"];
        self.compile_alone("security_key.c", &flags, path)
    }
}

fn compile(arguments: &[PathBuf], program: &Path) -> Result<(), LabError> {
    let output = std::process::Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(program)
        .args(arguments)
        .output()
        .attempt(|| "cannot run the C compiler".into())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(std::io::Error::other(said)).attempt(|| "a C program does not compile".into())
}
