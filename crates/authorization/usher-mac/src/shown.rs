//! Labels of processes, shown to every process by iterators (bpf/mac/shown.bpf.c).

use std::path::Path;

use usher_bpf::{Code, Pins, Shown, code};

use crate::Error;

static CODE: Code = code!("usher_mac_shown", "shown");

/// The tables of the framework that the iterators read.
const TABLES: [&str; 3] = ["processes", "elements", "modules"];

/// The iterators, by the names that readers know (usher-system-label).
const ITERATORS: [Shown; 2] = [
    ("show_reader", Some("once"), "own"),
    ("show_processes", None, "processes"),
];

/// Shows the labels in a folder of the BPF file system.
///
/// # Errors
/// The kernel's error; some are shown then.
pub(crate) fn show(pins: &Pins, folder: &Path) -> Result<(), Error> {
    let object = CODE.open()?.pin(pins, Some(&TABLES))?.load()?;
    Ok(usher_bpf::show(&object, &ITERATORS, folder)?)
}
