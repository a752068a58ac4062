//! Threat model: M128

#![no_main]

use usher_label::{FileKind, Flavour, Specification};
use usher_language::Source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = Source::from_utf8("specification".to_owned(), bytes.to_vec()) else {
        return;
    };
    for flavour in [Flavour::Labels, Flavour::Contexts] {
        let Ok(file) = Specification::parse(source.clone(), flavour) else {
            continue;
        };
        for path in [&b"/"[..], b"/etc/motd", b"/home/a\nb", b"/\xff"] {
            for kind in [FileKind::Regular, FileKind::Directory] {
                if let Some(entry) = file.find(path, kind) {
                    assert!(entry.kind.is_none_or(|wanted| wanted == kind));
                }
            }
        }
    }
});
