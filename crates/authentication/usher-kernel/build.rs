//! Compiles the kernel programs of `bpf/`, and declares what they share with this crate.

use usher_bpf_build::{Build, Declarations, Failure};

fn main() -> Result<(), Failure> {
    let build = Build::new("../../../bpf")?;
    for (folder, program) in [
        ("authentication/admission", "admission"),
        ("authentication/admission", "arriving"),
        ("authentication/destinations", "destinations"),
        ("authentication/ownership", "connection"),
        ("authentication/ownership", "fence"),
        ("guard", "daemons"),
        ("guard", "objects"),
        ("authentication/ports", "ports"),
        ("authentication/protected", "protected"),
        ("probe", "probe"),
        ("authentication/ticket", "gate"),
        ("authentication/ticket", "ticket"),
        ("probe", "token_writer"),
    ] {
        build.compile(folder, program, program, &[])?;
    }
    // This variant is for a test only.
    let pause = &["-DUSHER_PAUSE"];
    build.compile(
        "authentication/admission",
        "admission",
        "admission_paused",
        pause,
    )?;
    let mut declarations = Declarations::with_bytes(&["connection", "session_id"]);
    for header in [
        "usher_shared",
        "usher_token",
        "usher_ticket",
        "usher_destinations",
        "usher_ports",
        "usher_protected",
        "usher_guard",
        "usher_ownership",
        "usher_mac_label",
    ] {
        build.declare(&mut declarations, header)?;
    }
    Ok(())
}
