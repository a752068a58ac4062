//! Rules of `bsdextended`: read, checked with place and remedy, and printed so that they read back.

#[path = "shared/reading.rs"]
mod reading;

use proptest::prelude::*;
use reading::read;
use usher_mac_blocks::bsdextended::{
    AccessMode, AccessRule, AccountRange, FileTypes, Membership, RuleObject, RuleSubject,
    first_about_root_unsaid,
};
use usher_mac_blocks::{MacBlock, ModuleSettings};

fn block(statements: &str) -> String {
    format!("mac bsdextended {{\n  {statements}\n}}\n")
}

/// The canonical form of a rule.
fn canonical(rule: &str) -> String {
    let blocks = read(&block(rule)).expect("a sound rule");
    blocks[0].settings.lines().join("\n")
}

/// The only mistake of a rule, and its remedy.
fn mistake(rule: &str) -> (String, String) {
    let mistakes = read(&block(rule)).expect_err("a rule with a mistake");
    let [mistake] = mistakes.as_slice() else {
        panic!("{mistakes:?}");
    };
    (mistake.to_string(), mistake.remedy())
}

fn refused(rule: &str, reason: &str, remedy: &str) {
    let (found, advice) = mistake(rule);
    let reason = format!("mac.policy:2:{reason}");
    assert!(found.starts_with(&reason), "{found}");
    assert!(advice.contains(remedy), "{advice}");
}

#[test]
fn a_rule_reads_as_its_words_say() {
    let text =
        "rule subject uid alice 1000:1999 not gid staff object not uid root type dr mode xr;";
    let blocks = read(&block(text)).expect("a sound rule");
    let name = |name: &str| AccountRange::Name(name.to_owned());
    let members = |not, accounts: Vec<AccountRange>| Some(Membership { not, accounts });
    let expected = AccessRule {
        subject: RuleSubject {
            users: members(
                false,
                vec![name("alice"), AccountRange::Numbers(1000, 1999)],
            ),
            groups: members(true, vec![name("staff")]),
        },
        object: RuleObject {
            users: members(true, vec![name("root")]),
            types: Some((true, FileTypes::parse("rd").unwrap())),
            ..RuleObject::default()
        },
        mode: AccessMode::parse("rx").unwrap(),
        ..AccessRule::default()
    };
    assert_eq!(blocks[0].module.as_ref(), "bsdextended");
    assert_eq!(
        blocks[0].settings,
        ModuleSettings::Bsdextended(vec![expected])
    );
}

#[test]
fn rules_print_in_one_canonical_form() {
    for (text, form) in [
        ("rule mode n;", "rule mode n"),
        ("rule mode xwsra;", "rule mode arswx"),
        (
            "rule subject gid 5:5 uid 0 mode r;",
            "rule subject uid 0 gid 5 mode r",
        ),
        (
            "rule object type pd not sgid suid not filesys \"/home\" uid 1 mode n;",
            "rule object uid 1 not filesys \"/home\" suid not sgid type dp mode n",
        ),
        (
            "rule object not gid_of_subject uid_of_subject filesys \"/\" mode s;",
            "rule object filesys \"/\" uid_of_subject not gid_of_subject mode s",
        ),
    ] {
        assert_eq!(canonical(text), form);
        assert_eq!(canonical(&format!("{form};")), form);
    }
}

#[test]
fn rules_keep_their_order() {
    let text = "rule subject uid b mode n;\n rule subject uid a mode r;";
    assert_eq!(
        canonical(text),
        "rule subject uid b mode n\nrule subject uid a mode r"
    );
}

#[test]
fn a_side_without_a_condition_is_a_mistake() {
    refused(
        "rule subject mode r;",
        "8: `subject` has no condition",
        "leave `subject` out",
    );
    refused(
        "rule object mode r;",
        "8: `object` has no condition",
        "leave `object` out",
    );
}

#[test]
fn a_condition_stands_once_on_its_side() {
    let reason = "22: `subject` has the condition `uid` already at mac.policy:2:16";
    refused(
        "rule subject uid 1 uid 2 mode r;",
        reason,
        "behind one `uid`",
    );
    assert_eq!(
        canonical("rule subject uid 1 object uid 2 mode r;"),
        "rule subject uid 1 object uid 2 mode r"
    );
}

