//! The corpus of the fuzz targets. The name of each file begins with its outcome.

use std::path::Path;

use usher_label::{Defaults, Flavour, Label, LoginLabels, Specification};
use usher_language::Source;

fn replay(target: &str, accepts: impl Fn(Vec<u8>) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    let mut counts = [0, 0];
    for entry in std::fs::read_dir(corpus.join(target)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = match name.split('-').next() {
            Some("accepted") => true,
            Some("refused") => false,
            // The fuzzer's own finds have no outcome in their names.
            _ => continue,
        };
        assert_eq!(accepts(std::fs::read(&path).unwrap()), expected, "{name}");
        counts[usize::from(expected)] += 1;
    }
    assert!(
        counts.iter().all(|&count| count > 0),
        "{target}: {counts:?}"
    );
}

fn source(bytes: Vec<u8>) -> Option<Source> {
    Source::from_utf8("corpus".to_owned(), bytes).ok()
}

#[test]
fn labels_of_the_corpus_have_their_outcomes() {
    replay("label", |bytes| Label::from_attribute(&bytes).is_ok());
}

#[test]
fn mac_confs_of_the_corpus_have_their_outcomes() {
    replay("mac_conf", |bytes| {
        source(bytes).is_some_and(|source| Defaults::parse(source).is_ok())
    });
}

#[test]
fn mac_logins_of_the_corpus_have_their_outcomes() {
    replay("mac_login", |bytes| {
        source(bytes).is_some_and(|source| LoginLabels::parse(source).is_ok())
    });
}

#[test]
fn specifications_of_the_corpus_have_their_outcomes() {
    replay("specification", |bytes| {
        source(bytes).is_some_and(|source| Specification::parse(source, Flavour::Labels).is_ok())
    });
}
