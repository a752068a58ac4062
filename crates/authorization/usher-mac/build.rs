//! Compiles the programs of `bpf/mac`, and declares what they share with this crate: structures, and the
//! table of entry points in `usher_mac_policy.h`.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use usher_bpf_build::{Build, Declarations, Failure};

fn main() -> Result<(), Failure> {
    let build = Build::new("../../../bpf")?;
    let mut declarations = Declarations::default();
    build.declare(&mut declarations, "usher_mac_label")?;
    build.declare(&mut declarations, "usher_mac_requests")?;
    build.declare(&mut declarations, "usher_mac_policy")?;
    build.declare(&mut declarations, "usher_mac_settings")?;
    build.compile("mac", "framework", "framework", &[])?;
    build.compile("mac", "shown", "shown", &[])?;
    for file in fs::read_dir("../../../bpf/mac/modules")? {
        let file = file?
            .file_name()
            .into_string()
            .map_err(|_| "a file's name is no text")?;
        if let Some(module) = file.strip_suffix(".bpf.c") {
            build.compile("mac/modules", module, module, &[])?;
        }
    }
    let header = fs::read_to_string("../../../bpf/include/usher_mac_policy.h")?;
    let out = Path::new(&env::var("OUT_DIR")?).join("points.rs");
    Ok(fs::write(out, declare(&header)?)?)
}

/// The table of entry points as a Rust enumeration.
fn declare(header: &str) -> Result<String, Failure> {
    let (mut members, mut rows) = (String::new(), String::new());
    let mut count = 0;
    for line in header.lines() {
        let Some(entry) = line.trim().strip_prefix("ENTRY(") else {
            continue;
        };
        let entry = entry.trim_end_matches(['\\', ' ']);
        let entry = entry.strip_suffix(')').ok_or("an entry point has no end")?;
        let columns: Vec<&str> = entry.splitn(7, ", ").collect();
        let &[name, form, hook, request, class, kernel, asked] = columns.as_slice() else {
            return Err(format!("the entry point {entry} has no seven columns").into());
        };
        let member = camel(name);
        writeln!(
            members,
            "    /// Asked when {}.\n    {member},",
            asked.trim_matches('"')
        )?;
        writeln!(
            rows,
            "    Declared {{ point: EntryPoint::{member}, name: \"{name}\", form: \"{form}\", \
             hook: \"{hook}\", request: \"{request}\", class: {class}, kernel: {kernel}, \
             asked: {asked} }},"
        )?;
        count += 1;
    }
    Ok(format!(
        "/// A kind of access, or another event, about which modules are asked.\n\
         #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]\n\
         pub enum EntryPoint {{\n{members}}}\n\n\
         static POINTS: [Declared; {count}] = [\n{rows}];\n"
    ))
}

fn camel(name: &str) -> String {
    let mut out = String::new();
    for word in name.split('_') {
        out.push_str(&word[..1].to_uppercase());
        out.push_str(&word[1..]);
    }
    out
}
