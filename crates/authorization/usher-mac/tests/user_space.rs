//! Modules compiled for user space, compared with a model that is written from ugidfw(8), not from them.

#[path = "shared/compiled.rs"]
mod compiled;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_mac::{Error, Names, Settings};
use usher_mac_blocks::bsdextended::{
    AccessMode, AccessRule, AccountRange, FileTypes, Membership, RuleObject, RuleSubject,
};

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
    /// Its letter, and its number in a file's mode.
    kind: (char, u32),
    special: u32,
    /// Letters of the access.
    wanted: AccessMode,
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
fn asked(rules: &[AccessRule], case: &Case) -> [i32; 3] {
    let devices = DEVICES.map(|device| (mount_point(device), device));
    let names = Names {
        devices: BTreeMap::from(devices),
        ..Names::default()
    };
    let settings = Settings::Bsdextended(rules.to_vec(), names);
    let mut input = settings.encode().unwrap();
    let mut words = vec![u32::try_from(case.groups.len()).unwrap()];
    words.extend(&case.groups);
    let wanted = |letter| u32::from(case.wanted.letters().contains(letter));
    let access = wanted('x') | wanted('w') << 1 | wanted('r') << 2;
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

fn holds(membership: &Option<Membership>, numbers: &[u32]) -> bool {
    membership.as_ref().is_none_or(|members| {
        let within = |id: &u32| {
            members.accounts.iter().any(|account| match account {
                AccountRange::Numbers(first, last) => (first..=last).contains(&id),
                AccountRange::Name(name) => panic!("{name}"),
            })
        };
        numbers.iter().any(within) != members.not
    })
}

/// The answer by ugidfw(8) to an access, which `wanted` has as letters.
fn model(rules: &[AccessRule], case: &Case, wanted: &str) -> i32 {
    let groups: Vec<u32> = case.gids.iter().chain(&case.groups).copied().collect();
    let matching = rules.iter().find(|rule| {
        let object = &rule.object;
        let is = |condition: Option<bool>, met: bool| condition.is_none_or(|wanted| wanted == met);
        holds(&rule.subject.users, &case.uids)
            && holds(&rule.subject.groups, &groups)
            && holds(&object.users, &[case.owner])
            && holds(&object.groups, &[case.group])
            && object
                .file_system
                .as_ref()
                .is_none_or(|(is, path)| (*path == mount_point(case.device)) == *is)
            && is(object.suid, case.special & 0o4000 != 0)
            && is(object.sgid, case.special & 0o2000 != 0)
            && is(object.uid_of_subject, case.uids.contains(&case.owner))
            && is(object.gid_of_subject, groups.contains(&case.group))
            && object
                .types
                .as_ref()
                .is_none_or(|(is, types)| types.letters().contains(case.kind.0) == *is)
    });
    let Some(rule) = matching else { return 0 };
    let has = |bit: u32| case.capabilities & 1 << bit != 0;
    let (overrides, searches, owns) = (has(1), has(2), has(3));
    let is_directory = case.kind.0 == 'd';
    let refused = wanted.chars().any(|letter| {
        let is_exempt = match letter {
            'r' | 's' => overrides || searches,
            'w' => overrides,
            'x' => overrides || (searches && is_directory),
            _ => owns,
        };
        !rule.mode.letters().contains(letter) && !is_exempt
    });
    if refused { EACCES } else { 0 }
}

/// Few numbers, so that equal ones are frequent.
fn id() -> impl Strategy<Value = u32> {
    prop_oneof![0_u32..6, Just(u32::MAX)]
}

fn membership() -> impl Strategy<Value = Option<Membership>> {
    let range =
        (id(), id()).prop_map(|(one, other)| AccountRange::Numbers(one.min(other), one.max(other)));
    let members = (any::<bool>(), prop::collection::vec(range, 1..=4));
    prop::option::of(members.prop_map(|(not, accounts)| Membership { not, accounts }))
}

/// Some of these letters.
fn letters(all: &'static str, least: usize) -> impl Strategy<Value = String> {
    let letters: Vec<char> = all.chars().collect();
    let some = prop::sample::subsequence(letters, least..=all.len());
    some.prop_map(|letters| letters.into_iter().collect())
}

fn mode() -> impl Strategy<Value = AccessMode> {
    letters("arswx", 0).prop_map(|letters| AccessMode::parse(&letters).unwrap_or_default())
}

fn kind() -> impl Strategy<Value = (char, u32)> {
    prop::sample::select(vec![
        ('r', 8),
        ('d', 4),
        ('b', 6),
        ('c', 2),
        ('l', 10),
        ('s', 12),
        ('p', 1),
    ])
}

/// Few devices, which differ in one number or in both.
const DEVICES: [(u32, u32); 4] = [(0, 1), (1, 0), (1, 1), (4095, 1_048_575)];

fn device() -> impl Strategy<Value = (u32, u32)> {
    prop::sample::select(DEVICES.to_vec())
}

fn mount_point((major, minor): (u32, u32)) -> String {
    format!("/{major}/{minor}")
}

fn rule() -> impl Strategy<Value = AccessRule> {
    let types = letters("rdbclsp", 1).prop_map(|letters| FileTypes::parse(&letters).unwrap());
    let types = prop::option::of((any::<bool>(), types));
    let system = prop::option::of((any::<bool>(), device().prop_map(mount_point)));
    let members = [membership(), membership(), membership(), membership()];
    let what = (any::<[Option<bool>; 4]>(), types, system);
    (members, what, mode()).prop_map(|(members, (bits, types, file_system), mode)| {
        let [subjects, their_groups, users, groups] = members;
        AccessRule {
            subject: RuleSubject {
                users: subjects,
                groups: their_groups,
            },
            object: RuleObject {
                users,
                groups,
                file_system,
                suid: bits[0],
                sgid: bits[1],
                uid_of_subject: bits[2],
                gid_of_subject: bits[3],
                types,
            },
            mode,
            ..AccessRule::default()
        }
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
        let access = case.wanted.letters().replace(['a', 's', 'n'], "");
        let expected = [&access, "s", "a"].map(|wanted| model(&rules, &case, wanted));
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
    let none = Settings::Bsdextended(Vec::new(), Names::default());
    let mut input = none.encode().unwrap();
    input.extend(0_u32.to_ne_bytes());
    let mut expected = Vec::new();
    // A number that is no error counts as EACCES. Of two that have no place in the order the smaller one counts.
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
    let encode = |rules: Vec<AccessRule>, device| {
        let devices = [("/mnt".to_owned(), device)].into();
        let names = Names {
            devices,
            ..Names::default()
        };
        Settings::Bsdextended(rules, names).encode()
    };
    let rules = |count| encode(vec![AccessRule::default(); count], (0, 1));
    rules(256).unwrap();
    let many = rules(257).unwrap_err();
    assert!(matches!(many, Error::TooManyRules(257)), "{many}");
    let mut one = AccessRule::default();
    one.object.file_system = Some((true, "/mnt".to_owned()));
    let on = |device| encode(vec![one.clone()], device);
    on((4095, 1_048_575)).unwrap();
    for device in [(4096, 0), (0, 1_048_576)] {
        let wrong = on(device).unwrap_err();
        assert!(matches!(wrong, Error::Device(..)), "{wrong}");
    }
    one.object.file_system = Some((true, "/other".to_owned()));
    let unknown = encode(vec![one.clone()], (0, 1)).unwrap_err();
    assert!(
        matches!(&unknown, Error::Unresolved(path) if path == "/other"),
        "{unknown}"
    );
    let with = |count| {
        let accounts = vec![AccountRange::Numbers(1, 1); count];
        let mut rule = AccessRule::default();
        rule.subject.users = Some(Membership {
            not: false,
            accounts,
        });
        encode(vec![rule], (0, 1))
    };
    with(4).unwrap();
    let ranges = with(5).unwrap_err();
    assert!(matches!(ranges, Error::TooManyRanges(5)), "{ranges}");
}
