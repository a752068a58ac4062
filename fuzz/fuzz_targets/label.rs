#![no_main]

use usher_label::{ElementList, Label};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(label) = Label::from_attribute(bytes) {
        let text = label.to_string();
        assert_eq!(text.len(), bytes.len());
        assert_eq!(text.parse(), Ok(label));
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(list) = text.parse::<ElementList>()
    {
        assert_eq!(list.to_string(), text);
    }
});
