//! Statements of `seeotheruids`: read, checked with place and remedy, and printed so that they read back.

mod shared;

use shared::{Statements, of};
use usher_mac_blocks::ModuleSettings;
use usher_mac_blocks::seeotheruids::SeeOtherUids;

const SEEOTHERUIDS: Statements = of("seeotheruids");

fn settings(statements: &str) -> SeeOtherUids {
    match SEEOTHERUIDS.settings(statements) {
        ModuleSettings::Seeotheruids(settings) => settings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn exemptions_are_read_and_printed_in_order() {
    let text = "suser_privileged no; primarygroup yes; specificgid staff;";
    let lines = [
        "specificgid staff",
        "primarygroup yes",
        "suser_privileged no",
    ];
    assert_eq!(SEEOTHERUIDS.lines(text), lines);
    assert_eq!(SEEOTHERUIDS.lines(&format!("{};", lines.join("; "))), lines);
    assert_eq!(SEEOTHERUIDS.lines("specificgid 0;"), ["specificgid 0"]);
    let default = "primarygroup no; suser_privileged yes;";
    assert!(SEEOTHERUIDS.lines(default).is_empty());
    assert_eq!(settings(default), SeeOtherUids::default());
    assert_eq!(settings(""), SeeOtherUids::default());
}

#[test]
fn each_mistake_has_its_place_and_remedy() {
    for (statement, place, told, remedy) in [
        (
            "specificgid;",
            "2:3",
            "`specificgid` lacks a value",
            "GROUP",
        ),
        (
            "specificgid 9x;",
            "2:15",
            "neither the name nor the number of a group",
            "a name",
        ),
        ("specificgid a b;", "2:17", "`b` does not belong", "GROUP"),
        ("specificgid a; specificgid b;", "2:18", "`specificgid`", ""),
        (
            "primarygroup on;",
            "2:16",
            "not one of yes, no",
            "yes or no",
        ),
        ("see all;", "2:3", "no statement `see`", "specificgid"),
    ] {
        SEEOTHERUIDS.refused(statement, place, told, remedy);
    }
    SEEOTHERUIDS
        .are_read_back_or_refused("specificgid \"a\";")
        .unwrap();
}

#[test]
fn settings_that_bind_the_service_manager_are_found() {
    assert!(settings("suser_privileged no;").binds_the_service_manager());
    assert!(settings("suser_privileged no; specificgid staff;").binds_the_service_manager());
    assert!(!settings("suser_privileged no; specificgid root;").binds_the_service_manager());
    assert!(!settings("").binds_the_service_manager());
}
