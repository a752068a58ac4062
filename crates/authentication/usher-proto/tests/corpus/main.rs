//! Replays the fuzzers' corpus: every input must have the outcome its file name begins with.
#![forbid(unsafe_code)]

#[path = "../../../../../fuzz/checks.rs"]
mod checks;
#[path = "../common/mod.rs"]
mod common;
mod daemons;
mod frames;
mod inputs;
mod programs;
mod signed;

use common::{client_frames, statement};
use inputs::Inputs;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

type Check = fn(&[u8]) -> &'static str;

const TARGETS: [(&str, Check); 13] = [
    ("agent", checks::agent),
    ("calls", checks::calls),
    ("certificate", checks::certificate),
    ("revoked_keys", checks::revoked_keys),
    ("statement", checks::statement),
    ("authenticator", checks::authenticator),
    ("client_frame", checks::client_frame),
    ("server_frame", checks::server_frame),
    ("keeper_record", checks::keeper_record),
    ("lending", checks::lending),
    ("local", checks::local),
    ("recorder", checks::recorder),
    ("relay", checks::relay),
];

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../fuzz/corpus")
        .join(target)
}

#[test]
fn every_input_has_the_outcome_in_its_name() {
    for (target, check) in TARGETS {
        let mut outcomes = BTreeSet::new();
        for entry in fs::read_dir(folder(target)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "bin") {
                continue;
            }
            let name = path.file_stem().unwrap().to_str().unwrap();
            let (outcome, _) = name.split_once('-').unwrap();
            let bytes = fs::read(&path).unwrap();
            assert_eq!(check(&bytes), outcome, "{target}/{name}");
            outcomes.insert(outcome.to_owned());
        }
        for outcome in ["accepted", "truncated", "oversized", "malformed"] {
            assert!(
                outcomes.contains(outcome),
                "{target} has no {outcome} input"
            );
        }
    }
}

/// The encoders return the bytes of the corpus: the formats have not changed.
#[test]
fn the_formats_are_those_of_the_corpus() {
    let read = |target: &str, name: &str| fs::read(folder(target).join(name)).unwrap();
    assert_eq!(statement().encode(), read("statement", "accepted-ipv4.bin"));
    for (name, frame) in client_frames() {
        let file = format!("accepted-{name}.bin");
        assert_eq!(frame.encode()[4..], read("client_frame", &file), "{name}");
    }
}

/// Writes the corpus. Not a test of anything: run by hand after a format was added.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_corpus() {
    write("agent", signed::agent());
    write("calls", programs::calls());
    write("certificate", signed::certificates());
    write("revoked_keys", signed::revoked_keys());
    write("statement", signed::statements());
    write("authenticator", signed::signatures());
    write("client_frame", frames::client());
    write("server_frame", frames::server());
    write("keeper_record", daemons::keeper());
    write("lending", programs::lending());
    write("local", programs::local());
    write("recorder", daemons::recorder());
    write("relay", frames::relay());
}

/// Names each input after the outcome it has now; a person reads the names before committing.
fn write(target: &str, inputs: Inputs) {
    let check = TARGETS.iter().find(|(name, _)| *name == target).unwrap().1;
    fs::create_dir_all(folder(target)).unwrap();
    for (name, bytes) in inputs {
        let path = folder(target).join(format!("{}-{name}.bin", check(&bytes)));
        fs::write(path, bytes).unwrap();
    }
}
