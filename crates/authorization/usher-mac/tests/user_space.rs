//! Modules compiled for user space, compared with a model that is written from ugidfw(8), not from them.

#[path = "shared/compiled.rs"]
mod compiled;

use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_mac::bsdextended::{
    FileSystem, FileType, Ids, MAX_RULES, Mode, Object, Rule, Subject, Types,
};
use usher_mac::{Error, RuleMistake, Settings};

const EACCES: i32 = -libc::EACCES;

/// A process, a file, and the access: what a check gets.
#[derive(Debug, Clone)]
struct Case {
    uids: [u32; 4],
    gids: [u32; 4],
    groups: Vec<u32>,
    capabilities: u64,
    owner: u32,
    group: u32,
    /// Major and minor number.
    device: (u32, u32),
    kind: (FileType, u32),
    special: u32,
    wanted: Mode,
}

fn run(input: &[u8]) -> Vec<i32> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compiled::compile("user_space.c"));
    let output = compiled::run(program, input);
    let (answers, rest) = output.as_chunks::<4>();
    assert!(rest.is_empty());
    answers
        .iter()
        .map(|answer| i32::from_ne_bytes(*answer))
        .collect()
}

/// The module's answers: for the access, for reading attributes, for changing them.
fn asked(rules: &[Rule], case: &Case) -> [i32; 3] {
    let mut input = Settings::Bsdextended(rules.to_vec()).encode().unwrap();
    let mut words = vec![u32::try_from(case.groups.len()).unwrap()];
    words.extend(&case.groups);
    let wanted = case.wanted;
    let access =
        u32::from(wanted.execute) | u32::from(wanted.write) << 1 | u32::from(wanted.read) << 2;
    for (kind, access) in [(0, access), (1, 0), (2, 1)] {
        words.extend([kind, access, 0, 0]);
        words.extend(case.uids.iter().chain(&case.gids));
        words.extend([
            case.capabilities as u32,
            (case.capabilities >> 32) as u32,
            77,
            0,
        ]);
        words.extend([
            5,
            0,
            case.device.0 << 20 | case.device.1,
            case.owner,
            case.group,
            case.kind.1 << 12 | case.special | 0o777,
            0,
            0,
        ]);
    }
    input.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    run(&input).try_into().unwrap()
}

fn holds(ids: &Option<Ids>, numbers: &[u32]) -> bool {
    ids.as_ref().is_none_or(|ids| {
        let within = |id: &u32| {
            ids.ranges
                .iter()
                .any(|(first, last)| (first..=last).contains(&id))
        };
        numbers.iter().any(within) != ids.not
    })
}

/// What ugidfw(8) says about an access.
fn model(rules: &[Rule], case: &Case, wanted: Mode) -> i32 {
    let groups: Vec<u32> = case.gids.iter().chain(&case.groups).copied().collect();
    let matching = rules.iter().find(|rule| {
        let object = &rule.object;
        let is = |condition: Option<bool>, met: bool| condition.is_none_or(|wanted| wanted == met);
        holds(&rule.subject.uids, &case.uids)
            && holds(&rule.subject.gids, &groups)
            && holds(&object.uids, &[case.owner])
            && holds(&object.gids, &[case.group])
            && object
                .filesystem
                .is_none_or(|system| ((system.major, system.minor) == case.device) != system.not)
            && is(object.suid, case.special & 0o4000 != 0)
            && is(object.sgid, case.special & 0o2000 != 0)
            && is(object.uid_of_subject, case.uids.contains(&case.owner))
            && is(object.gid_of_subject, groups.contains(&case.group))
            && object
                .types
                .as_ref()
                .is_none_or(|types| types.types.contains(&case.kind.0) != types.not)
    });
    let Some(rule) = matching else { return 0 };
    let has = |bit: u32| case.capabilities & 1 << bit != 0;
    let (overrides, searches, owns) = (has(1), has(2), has(3));
    let is_directory = case.kind.0 == FileType::Directory;
    let granted = rule.mode;
    let permitted = [
        (wanted.read, granted.read || overrides || searches),
        (wanted.write, granted.write || overrides),
        (
            wanted.execute,
            granted.execute || overrides || (searches && is_directory),
        ),
        (wanted.stat, granted.stat || overrides || searches),
        (wanted.admin, granted.admin || owns),
    ];
    let refused = permitted
        .iter()
        .any(|(wanted, permitted)| *wanted && !permitted);
    if refused { EACCES } else { 0 }
}

