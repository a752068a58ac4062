//! The structures of bpf/include/usher_mac_shown.h and usher_mac_label.h that are read and written here, in bytes.
//! A test compares each number with the header.

use std::ops::Range;

use usher_label::{ELEMENT_SIZE, MAXIMUM_ELEMENTS};

/// A process as an iterator shows it.
pub(crate) const SHOWN_SIZE: usize = 8 + MAXIMUM_ELEMENTS * SHOWN_ELEMENT_SIZE;
pub(crate) const SHOWN_PROCESS: Range<usize> = 0..4;
pub(crate) const SHOWN_ELEMENTS: Range<usize> = 8..SHOWN_SIZE;
/// The name of a module, and its element.
pub(crate) const SHOWN_ELEMENT_SIZE: usize = NAME_SIZE + ELEMENT_SIZE;

/// The name of a module.
pub(crate) const NAME_SIZE: usize = 32;

/// A call of a module.
pub(crate) const CALL_SIZE: usize = NAME_SIZE + 16;
pub(crate) const CALL_NUMBER: Range<usize> = NAME_SIZE..NAME_SIZE + 4;
pub(crate) const CALL_ARGUMENT: Range<usize> = NAME_SIZE + 8..NAME_SIZE + 16;

/// The framework is a program of the BPF LSM.
pub(crate) const LSM_ID: u64 = 109;

/// The attribute for a call of a module.
pub(crate) const ATTRIBUTE_CALL: u32 = 0x4d41;

/// The answer to a request that is carried out. A hook that returns 0 makes the kernel answer EOPNOTSUPP.
pub(crate) const DONE: i32 = 1111;

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_headers() {
        let sizes = [
            (SHOWN_SIZE, "shown"),
            (SHOWN_ELEMENT_SIZE, "shown_element"),
            (ELEMENT_SIZE, "element"),
            (CALL_SIZE, "call"),
        ];
        let fields = [
            (SHOWN_PROCESS, "shown", "process"),
            (SHOWN_ELEMENTS, "shown", "elements"),
            (0..NAME_SIZE, "shown_element", "module"),
            (NAME_SIZE..SHOWN_ELEMENT_SIZE, "shown_element", "element"),
            (0..NAME_SIZE, "call", "module"),
            (CALL_NUMBER, "call", "call"),
            (CALL_ARGUMENT, "call", "argument"),
        ];
        let constants = [
            (LSM_ID, "LSM_ID"),
            (ATTRIBUTE_CALL.into(), "ATTR_CALL"),
            (u64::from(DONE.unsigned_abs()), "DONE"),
        ];
        let mut text = "#include <stddef.h>\n#include \"usher_mac_shown.h\"\n".to_owned();
        let mut claim = |condition: String| {
            writeln!(text, "_Static_assert({condition}, \"{condition}\");").unwrap();
        };
        for (size, name) in sizes {
            claim(format!("sizeof(struct usher_mac_{name}) == {size}"));
        }
        for (place, name, field) in fields {
            let structure = format!("struct usher_mac_{name}");
            claim(format!("offsetof({structure}, {field}) == {}", place.start));
            claim(format!(
                "sizeof((({structure} *)0)->{field}) == {}",
                place.len()
            ));
        }
        for (value, name) in constants {
            claim(format!("USHER_MAC_{name} == {value}"));
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("layout.c");
        std::fs::write(&file, text).unwrap();
        let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf/include");
        let checked = Command::new("cc")
            .args(["-fsyntax-only", "-I"])
            .args([&headers, &file])
            .status();
        assert!(checked.unwrap().success());
    }
}