#[test]
fn unknown_conditions_are_named_with_the_known_ones() {
    refused(
        "rule subject suid mode r;",
        "16: `subject` has no condition `suid`",
        "uid, gid",
    );
    refused(
        "rule object jail 1 mode r;",
        "15: `object` has no condition `jail`",
        "filesys",
    );
    refused(
        "rule object not mode r;",
        "19: `object` has no condition `mode`",
        "filesys",
    );
}

#[test]
fn values_of_conditions_are_checked() {
    refused(
        "rule subject uid mode r;",
        "16: the condition `uid` lacks",
        "uid NAME",
    );
    refused(
        "rule subject uid 2:1 mode r;",
        "20: the range `2:1` ends before",
        "lower",
    );
    refused(
        "rule subject uid 4294967295 mode r;",
        "20: `4294967295` is neither the name of a user",
        "4294967294",
    );
    refused(
        "rule subject gid 9x mode r;",
        "20: `9x` is neither the name of a group",
        "range",
    );
    refused(
        "rule subject uid 1 2 3 4 5 mode r;",
        "20: the condition `uid` has 5 values, more than 4",
        "ranges",
    );
    assert_eq!(
        canonical("rule subject uid 1 2 3 4 mode r;"),
        "rule subject uid 1 2 3 4 mode r"
    );
    refused(
        "rule object filesys /home mode r;",
        "23: `/home` is no plain absolute",
        "\"/home\"",
    );
    refused(
        "rule object filesys \"a\" mode r;",
        "23: `\"a\"` is no plain absolute",
        "\"/home\"",
    );
    refused(
        "rule object type rr mode r;",
        "20: `rr` are no types",
        "sockets",
    );
    refused("rule mode rn;", "13: `rn` is no mode", "n for none");
    refused(
        "rule mode;",
        "8: the condition `mode` lacks its value",
        "mode MODE",
    );
}

#[test]
fn a_rule_without_a_mode_is_a_mistake() {
    for (rule, reason) in [
        ("rule subject uid 1;", "3: `rule` lacks a value"),
        ("rule;", "3: `rule` lacks a value"),
        ("rule permit;", "8: `permit` does not belong in `rule`"),
        (
            "rule object uid 1 subject uid 2 mode r;",
            "21: `object` has no condition `subject`",
        ),
        ("rule mode r w;", "15: `w` does not belong in `rule`"),
        (
            "rule subject uid a, b mode r;",
            "23: `b` does not belong in `rule`",
        ),
    ] {
        assert_eq!(mistake(rule).0, format!("mac.policy:2:{reason}"), "{rule}");
    }
}

#[test]
fn the_rule_after_the_256th_is_refused_by_its_place() {
    let rules = |count: usize| (0..count).map(|uid| format!("rule subject uid {uid} mode r;\n"));
    let most: String = rules(256).collect();
    assert_eq!(canonical(&most).lines().count(), 256);
    let one_more: String = rules(257).collect();
    let (found, remedy) = mistake(&one_more);
    assert_eq!(
        found,
        "mac.policy:258:1: this rule is one more than the 256 that bsdextended takes"
    );
    assert!(remedy.contains("ranges"), "{remedy}");
}

#[test]
fn modules_are_known_by_name_and_stand_once() {
    assert!(read("mac none { }\nmac test { }").is_ok());
    let told = |text: &str| {
        let mistakes = read(text).expect_err("a mistake");
        (mistakes[0].to_string(), mistakes[0].remedy())
    };
    let (found, remedy) = told("mac Bsdextended { }");
    assert_eq!(
        found,
        "mac.policy:1:1: no module can be called `Bsdextended`"
    );
    assert!(remedy.contains("did you mean `bsdextended`"), "{remedy}");
    // Perhaps a module from a file.
    let other = "mac bsdextend {\n  rule a, \"b\";\n}\n";
    let blocks = read(other).expect("a block that is kept");
    assert!(matches!(blocks[0].settings, ModuleSettings::Declared(_)));
    assert_eq!(blocks[0].to_text(), other);
    let (found, _) = told("mac none { }\nmac none { }");
    assert!(
        found.contains("already defined at mac.policy:1:5"),
        "{found}"
    );
    let (found, _) = told("mac none { rule mode r; }");
    assert!(found.contains("has no statement `rule`"), "{found}");
}

