//! For build scripts: compiles the BPF programs of `bpf/`, and declares the contents of their
//! headers in Rust, so that both sides share one declaration.
//!
//! Room: reads `bpf/`, writes to the build folder. Only build scripts use it.
#![forbid(unsafe_code)]

mod declarations;

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

pub use declarations::Declarations;

/// An error in words.
pub type Failure = Box<dyn std::error::Error>;

/// The folders of the sources and of the output.
#[derive(Debug)]
pub struct Build {
    root: PathBuf,
    out: PathBuf,
    headers: String,
}

impl Build {
    /// `root`: the path of `bpf/` from the package's folder.
    ///
    /// # Errors
    /// Outside a build script.
    pub fn new(root: &str) -> Result<Self, Failure> {
        println!("cargo::rerun-if-changed={root}");
        let architecture = env::var("CARGO_CFG_TARGET_ARCH")?;
        Ok(Self {
            root: root.into(),
            out: env::var("OUT_DIR")?.into(),
            // Debian's place of asm/types.h.
            headers: format!("/usr/include/{architecture}-linux-gnu"),
        })
    }

    /// Compiles `FOLDER/PROGRAM.bpf.c` to `OBJECT.bpf.o` in OUT_DIR.
    ///
    /// # Errors
    /// clang's errors.
    pub fn compile(
        &self,
        folder: &str,
        program: &str,
        object: &str,
        definitions: &[&str],
    ) -> Result<(), Failure> {
        let include = format!("-I{}", self.root.join("include").display());
        // Warnings do not fail this build, because a newer clang or newer headers may bring some.
        // tests/warnings.rs refuses them.
        let common = ["-mcpu=v3", &include, "-idirafter", &self.headers];
        let source = Path::new(folder).join(format!("{program}.bpf.c"));
        SkeletonBuilder::new()
            .source(self.root.join(&source))
            .obj(self.out.join(format!("{object}.bpf.o")))
            .clang_args(common.iter().chain(definitions))
            .build()
            .map_err(|error| {
                let (source, error) = (source.display(), format!("{error:#}"));
                format!("bpf/{source}: {error}{}", remedy(&error)).into()
            })
    }

    /// Writes the Rust declarations of `HEADER.h` to `HEADER.rs` in OUT_DIR. `declarations` must have the
    /// declarations of the headers that `HEADER.h` includes.
    ///
    /// # Errors
    /// A declaration that Rust cannot have.
    pub fn declare(&self, declarations: &mut Declarations, header: &str) -> Result<(), Failure> {
        let path = self.root.join("include").join(format!("{header}.h"));
        let text = declarations.read(&std::fs::read_to_string(&path)?)?;
        Ok(std::fs::write(self.out.join(format!("{header}.rs")), text)?)
    }
}

/// The remedy for an error of compiling; empty where clang's own words suffice.
fn remedy(error: &str) -> &'static str {
    if error.contains("failed to execute") {
        "; clang is needed: `scripts/setup build` installs it"
    } else if error.contains("file not found") {
        "; the kernel's headers are needed (Debian: linux-libc-dev): `scripts/setup build` installs them"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of compiling this program.
    fn compiled(name: &str, program: &str) -> Result<(), String> {
        let folder = env::temp_dir().join(format!("usher-bpf-build-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("program.bpf.c"), program).unwrap();
        let build = Build {
            root: folder.clone(),
            out: folder.clone(),
            headers: format!("/usr/include/{}-linux-gnu", env::consts::ARCH),
        };
        let result = build.compile("", "program", "program", &[]);
        std::fs::remove_dir_all(folder).unwrap();
        result.map_err(|error| error.to_string())
    }

    #[test]
    fn a_warning_is_no_error_of_a_build() {
        let redefined = "#define ONE 1\n#define ONE (1)\nint one = ONE;\n";
        assert_eq!(compiled("warning", redefined), Ok(()));
    }

    #[test]
    fn a_mistake_is_not_blamed_on_packages() {
        let error = compiled("mistake", "int one = two;\n").unwrap_err();
        assert!(error.contains("undeclared identifier 'two'"), "{error}");
        assert!(!error.contains("needed"), "{error}");
    }

    #[test]
    fn an_absent_header_names_its_package() {
        let error = compiled("header", "#include <linux/usher_absent.h>\n").unwrap_err();
        assert!(error.contains("linux-libc-dev"), "{error}");
    }

    #[test]
    fn an_absent_compiler_names_its_package() {
        let missing = "failed to execute `clang`: No such file or directory (os error 2)";
        assert!(remedy(missing).contains("clang is needed"));
    }
}
