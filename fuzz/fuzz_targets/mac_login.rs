//! Threat model: M128

#![no_main]

use usher_label::LoginLabels;
use usher_language::Source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = Source::from_utf8("mac.login".to_owned(), bytes.to_vec()) else {
        return;
    };
    if let Ok(labels) = LoginLabels::parse(source) {
        let text = |labels: &LoginLabels| -> String {
            let lines = labels.lines().map(|line| {
                let label = line.label.as_ref().map_or("-".to_owned(), ToString::to_string);
                format!("{} {label}\n", line.subject)
            });
            lines.collect()
        };
        let canonical = text(&labels);
        let again = Source { name: String::new(), text: canonical.clone() };
        assert_eq!(LoginLabels::parse(again).map(|again| text(&again)), Ok(canonical));
        let decided = labels.decide("alice", |group| Ok::<_, ()>(group == "staff"));
        assert!(decided.is_ok());
    }
});
