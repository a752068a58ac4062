//! Threat model: M128

#![no_main]

use usher_label::{ElementKind, ElementList, Label};

const KINDS: [ElementKind; 4] = [
    ElementKind::Levels,
    ElementKind::Auxiliary,
    ElementKind::Number,
    ElementKind::Name,
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(label) = Label::from_attribute(bytes) {
        let text = label.to_string();
        assert_eq!(text.len(), bytes.len());
        assert_eq!(text.parse(), Ok(label.clone()));
        for (_, value) in label.elements() {
            for kind in KINDS {
                if let Ok(typed) = kind.read(value) {
                    let canonical = typed.to_value().expect("a value that was read has a text");
                    assert_eq!(kind.read(&canonical), Ok(typed));
                }
            }
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(list) = text.parse::<ElementList>()
    {
        assert_eq!(list.to_string(), text);
    }
});
