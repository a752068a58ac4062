//! Compiles the programs of `bpf/ipsec`, and declares what it shares with this crate.

use usher_bpf_build::{Build, Declarations, Failure};

fn main() -> Result<(), Failure> {
    let build = Build::new("../../../bpf")?;
    build.compile("ipsec", "monitor", "monitor", &[])?;
    build.compile("ipsec", "packets", "packets", &[])?;
    build.compile("ipsec", "live", "live", &[])?;
    build.compile("ipsec", "calls", "calls", &[])?;
    build.compile("ipsec", "services", "services", &[])?;
    build.compile("ipsec", "scripts", "scripts", &[])?;
    build.declare(&mut Declarations::default(), "usher_ipsec")
}
