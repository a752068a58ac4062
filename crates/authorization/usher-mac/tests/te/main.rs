//! The module `te` compiled for user space, compared with a model that searches rules by their words.

#[path = "../shared/block.rs"]
mod block;
mod cases;
#[path = "../shared/compiled.rs"]
mod compiled;
mod model;
mod questions;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;

use cases::{Case, Element, Policy, case, name, policy, read, words};
use model::{Model, Noted};
use proptest::prelude::*;
use questions::{file, questions};
use usher_language::Origin;
use usher_mac::te::{Denials, TypeMistake};
use usher_mac::{EntryPoint, Error, Settings};
use usher_mac_blocks::te::{Class, CreatedWhere, TypeEnforcement};

const EACCES: i32 = -libc::EACCES;
const EPERM: i32 = -libc::EPERM;
const EINVAL: i32 = -libc::EINVAL;

/// The process that asks.
const PROCESS: u32 = 77;

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled::compile("te/te.c"))
}

/// The module's answers, each with the last element as the module left it, and what it has noted.
fn asked(
    settings: &TypeEnforcement,
    case: &Case,
    questions: &[(EntryPoint, Vec<u8>)],
) -> (Vec<(i32, Vec<u8>)>, Denials) {
    let mut input = Settings::Te(settings.clone()).encode().unwrap();
    let size = input.len();
    for (point, request) in questions {
        input.extend(words(&[*point as u32, 0]));
        input.extend(words(&[0; 10]));
        input.extend(words(&[PROCESS, 0]));
        let mut request = request.clone();
        request.resize(128, 0);
        input.extend(request);
        for element in [&case.own, &case.object, &case.last] {
            input.extend(element.encode());
        }
    }
    let output = compiled::run(program(), &input);
    let (answers, settings) = output.split_at(output.len() - size);
    let (answers, rest) = answers.as_chunks::<124>();
    assert!(rest.is_empty() && answers.len() == questions.len());
    let answers = answers.iter().map(|answer| {
        let code = i32::from_ne_bytes(answer[..4].try_into().unwrap());
        (code, answer[4..].to_vec())
    });
    (answers.collect(), Denials::of_bytes(settings).unwrap())
}

/// The denials that the module has noted, in the model's form, which leaves unnamed capabilities out.
fn noted(denials: &Denials) -> Noted {
    let denials = denials.denials.iter();
    denials
        .map(|denial| {
            let about = (denial.domain.clone(), denial.object.clone(), denial.class);
            let permissions: BTreeSet<_> = denial.permissions.iter().copied().collect();
            (about, permissions)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(900))]

    // Threat model: M37
    #[test]
    fn types_decide_as_their_model(policy in policy(), case in case()) {
        let mut model = Model { policy: &policy, noted: Noted::new() };
        let expected = questions(&mut model, &case);
        let wanted: Vec<_> = expected.iter().map(|one| (one.point, one.request.clone())).collect();
        let (answers, denials) = asked(&policy.settings(), &case, &wanted);
        for (question, (answer, last)) in expected.iter().zip(answers) {
            let (code, element) = &question.expected;
            prop_assert_eq!(answer, *code, "{}", question.point);
            prop_assert_eq!(last, element.encode(), "{}", question.point);
        }
        prop_assert_eq!(noted(&denials), model.noted);
        prop_assert_eq!(denials.lost, 0);
    }
}

/// A policy with as many names and rules as there may be.
fn full() -> TypeEnforcement {
    let names = |letter: char, count: usize| -> Vec<String> {
        let names = (0..count).map(|number| format!("{letter}{number}"));
        names.collect()
    };
    let (domains, types) = (names('d', 64), names('t', 192));
    let statements = format!(
        "domain {}; type {}; attribute who {}; attribute what {}; allow who what file read;",
        domains.join(", "),
        types.join(", "),
        domains.join(" "),
        types[..64].join(" "),
    );
    read(&statements)
}

fn empty_case(own: &'static str, object: &'static str) -> Case {
    Case {
        own: Element::Of(own),
        object: Element::Of(object),
        last: Element::Nothing,
        access: 4,
        protection: 0,
        permitted: 0,
        kind: 8,
        special: (0, 0),
        argument: 0,
        interface: 0,
        capability: 0,
        is_own_process: false,
    }
}

#[test]
fn a_full_policy_decides_by_its_first_and_last_rule() {
    let settings = full();
    let rules = settings.allow.keys().flat_map(|what| settings.expand(what));
    assert_eq!(rules.count(), 4096);
    for (own, object, answer) in [
        ("d0", "t0", 0),
        ("d63", "t63", 0),
        ("d63", "t64", EACCES),
        ("d0", "t191", EACCES),
        ("d64", "t0", EACCES),
    ] {
        let case = empty_case(own, object);
        let question = (EntryPoint::FileOpen, file(&case, &[4, 0]));
        let (answers, _) = asked(&settings, &case, &[question]);
        assert_eq!(answers[0].0, answer, "{own} {object}");
    }
}

