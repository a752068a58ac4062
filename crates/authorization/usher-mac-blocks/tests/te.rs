//! Statements of `te`: read, checked with place and remedy, and printed so that they read back.

mod shared;

use proptest::prelude::*;
use shared::{Statements, of};
use usher_mac_blocks::MAXIMUM_TYPE_RULES;
use usher_mac_blocks::ModuleSettings;
use usher_mac_blocks::te::{Class, TypeEnforcement};

const TE: Statements = of("te");

/// Declarations for the statements of a test.
const NAMES: &str =
    "domain imapd, web; type imapd_exec, mail, spool; attribute content mail spool;";

fn settings(statements: &str) -> TypeEnforcement {
    match TE.settings(statements) {
        ModuleSettings::Te(settings) => settings,
        other => panic!("{other:?}"),
    }
}

fn with_names(statement: &str) -> String {
    format!("{NAMES}\n{statement}")
}

#[test]
fn statements_are_read_and_printed_in_order() {
    let text = with_names(
        "relabel web spool mail; create imapd spool file mail; permissive web;
         transition unconfined imapd_exec imapd; allow imapd self capability setuid setgid;
         allow imapd content file read; allow imapd content file write read;
         allow imapd web process signal; allow web terminal device read;",
    );
    let lines = [
        "domain imapd",
        "domain web",
        "type imapd_exec",
        "type mail",
        "type spool",
        "attribute content mail spool",
        "permissive web",
        "allow imapd content file read write",
        "allow imapd self capability setgid setuid",
        "allow imapd web process signal",
        "allow web terminal device read",
        "transition unconfined imapd_exec imapd",
        "create imapd spool file mail",
        "relabel web spool mail",
    ];
    assert_eq!(TE.lines(&text), lines);
    assert_eq!(TE.lines(&format!("{};", lines.join("; "))), lines);
    assert_eq!(
        TE.lines("permissive any; domain a;"),
        ["domain a", "permissive any"]
    );
    assert_eq!(settings(""), TypeEnforcement::default());
}

#[test]
fn each_mistake_has_its_place_and_remedy() {
    for (statement, place, told, remedy) in [
        ("domain a/b;", "3:8", "`a/b` is no name", "63 letters"),
        ("type self;", "3:6", "`self` is not free", "another name"),
        (
            "type imapd;",
            "3:6",
            "declared already at mac.policy:2:10",
            "share",
        ),
        (
            "attribute x mail imapd;",
            "3:18",
            "of another kind",
            "domains only",
        ),
        (
            "attribute x content;",
            "3:13",
            "of another kind",
            "no attributes",
        ),
        ("attribute x;", "3:1", "`attribute` lacks a value", "MEMBER"),
        (
            "permissive mail;",
            "3:12",
            "`mail` is no domain",
            "`domain`",
        ),
        (
            "permissive unconfined;",
            "3:12",
            "is no domain here",
            "`domain`",
        ),
        (
            "allow imapd mail file;",
            "3:1",
            "`allow` lacks a value",
            "PERMISSION",
        ),
        (
            "allow ftpd mail file read;",
            "3:7",
            "no statement declares `ftpd`",
            "`domain ftpd;`",
        ),
        (
            "allow mail mail file read;",
            "3:7",
            "`mail` is no domain",
            "`domain`",
        ),
        (
            "allow content mail file read;",
            "3:7",
            "`content` is no domain",
            "`domain`",
        ),
        (
            "allow unconfined mail file read;",
            "3:7",
            "asked about nothing",
            "`transition`",
        ),
        (
            "allow imapd post file read;",
            "3:13",
            "no statement declares `post`",
            "`type post;`",
        ),
        (
            "allow imapd mail files read;",
            "3:18",
            "no class `files`",
            "file, directory",
        ),
        (
            "allow imapd mail file search;",
            "3:23",
            "no permission `search`",
            "read, write, append",
        ),
        (
            "allow imapd mail capability kill;",
            "3:13",
            "the process's own",
            "`self`",
        ),
        (
            "allow imapd \"mail\" file read;",
            "3:13",
            "\"mail\" must be a word",
            "quotes out",
        ),
        (
            "transition imapd web imapd;",
            "3:18",
            "`web` is no type",
            "`type`",
        ),
        (
            "transition imapd imapd_exec unconfined;",
            "3:29",
            "is no domain here",
            "`domain`",
        ),
        (
            "transition web spool imapd; transition web spool web;",
            "3:40",
            "stands at mac.policy:3:1",
            "another type",
        ),
        (
            "transition web spool;",
            "3:1",
            "`transition` lacks a value",
            "DOMAIN TYPE DOMAIN",
        ),
        (
            "create web spool process mail;",
            "3:18",
            "`process` is not one of",
            "file",
        ),
        (
            "create web spool file mail; create web spool file spool;",
            "3:36",
            "stands at mac.policy:3:1",
            "another type",
        ),
        (
            "relabel unconfined mail spool;",
            "3:9",
            "is no domain here",
            "`domain`",
        ),
        (
            "relabel web mail content;",
            "3:18",
            "`content` is no type",
            "`type`",
        ),
    ] {
        TE.refused(&with_names(statement), place, told, remedy);
    }
}

