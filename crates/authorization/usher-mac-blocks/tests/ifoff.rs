//! Statements of `ifoff`: read, checked with place and remedy, and printed so that they read back.

mod shared;

use shared::{Statements, of};
use usher_mac_blocks::MAXIMUM_SWITCHES;
use usher_mac_blocks::ModuleSettings;
use usher_mac_blocks::ifoff::IfOff;

const IFOFF: Statements = of("ifoff");

fn settings(statements: &str) -> IfOff {
    match IFOFF.settings(statements) {
        ModuleSettings::Ifoff(settings) => settings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn switches_are_read_and_printed_in_order() {
    let text =
        "capture on; interface \"wg-home.7\" off; others on; interface \"eth0\" on; loopback off;";
    let lines = [
        "loopback off",
        "interface \"eth0\" on",
        "interface \"wg-home.7\" off",
        "others on",
        "capture on",
    ];
    assert_eq!(IFOFF.lines(text), lines);
    assert_eq!(IFOFF.lines(&format!("{};", lines.join("; "))), lines);
    let default = "loopback on; others off; capture off;";
    assert!(IFOFF.lines(default).is_empty());
    assert_eq!(settings(default), IfOff::default());
    assert_eq!(settings(""), IfOff::default());
}

#[test]
fn sixty_four_switches_are_permitted_and_no_more() {
    let of = |count: usize| {
        let switches = (0..count).map(|number| format!("interface \"eth{number}\" on;\n"));
        switches.collect::<String>()
    };
    let many = of(MAXIMUM_SWITCHES);
    assert_eq!(IFOFF.lines(&many).len(), MAXIMUM_SWITCHES);
    let told = "one more than the 64 that ifoff takes";
    IFOFF.refused(&of(MAXIMUM_SWITCHES + 1), "66:1", told, "`others`");
}

#[test]
fn each_mistake_has_its_place_and_remedy() {
    let long = format!("interface \"{}\" on;", "e".repeat(16));
    for (statement, place, told, remedy) in [
        ("loopback;", "2:3", "`loopback` lacks a value", "on"),
        ("others yes;", "2:10", "not one of on, off", "on or off"),
        ("capture on; capture on;", "2:15", "`capture`", ""),
        ("interface eth0 on;", "2:13", "eth0", "put it between"),
        ("interface \"eth0\";", "2:3", "`interface`", ""),
        ("interface \"eth0\" up;", "2:20", "up", "on or off"),
        (
            "interface \"a/b\" on;",
            "2:13",
            "no name of a network interface",
            "`ip link`",
        ),
        (&long, "2:13", "no name of a network interface", "15 bytes"),
        (
            "interface \"lo\" on;",
            "2:13",
            "`lo` is the interface of every",
            "`loopback on`",
        ),
        (
            "interface \"a\" on; interface \"a\" off;",
            "2:31",
            "listed",
            "",
        ),
        ("silence all;", "2:3", "no statement `silence`", "loopback"),
    ] {
        IFOFF.refused(statement, place, told, remedy);
    }
    IFOFF
        .are_read_back_or_refused("interface \"a b\" on;")
        .unwrap();
}

#[test]
fn a_policy_that_cuts_the_host_off_is_found() {
    for statements in ["", "capture on;", "interface \"eth0\" off;"] {
        assert!(settings(statements).cuts_off(), "{statements}");
    }
    for statements in ["others on;", "interface \"a\" off; interface \"b\" on;"] {
        assert!(!settings(statements).cuts_off(), "{statements}");
    }
}

#[test]
fn switches_that_say_what_others_says_are_found() {
    let needless = |statements: &str| {
        let found = settings(statements);
        found.needless().map(str::to_owned).collect::<Vec<_>>()
    };
    let both = "interface \"a\" on; interface \"b\" off;";
    assert_eq!(needless(both), ["b"]);
    assert_eq!(needless(&format!("{both} others on;")), ["a"]);
}
