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
    /// `root`: the folder `bpf/`, from the package's own folder.
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
        let common = [
            "-mcpu=v3",
            "-Wall",
            "-Werror",
            &include,
            "-idirafter",
            &self.headers,
        ];
        let source = Path::new(folder).join(format!("{program}.bpf.c"));
        SkeletonBuilder::new()
            .source(self.root.join(&source))
            .obj(self.out.join(format!("{object}.bpf.o")))
            .clang_args(common.iter().chain(definitions))
            .build()
            .map_err(|error| {
                let source = source.display();
                format!(
                    "bpf/{source}: {error:#}; clang and linux-libc-dev are needed (scripts/setup \
                     installs them)"
                )
                .into()
            })
    }

    /// Writes the Rust declarations of `HEADER.h` to `HEADER.rs` in OUT_DIR. `declarations` has
    /// those of the headers that it includes.
    ///
    /// # Errors
    /// A declaration that Rust cannot have.
    pub fn declare(&self, declarations: &mut Declarations, header: &str) -> Result<(), Failure> {
        let path = self.root.join("include").join(format!("{header}.h"));
        let text = declarations.read(&std::fs::read_to_string(&path)?)?;
        Ok(std::fs::write(self.out.join(format!("{header}.rs")), text)?)
    }
}