#[test]
fn there_is_a_limit_of_each_statement() {
    let names = |count: usize| -> String { (0..count).map(|n| format!("type t{n};\n")).collect() };
    assert_eq!(TE.lines(&names(256)).len(), 256);
    TE.refused(&names(257), "258:6", "one more than the 256", "one type");
    let attributes: String = (0..65).map(|n| format!("attribute a{n} d;\n")).collect();
    let text = format!("domain d;\n{attributes}");
    TE.refused(&text, "67:15", "one more than the 64", "themselves");
    let relabels = |count| "relabel d t t;\n".repeat(count);
    assert_eq!(
        TE.lines(&format!("domain d; type t; {}", relabels(256)))
            .len(),
        3
    );
    let text = format!("domain d; type t;\n{}", relabels(257));
    TE.refused(&text, "259:1", "one more than the 256", "`create`");
    // Sixty-four domains and sixty-four types are as many pairs as there may be.
    let of = |letter: char| (0..64).map(move |n| format!("{letter}{n}"));
    let declared = |letter: char, keyword: &str, attribute: &str| {
        let names: Vec<String> = of(letter).collect();
        let (listed, members) = (names.join(", "), names.join(" "));
        format!("{keyword} {listed}; attribute {attribute} {members};")
    };
    let full = format!(
        "{}{} allow all files file read;",
        declared('d', "domain", "all"),
        declared('t', "type", "files")
    );
    assert_eq!(64 * 64, MAXIMUM_TYPE_RULES);
    let full_settings = settings(&full);
    let (what, _) = full_settings.allow.first_key_value().unwrap();
    assert_eq!(full_settings.expand(what).count(), MAXIMUM_TYPE_RULES);
    // More permissions for the same pairs make no further rules.
    assert_eq!(
        settings(&format!("{full} allow all files file write;"))
            .allow
            .len(),
        1
    );
    let text = format!("{full}\ntransition d0 t0 d1;");
    TE.refused(&text, "3:12", "more than 4096 rules", "one type");
}

#[test]
fn what_has_another_effect_than_it_seems_is_found() {
    let warnings = |statements: &str| -> Vec<String> {
        let warnings = settings(&with_names(statements)).warnings();
        warnings.iter().map(ToString::to_string).collect()
    };
    let found = |statements: &str, told: &str| {
        let found = warnings(statements);
        assert!(found.len() == 1 && found[0].contains(told), "{found:?}");
    };
    found("permissive web;", "`permissive web`: nothing is refused");
    found("permissive any;", "`permissive any`");
    found(
        "allow imapd mail process signal;",
        "`mail` is a type, and objects of class process",
    );
    found("allow imapd content ipc read;", "`content` is a type");
    found("allow imapd web directory search;", "`web` is a domain");
    // The kernel reads a program for the first domain, and maps it for the second one.
    for lacking in ["entrypoint", "read", "execute"] {
        let others = ["entrypoint", "read", "execute"].into_iter();
        let others: Vec<&str> = others.filter(|other| *other != lacking).collect();
        let rules = format!("allow imapd imapd_exec file {};", others.join(" "));
        found(
            &format!("{rules} transition unconfined imapd_exec imapd;"),
            &format!("`imapd` lacks the permission {lacking}"),
        );
    }
    let entry = "allow imapd imapd_exec file read execute entrypoint;";
    for (has, lacking) in [("read", "execute"), ("execute", "read")] {
        found(
            &format!("{entry} allow web imapd_exec file {has}; transition web imapd_exec imapd;"),
            &format!("`web` lacks the permission {lacking} for `imapd_exec`"),
        );
    }
    let adds = "allow web spool directory add_name;";
    found(
        &format!("{adds} create web spool file mail;"),
        "`web` lacks the permission create for `mail`",
    );
    found(
        "create web spool file mail; allow web content file create;",
        "`web` lacks the permission add_name for `spool`",
    );
    for sound in [
        &format!("{entry} transition unconfined imapd_exec imapd;"),
        &format!(
            "{entry} allow web imapd_exec file read execute; transition web imapd_exec imapd;"
        ),
        &format!("{adds} create web spool file mail; allow web content file create;"),
        "create unconfined spool file mail;",
        "allow imapd self file read; allow imapd web socket connect; allow imapd mail socket write;",
        "allow imapd self capability kill; allow imapd unconfined process signal;",
    ] {
        assert!(warnings(sound).is_empty(), "{sound}: {:?}", warnings(sound));
    }
}

#[test]
fn each_permission_of_a_class_is_read_back() {
    for class in Class::ALL {
        let permissions = class.permissions().join(" ");
        let object = if *class == Class::Capability {
            "self"
        } else {
            "web"
        };
        let text = with_names(&format!("allow web {object} {class} {permissions};"));
        let settings = settings(&text);
        let (_, (found, _)) = settings.allow.first_key_value().unwrap();
        assert_eq!(found.len(), class.permissions().len(), "{class}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_words_are_statements_or_mistakes(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "domain", "type", "attribute", "allow", "transition", "create", "relabel", "permissive", "any", "a",
                "b", "t", "u", "self", "unconfined", "file", "process", "read", "signal", "capability", "kill", ";",
                ",", "\"a\"",
            ]),
            0..24,
        )
    ) {
        let words = words.join(" ");
        TE.are_read_back_or_refused(&format!("domain a, b; type t, u; {words};"))?;
        TE.are_read_back_or_refused(&format!("{words};"))?;
    }
}
