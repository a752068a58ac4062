//! Gives the shared library the name by which programs ask for it at run time (DT_SONAME), which
//! cargo does not.

use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// The library's name: the same for all versions between which programs need not be built again.
const SONAME: &str = concat!("libusher.so.", env!("CARGO_PKG_VERSION_MAJOR"));

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // Programs linked with the library in its build folder look there for this name.
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from);
    // OUT_DIR is PROFILE/build/libusher-HASH/out.
    let built = out.as_deref().and_then(|out| out.ancestors().nth(3));
    let built = built.ok_or_else(|| io::Error::other("OUT_DIR is not below a profile's folder"))?;
    match symlink("libusher.so", built.join(SONAME)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