#[test]
fn a_rule_about_root_that_does_not_say_so_is_found() {
    let found = |rules: &str| {
        let blocks = read(&block(rules)).expect("sound rules");
        let ModuleSettings::Bsdextended(rules) = &blocks[0].settings else {
            panic!("{blocks:?}");
        };
        first_about_root_unsaid(rules).map(ToString::to_string)
    };
    for rule in [
        "rule mode n",
        "rule mode arsx",
        "rule object uid root mode rsx",
        "rule subject gid root mode n",
        "rule subject not gid staff mode n",
        "rule subject not uid alice mode n",
        "rule subject not uid 1:999 mode n",
    ] {
        assert_eq!(found(&format!("{rule};")).as_deref(), Some(rule));
        let behind_others = format!(
            "rule subject uid root object uid 1 mode r; rule subject uid 1 mode n; {rule};"
        );
        assert_eq!(found(&behind_others).as_deref(), Some(rule));
        for first in [
            "rule subject uid root mode arswx",
            "rule subject uid 0:9 mode n",
            "rule mode arswx",
        ] {
            assert_eq!(found(&format!("{first}; {rule};")), None, "{first}");
        }
    }
    for rule in [
        "rule subject uid 1 mode n",
        "rule subject gid staff mode n",
        "rule subject not gid root mode n",
        "rule subject uid root mode n",
        "rule subject not uid 0:999 mode n",
        "rule subject not uid alice root mode n",
        "rule object uid root mode arswx",
    ] {
        assert_eq!(found(&format!("{rule};")), None, "{rule}");
    }
}

fn accounts() -> impl Strategy<Value = Option<Membership>> {
    let name = "[a-z_][a-z0-9_.-]{0,8}[0-9]".prop_map(AccountRange::Name);
    let numbers = (0..u32::MAX, 0..u32::MAX)
        .prop_map(|(one, other)| AccountRange::Numbers(one.min(other), one.max(other)));
    let accounts = prop::collection::vec(prop_oneof![name, numbers], 1..=4);
    let membership = (any::<bool>(), accounts);
    prop::option::of(membership.prop_map(|(not, accounts)| Membership { not, accounts }))
}

fn letters(alphabet: &'static str) -> impl Strategy<Value = String> {
    prop::sample::subsequence(alphabet.chars().collect::<Vec<_>>(), 1..=alphabet.len())
        .prop_shuffle()
        .prop_map(|letters| letters.into_iter().collect())
}

fn rule() -> impl Strategy<Value = AccessRule> {
    let flag = || any::<Option<bool>>();
    let path = "(/[a-z \"\\\\]{1,5}[a-z]){1,3}";
    let file_system = prop::option::of((any::<bool>(), path));
    let types = letters("rdbclsp").prop_map(|letters| FileTypes::parse(&letters).unwrap());
    let object = (
        accounts(),
        accounts(),
        file_system,
        [flag(), flag(), flag(), flag()],
        prop::option::of((any::<bool>(), types)),
    );
    let object = object.prop_map(|(users, groups, file_system, flags, types)| RuleObject {
        users,
        groups,
        file_system,
        suid: flags[0],
        sgid: flags[1],
        uid_of_subject: flags[2],
        gid_of_subject: flags[3],
        types,
    });
    let mode = prop_oneof![Just("n".to_owned()), letters("arswx")];
    let mode = mode.prop_map(|letters| AccessMode::parse(&letters).unwrap());
    (accounts(), accounts(), object, mode).prop_map(|(users, groups, object, mode)| AccessRule {
        subject: RuleSubject { users, groups },
        object,
        mode,
        ..AccessRule::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_printed_reads_back(rules in prop::collection::vec(rule(), 0..8)) {
        let block = MacBlock {
            module: "bsdextended".parse().unwrap(),
            settings: ModuleSettings::Bsdextended(rules),
            origin: usher_language::Origin::default(),
        };
        let text = block.to_text();
        let found = read(&text).map_err(|mistakes| TestCaseError::fail(format!("{mistakes:?}: {text}")))?;
        prop_assert_eq!(&found[0].to_text(), &text);
        prop_assert_eq!(found, vec![block]);
    }

    #[test]
    fn any_words_are_rules_or_mistakes(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "subject", "object", "uid", "gid", "not", "mode", "type", "filesys", "suid", "rx", "n",
                "0", "1:2", "alice", "\"/\"", "uid_of_subject", ",",
            ]),
            0..12,
        )
    ) {
        let text = block(&format!("rule {};", words.join(" ")));
        match read(&text) {
            Ok(blocks) => prop_assert_eq!(read(&blocks[0].to_text()), Ok(blocks)),
            Err(mistakes) => prop_assert!(mistakes.iter().all(|mistake| !mistake.remedy().is_empty())),
        }
    }
}
