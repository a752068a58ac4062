//! Threat model: M128

#![no_main]

use usher_label::Defaults;
use usher_language::Source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = Source::from_utf8("mac.conf".to_owned(), bytes.to_vec()) else {
        return;
    };
    if let Ok(defaults) = Defaults::parse(source) {
        let lines = defaults.classes().map(|(class, list)| format!("default_labels {class} {list}\n"));
        let again = Source { name: String::new(), text: lines.collect() };
        assert_eq!(Defaults::parse(again), Ok(defaults));
    }
});