/// Few numbers, so that they meet.
fn id() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..6, Just(u32::MAX)]
}

fn ids() -> impl Strategy<Value = Option<Ids>> {
    let range = (id(), id()).prop_map(|(one, other)| (one.min(other), one.max(other)));
    let ids = (any::<bool>(), prop::collection::vec(range, 1..=4));
    prop::option::of(ids.prop_map(|(not, ranges)| Ids { not, ranges }))
}

fn mode() -> impl Strategy<Value = Mode> {
    any::<[bool; 5]>().prop_map(|[admin, read, stat, write, execute]| Mode {
        admin,
        read,
        stat,
        write,
        execute,
    })
}

fn kind() -> impl Strategy<Value = (FileType, u32)> {
    prop::sample::select(vec![
        (FileType::Regular, 8),
        (FileType::Directory, 4),
        (FileType::Block, 6),
        (FileType::Character, 2),
        (FileType::Link, 10),
        (FileType::Socket, 12),
        (FileType::Fifo, 1),
    ])
}

/// Few devices, which differ in one number or in both.
fn device() -> impl Strategy<Value = (u32, u32)> {
    prop::sample::select(vec![(0, 1), (1, 0), (1, 1), (4095, 1_048_575)])
}

fn filesystem() -> impl Strategy<Value = Option<FileSystem>> {
    let system = (any::<bool>(), device());
    prop::option::of(system.prop_map(|(not, (major, minor))| FileSystem { not, major, minor }))
}

fn rule() -> impl Strategy<Value = Rule> {
    let types = prop::collection::vec(kind().prop_map(|(kind, _)| kind), 1..4);
    let types = (any::<bool>(), types).prop_map(|(not, types)| Types { not, types });
    let bits = any::<[Option<bool>; 4]>();
    let ids = (ids(), ids(), ids(), ids());
    let what = (bits, prop::option::of(types), filesystem());
    (ids, what, mode()).prop_map(|(ids, (bits, types, filesystem), mode)| Rule {
        subject: Subject {
            uids: ids.0,
            gids: ids.1,
        },
        object: Object {
            uids: ids.2,
            gids: ids.3,
            filesystem,
            suid: bits[0],
            sgid: bits[1],
            uid_of_subject: bits[2],
            gid_of_subject: bits[3],
            types,
        },
        mode,
    })
}

