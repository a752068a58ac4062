//! Statements of `portacl`: read, checked with place and remedy, and printed so that they read back.

mod shared;

use proptest::prelude::*;
use shared::{Statements, of};
use usher_mac_blocks::ModuleSettings;
use usher_mac_blocks::portacl::PortAcl;

const PORTACL: Statements = of("portacl");

fn settings(statements: &str) -> PortAcl {
    match PORTACL.settings(statements) {
        ModuleSettings::Portacl(settings) => settings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn permits_are_read_and_printed_in_order() {
    let text = "permit group mail udp 25; permit user www tcp 80; autoport_exempt yes; \
                permit user 1000 tcp 25; port_high 2000; suser_exempt no;";
    let lines = [
        "permit user 1000 tcp 25",
        "permit group mail udp 25",
        "permit user www tcp 80",
        "port_high 2000",
        "suser_exempt no",
    ];
    assert_eq!(PORTACL.lines(text), lines);
    assert_eq!(PORTACL.lines(&format!("{};", lines.join("; "))), lines);
    assert!(!settings(text).suser_exempt && settings(text).autoport_exempt);
    assert_eq!(settings("autoport_exempt no; port_high 0;").port_high, 0);
}

#[test]
fn an_empty_block_means_the_defaults_of_freebsd() {
    assert_eq!(settings(""), PortAcl::default());
    assert_eq!(
        settings("port_high 1023; suser_exempt yes;"),
        PortAcl::default()
    );
    assert!(PORTACL.lines("").is_empty());
}

#[test]
fn each_mistake_has_its_place_and_remedy() {
    for (statement, place, told, remedy) in [
        (
            "permit user www tcp;",
            "2:3",
            "`permit` lacks a value",
            "permit",
        ),
        (
            "permit people www tcp 80;",
            "2:10",
            "`people` is not one of user",
            "user or group",
        ),
        (
            "permit user www sctp 80;",
            "2:19",
            "`sctp` is not one of tcp",
            "tcp or udp",
        ),
        (
            "permit user www tcp 65536;",
            "2:23",
            "not a number from 0",
            "65535",
        ),
        (
            "permit user www tcp 80, 81;",
            "2:27",
            "`81` does not belong",
            "permit",
        ),
        (
            "permit user 9x tcp 80;",
            "2:15",
            "`9x` is neither the name nor the number of a user",
            "4294967294",
        ),
        (
            "permit group 4294967295 tcp 80;",
            "2:16",
            "number of a group",
            "a name",
        ),
        (
            "permit user a udp 1; permit user a udp 1;",
            "2:31",
            "the same `permit` stands at mac.policy:2:10",
            "remove",
        ),
        ("port_high 65536;", "2:13", "not a number from 0", "65535"),
        (
            "suser_exempt maybe;",
            "2:16",
            "not one of yes, no",
            "yes or no",
        ),
        (
            "suser_exempt yes; suser_exempt yes;",
            "2:21",
            "`suser_exempt`",
            "",
        ),
        ("rule mode n;", "2:3", "no statement `rule`", "permit"),
    ] {
        PORTACL.refused(statement, place, told, remedy);
    }
    let permits = |count: usize| (0..count).map(|port| format!("permit user a tcp {port};\n"));
    assert_eq!(PORTACL.lines(&permits(256).collect::<String>()).len(), 256);
    let one_more: String = permits(257).collect();
    PORTACL.refused(&one_more, "258:1", "one more than the 256", "a group");
}

#[test]
fn permits_of_ports_that_everybody_binds_are_found() {
    let needless = |statements: &str| -> Vec<String> {
        let settings = settings(statements);
        settings
            .needless()
            .map(|(permit, _)| permit.to_string())
            .collect()
    };
    let permits = "permit user a tcp 0; permit user a tcp 1023; permit user a tcp 1024;";
    assert_eq!(
        needless(permits),
        ["permit user a tcp 0", "permit user a tcp 1024"]
    );
    let strict = format!("{permits} port_high 1024; autoport_exempt no;");
    assert!(needless(&strict).is_empty());
    // The others are needed.
    let found = settings(permits);
    let needed: Vec<String> = found
        .needed()
        .map(|(permit, _)| permit.to_string())
        .collect();
    assert_eq!(needed, ["permit user a tcp 1023"]);
    assert_eq!(settings(&strict).needed().count(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_words_are_statements_or_mistakes(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "permit", "user", "group", "tcp", "udp", "0", "80", "www", "port_high", "suser_exempt", "yes",
                "no", "autoport_exempt", ";", ",", "\"a\"",
            ]),
            0..16,
        )
    ) {
        PORTACL.are_read_back_or_refused(&format!("{};", words.join(" ")))?;
    }
}