#[test]
fn settings_that_the_module_cannot_hold_are_refused() {
    let mistake = |change: &dyn Fn(&mut TypeEnforcement)| {
        let mut settings = full();
        change(&mut settings);
        match Settings::Te(settings).encode() {
            Err(Error::Types(mistake)) => mistake,
            other => panic!("{:?}", other.map(|bytes| bytes.len())),
        }
    };
    let origin = Origin::default;
    let too_many = mistake(&|settings| {
        settings.types.insert(name("one_more"), origin());
    });
    assert_eq!(too_many, TypeMistake::TooManyNames(257));
    let creates = |settings: &mut TypeEnforcement, directory: &str, class| {
        let place = CreatedWhere {
            domain: name("d0"),
            directory: name(directory),
            class,
        };
        settings.creations.insert(place, (name("t0"), origin()));
    };
    let pairs = mistake(&|settings| creates(settings, "t64", Class::File));
    assert_eq!(pairs, TypeMistake::TooManyPairs);
    let not_made = mistake(&|settings| creates(settings, "t0", Class::Ipc));
    assert_eq!(not_made, TypeMistake::NotMade("ipc"));
    let relabel = |settings: &mut TypeEnforcement, from: &str, to: &str| {
        let key = (name("d0"), name(from), name(to));
        settings.relabels.insert(key, origin());
    };
    let many = mistake(&|settings| {
        for number in 0..257 {
            let (from, to) = (format!("t{}", number % 64), format!("t{}", number / 64));
            relabel(settings, &from, &to);
        }
    });
    assert_eq!(many, TypeMistake::TooManyRelabels(257));
    let undeclared = mistake(&|settings| relabel(settings, "no_such", "t0"));
    assert_eq!(undeclared, TypeMistake::Undeclared("no_such".into()));
    let twice = mistake(&|settings| {
        settings.types.remove("t191");
        settings.types.insert(name("d0"), origin());
    });
    assert_eq!(twice, TypeMistake::Repeated("d0".into()));
    Settings::Te(full()).encode().unwrap();
}

#[test]
fn denials_beyond_the_room_are_counted() {
    let mut settings = full();
    settings.allow.clear();
    let case = |number: usize| {
        let domain: &'static str = Box::leak(format!("d{}", number / 64).into_boxed_str());
        let object: &'static str = Box::leak(format!("t{}", number % 64).into_boxed_str());
        empty_case(domain, object)
    };
    // Each with a case of its own, all with the same settings.
    let mut input = Settings::Te(settings).encode().unwrap();
    let size = input.len();
    for number in 0..2048 {
        let case = case(number);
        input.extend(words(&[EntryPoint::FileOpen as u32, 0]));
        input.extend(words(&[0; 12]));
        let mut request = file(&case, &[4, 0]);
        request.resize(128, 0);
        input.extend(request);
        for element in [&case.own, &case.object, &case.last] {
            input.extend(element.encode());
        }
    }
    let output = compiled::run(program(), &input);
    let denials = Denials::of_bytes(&output[output.len() - size..]).unwrap();
    assert_eq!(denials.denials.len() as u64 + denials.lost, 2048);
    assert!(
        denials.denials.len() > 900 && denials.lost > 900,
        "{}",
        denials.lost
    );
}

/// A policy that a test reads, as it is written.
#[test]
fn a_policy_without_domains_decides_about_nobody() {
    let empty = Policy {
        permissive: Vec::new(),
        allow: Vec::new(),
        transitions: Vec::new(),
        creations: Vec::new(),
        relabels: Vec::new(),
    };
    let mut case = empty_case("imapd", "mail");
    let question = |case: &Case| [(EntryPoint::FileOpen, file(case, &[4, 0]))];
    assert_eq!(
        asked(&TypeEnforcement::default(), &case, &question(&case)).0[0].0,
        EACCES
    );
    assert_eq!(
        asked(&empty.settings(), &case, &question(&case)).0[0].0,
        EACCES
    );
    case.own = Element::Nothing;
    assert_eq!(
        asked(&TypeEnforcement::default(), &case, &question(&case)).0[0].0,
        0
    );
}

#[test]
fn attributes_and_self_are_what_they_stand_for() {
    let answers = |rules: &str| -> Vec<i32> {
        let declared = "domain a, b; type c, d; attribute both a b; attribute files c d;";
        let settings = read(&format!("{declared} {rules}"));
        let pairs = ["a", "b"].map(|own| ["a", "b", "c", "d"].map(|object| (own, object)));
        let pairs = pairs.as_flattened().iter();
        let answers = pairs.flat_map(|(own, object)| {
            let case = empty_case(own, object);
            let questions = [
                (EntryPoint::FileOpen, file(&case, &[4, 0])),
                (EntryPoint::TaskKill, words(&[0, 0, 5, 9])),
                (EntryPoint::Capable, words(&[5, 1, 0, 0])),
            ];
            asked(&settings, &case, &questions).0
        });
        answers.map(|(answer, _)| answer).collect()
    };
    let short = answers(
        "allow both files file read; allow both self process signal;
         allow both self capability kill;",
    );
    let long = answers(
        "allow a c file read; allow a d file read; allow b c file read; allow b d file read;
         allow a a process signal; allow b b process signal;
         allow a self capability kill; allow b self capability kill;",
    );
    assert_eq!(short, long);
    // Per domain two files, one process, and the capability with each of four objects.
    assert_eq!(short.iter().filter(|answer| **answer == 0).count(), 14);
    assert!(answers("permissive any;").iter().all(|answer| *answer == 0));
    assert!(answers("").iter().all(|answer| *answer != 0));
}
