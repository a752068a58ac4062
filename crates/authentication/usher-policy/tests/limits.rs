//! The limits of a policy: the largest permitted value passes, the next one is refused.

use std::fmt::Debug;

use usher_language::{Mistake, SyntaxMistake};
use usher_policy::{
    MAXIMUM_ARGUMENT_BYTES, MAXIMUM_ERRORS, MAXIMUM_SOURCE_BYTES, MAXIMUM_STATEMENTS,
    PolicyMistake, Source, parse_policy, parse_with_groups,
};

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu";

/// The mistakes as they are called in the code.
fn outcome(texts: &[String]) -> Result<(), Vec<String>> {
    let sources: Vec<Source> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| Source {
            name: format!("{index}.policy"),
            text: text.clone(),
        })
        .collect();
    parse_policy(&sources).map(|_| ()).map_err(|errors| {
        errors
            .into_iter()
            .map(|error| format!("{:?}", error.kind))
            .collect()
    })
}

fn mistakes<M: Mistake + Debug>(mistakes: &[M]) -> Result<(), Vec<String>> {
    Err(mistakes
        .iter()
        .map(|mistake| format!("{mistake:?}"))
        .collect())
}

fn service_with(statement: &str) -> String {
    format!(
        "host h {{ address 10.77.0.1; key \"{KEY}\"; }}
         users u {{ member alice; }}
         service s {{ listen 143; users u; hosts h; style user; {statement} }}"
    )
}

#[test]
fn a_source_of_a_mebibyte_is_read_and_a_longer_one_is_not() {
    let mut text = "users u { member alice; }".to_owned();
    text.push_str(&"#".repeat(MAXIMUM_SOURCE_BYTES - text.len()));
    assert_eq!(outcome(std::slice::from_ref(&text)), Ok(()));
    text.push('#');
    let length = text.len();
    assert_eq!(
        outcome(&[text]),
        mistakes(&[SyntaxMistake::SourceTooLong { length }])
    );
}

#[test]
fn statements_are_counted_over_all_sources() {
    // Each block counts as one statement and has one.
    let blocks = |prefix: &str, number: usize| {
        (0..number)
            .map(|i| format!("users {prefix}{i} {{ member a; }}"))
            .collect::<String>()
    };
    let half = MAXIMUM_STATEMENTS / 4;
    let within = [blocks("a", half), blocks("b", half)];
    assert_eq!(outcome(&within), Ok(()));
    // One error, whatever the sources after it name.
    let dangling = "client c { users nowhere; }".to_owned();
    let beyond = [
        blocks("a", half),
        blocks("b", half),
        "users c { }".to_owned(),
        dangling,
    ];
    assert_eq!(
        outcome(&beyond),
        mistakes(&[SyntaxMistake::TooManyStatements])
    );
}

#[test]
fn errors_end_with_a_notice_that_there_are_more() {
    let exactly = outcome(&["}".repeat(MAXIMUM_ERRORS)]).expect_err("stray braces");
    assert_eq!(exactly, vec!["UnmatchedClose"; MAXIMUM_ERRORS]);
    let more = outcome(&["}".repeat(MAXIMUM_ERRORS + 1)]).expect_err("stray braces");
    assert_eq!(more.len(), MAXIMUM_ERRORS + 1);
    assert_eq!(more.last().map(String::as_str), Some("TooManyErrors"));
}

#[test]
fn a_worker_can_always_be_started_with_its_arguments() {
    // "/x" and each string count with their ending zero.
    let program =
        |length: usize| service_with(&format!("program \"/x\" \"{}\";", "a".repeat(length - 4)));
    assert_eq!(outcome(&[program(MAXIMUM_ARGUMENT_BYTES)]), Ok(()));
    assert_eq!(
        outcome(&[program(MAXIMUM_ARGUMENT_BYTES + 1)]),
        mistakes(&[PolicyMistake::ArgumentsTooLong {
            statement: "program".to_owned()
        }])
    );
    let environment = |length: usize| {
        let entry = format!("A={}", "a".repeat(length - 3));
        service_with(&format!("program \"/x\"; environment \"{entry}\";"))
    };
    assert_eq!(outcome(&[environment(MAXIMUM_ARGUMENT_BYTES)]), Ok(()));
    assert_eq!(
        outcome(&[environment(MAXIMUM_ARGUMENT_BYTES + 1)]),
        mistakes(&[PolicyMistake::ArgumentsTooLong {
            statement: "environment".to_owned()
        }])
    );
}

#[test]
fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
    let errors = outcome(&["a {".repeat(300_000)]).expect_err("nothing is closed");
    let [first, second] = errors.as_slice() else {
        panic!("{errors:?}");
    };
    assert!(first.starts_with("UnknownBlock"), "{first}");
    assert_eq!(second, "UnmatchedOpen");
}

#[test]
fn every_cut_of_a_correct_policy_is_read_without_panic() {
    let text = include_str!("golden/complete.policy");
    let groups = [("staff".parse().expect("a group's name"), Ok([].into()))].into();
    let parse = |sources: &[Source]| parse_with_groups(sources, &groups);
    let whole = parse(&[Source {
        name: "whole".to_owned(),
        text: text.to_owned(),
    }]);
    assert!(whole.is_ok());
    let mut refused = 0;
    for length in 0..text.len() {
        let cut = Source {
            name: "cut".to_owned(),
            text: text[..length].to_owned(),
        };
        match parse(&[cut]) {
            Err(_) => refused += 1,
            // A text that is cut between blocks is a smaller policy, never the same.
            Ok(policy) => assert!(Ok(policy) != whole || text[length..].trim().is_empty()),
        }
    }
    assert!(
        refused > text.len() / 2,
        "only {refused} of {} cuts were refused",
        text.len()
    );
}
