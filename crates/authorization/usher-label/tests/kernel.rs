//! The kernel's reader of values (bpf/include/usher_mac_text.h), compiled for user space, against the model of
//! this crate.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use usher_label::{ElementKind, ElementValue, Level, TypedValue};

const KINDS: [ElementKind; 4] = [
    ElementKind::Levels,
    ElementKind::Auxiliary,
    ElementKind::Number,
    ElementKind::Name,
];

/// How many texts are compared.
const TEXTS: usize = 20_000;

/// The answers of the kernel's reader, a line each.
fn answers(questions: &[String]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("kernel");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover"])
        .arg("-I")
        .arg(here.join("../../../bpf/include"))
        .arg("-o")
        .args([&program, &here.join("tests/kernel.c")])
        .status();
    assert!(compiled.unwrap().success());
    let input = folder.path().join("questions");
    let mut file = std::fs::File::create(&input).unwrap();
    for question in questions {
        writeln!(file, "{question}").unwrap();
    }
    let output = Command::new(&program)
        .stdin(std::fs::File::open(&input).unwrap())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), questions.len());
    lines
}

fn hexadecimal(value: &TypedValue) -> String {
    value
        .to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Texts that are nearly values of some kind.
fn texts() -> Vec<String> {
    const PARTS: [&str; 22] = [
        "low",
        "high",
        "equal",
        "hig",
        "0",
        "1",
        "7",
        "10",
        "255",
        "256",
        "257",
        "65535",
        "65536",
        "4294967295",
        "(",
        "-",
        ")",
        "[",
        "]",
        ":",
        "+",
        "a_.@",
    ];
    let level =
        "(low|high|equal|[0-9]{1,5}|[1-9][0-9]{0,3}:[1-9][0-9]{0,2}(\\+[1-9][0-9]{0,2}){0,4})";
    let levels = format!("({level})?(\\({level}-{level}\\))?(\\[{level}\\])?");
    let strategy = prop_oneof![
        2 => proptest::string::string_regex(&levels).unwrap(),
        2 => proptest::collection::vec(proptest::sample::select(&PARTS[..]), 0..12)
            .prop_map(|parts| parts.concat()),
        1 => "[A-Za-z0-9_.:+()\\[\\]=@-]{1,70}",
        1 => "[0-9]{1,12}",
    ];
    let mut runner = TestRunner::default();
    let texts = (0..TEXTS).map(|_| strategy.new_tree(&mut runner).unwrap().current());
    texts.collect()
}

#[test]
fn the_kernel_reads_the_values_that_the_model_reads() {
    let texts = texts();
    let values = texts
        .iter()
        .filter_map(|text| Some((text, text.parse::<ElementValue>().ok()?)));
    let cases = values.flat_map(|(text, value)| KINDS.map(|kind| (text, value.clone(), kind)));
    let cases: Vec<_> = cases.collect();
    let questions = cases
        .iter()
        .map(|(text, _, kind)| format!("{} {text}", kind.number()));
    let answers = answers(&questions.collect::<Vec<_>>());
    let (mut read, mut refused) = (0, 0);
    for ((text, value, kind), answer) in cases.iter().zip(answers) {
        let expected = match kind.read(value) {
            Ok(typed) => {
                read += 1;
                hexadecimal(&typed)
            }
            Err(_) => {
                refused += 1;
                "-".to_owned()
            }
        };
        assert_eq!(answer, expected, "{kind:?} {text}");
    }
    assert!(read > TEXTS / 4 && refused > TEXTS / 4, "{read} {refused}");
}

#[test]
fn the_kernel_orders_levels_as_the_model_does() {
    let level = "(low|high|equal|[0-3]|[0-3]:[1-9](\\+[1-9]){0,2}|[0-3]:25[0-6])";
    let pairs = format!("{level} {level}");
    let strategy = proptest::string::string_regex(&pairs).unwrap();
    let mut runner = TestRunner::default();
    let pairs: Vec<String> = (0..TEXTS)
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .collect();
    let questions: Vec<_> = pairs.iter().map(|pair| format!("> {pair}")).collect();
    let mut counts = [0, 0];
    for (pair, answer) in pairs.iter().zip(answers(&questions)) {
        let (level, other) = pair.split_once(' ').unwrap();
        let [level, other]: [Level; 2] = [level, other].map(|text| text.parse().unwrap());
        let expected = level.dominates(&other);
        counts[usize::from(expected)] += 1;
        assert_eq!(answer, u8::from(expected).to_string(), "{pair}");
    }
    assert!(counts.iter().all(|count| *count > TEXTS / 10), "{counts:?}");
}