fn case() -> impl Strategy<Value = Case> {
    let who = (prop::array::uniform4(id()), prop::array::uniform4(id()));
    let groups = prop::collection::vec(id(), 0..4);
    let what = (
        id(),
        id(),
        device(),
        kind(),
        prop::sample::select(vec![0, 0o4000, 0o2000, 0o6000]),
    );
    (who, groups, 0_u64..16, what, mode()).prop_map(|(who, groups, capabilities, what, wanted)| {
        Case {
            uids: who.0,
            gids: who.1,
            groups,
            capabilities,
            owner: what.0,
            group: what.1,
            device: what.2,
            kind: what.3,
            special: what.4,
            wanted,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn bsdextended_decides_as_its_model(
        rules in prop::collection::vec(rule(), 0..6),
        case in case(),
    ) {
        let none = Mode::default();
        let access = Mode { stat: false, admin: false, ..case.wanted };
        let expected = [
            model(&rules, &case, access),
            model(&rules, &case, Mode { stat: true, ..none }),
            model(&rules, &case, Mode { admin: true, ..none }),
        ];
        // An access that wants nothing is not asked about.
        prop_assert_eq!(asked(&rules, &case), expected);
    }
}

// Threat model: M20
#[test]
fn any_order_of_modules_chooses_the_same_error() {
    let order = [
        libc::EDEADLK,
        libc::EINVAL,
        libc::ESRCH,
        libc::ENOENT,
        libc::EACCES,
        libc::EPERM,
    ];
    let answers = order.map(|errno| -errno);
    let answers = answers
        .into_iter()
        .chain([-libc::EIO, -libc::EROFS, 0, 7, -5000]);
    let answers: Vec<i32> = answers.collect();
    let mut input = Settings::Bsdextended(Vec::new()).encode().unwrap();
    input.extend(0_u32.to_ne_bytes());
    let mut expected = Vec::new();
    // What is no error counts as EACCES; the smaller of two numbers without a place.
    let error = |answer: i32| {
        if (-4095..=0).contains(&answer) {
            answer
        } else {
            EACCES
        }
    };
    let place = |error: i32| match error {
        0 => (9, 0),
        _ => (
            order.iter().position(|errno| -errno == error).unwrap_or(8),
            -error,
        ),
    };
    for one in &answers {
        for other in &answers {
            let words = [3, one.cast_unsigned(), other.cast_unsigned(), 0];
            input.extend(words.iter().flat_map(|word: &u32| word.to_ne_bytes()));
            input.extend([0; 80]);
            let (one, other) = (error(*one), error(*other));
            expected.push(if place(one) <= place(other) {
                one
            } else {
                other
            });
        }
    }
    assert_eq!(run(&input), expected);
}

#[test]
fn rules_beyond_the_limits_are_refused_by_name() {
    let encode = |rules: Vec<Rule>| Settings::Bsdextended(rules).encode();
    encode(vec![Rule::default(); MAX_RULES]).unwrap();
    let many = encode(vec![Rule::default(); MAX_RULES + 1]).unwrap_err();
    assert!(matches!(many, Error::TooManyRules(257)), "{many}");
    let mistake = |wrong: Rule| match encode(vec![Rule::default(), wrong]) {
        Err(Error::Rule { rule: 1, what }) => Some(what),
        other => other.map(|_| None).unwrap(),
    };
    let with = |ranges: Vec<(u32, u32)>| {
        let mut rule = Rule::default();
        rule.subject.uids = Some(Ids { not: false, ranges });
        mistake(rule)
    };
    assert_eq!(with(vec![(1, 1); 4]), None);
    assert_eq!(with(vec![(1, 1); 5]), Some(RuleMistake::TooManyRanges(5)));
    assert_eq!(with(Vec::new()), Some(RuleMistake::NoRange));
    assert_eq!(with(vec![(2, 1)]), Some(RuleMistake::Backwards(2, 1)));
    let on = |major, minor| {
        let mut rule = Rule::default();
        rule.object.filesystem = Some(FileSystem {
            not: false,
            major,
            minor,
        });
        mistake(rule)
    };
    assert_eq!(on(4095, 1_048_575), None);
    assert_eq!(on(4096, 0), Some(RuleMistake::Device(4096, 0)));
    assert_eq!(on(0, 1_048_576), Some(RuleMistake::Device(0, 1_048_576)));
    let of = |types| {
        let mut rule = Rule::default();
        rule.object.types = Some(Types { not: false, types });
        mistake(rule)
    };
    assert_eq!(of(vec![FileType::Regular]), None);
    assert_eq!(of(Vec::new()), Some(RuleMistake::NoType));
    for text in ["n", "a", "arswx", "rx"] {
        assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
    }
    for text in ["", "nr", "rr", "z"] {
        assert!(text.parse::<Mode>().is_err(), "{text}");
    }
}
