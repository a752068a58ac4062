//! The module `seeotheruids`.

use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_language::Origin;
use usher_mac::{EntryPoint, Error, Names, Settings};
use usher_mac_blocks::AccountId;
use usher_mac_blocks::seeotheruids::SeeOtherUids;

use crate::ESRCH;
use crate::asked::{Process, Question, ask, words};

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| crate::compiled::compile("freebsd/seeotheruids.c"))
}

/// The entry points, each with the capability by which the kernel itself permits it.
const ACTS: [(EntryPoint, u64); 5] = [
    (EntryPoint::PtraceAccessCheck, 19),
    (EntryPoint::TaskSetscheduler, 23),
    (EntryPoint::TaskSetnice, 23),
    (EntryPoint::TaskPrlimit, 24),
    (EntryPoint::TaskKill, 5),
];

/// Whether a group is the exempt one.
fn is_exempt(settings: &SeeOtherUids, group: u32) -> bool {
    let exempt = settings.specificgid.as_ref();
    exempt.is_some_and(|(exempt, _)| *exempt == AccountId::Number(group))
}

/// The answer by usher-mac-seeotheruids(7) to an act that takes this capability.
fn model(settings: &SeeOtherUids, own: &Process, other: &Process, capability: u64) -> i32 {
    let mut groups = own.gids[..2].iter().chain(&own.groups);
    let is_member = groups.any(|group| is_exempt(settings, *group));
    let is_near = settings.primarygroup && own.gids[0] == other.gids[0];
    let is_privileged = settings.suser_privileged && own.capabilities & 1 << capability != 0;
    if own.uids[0] == other.uids[0] || is_member || is_near || is_privileged {
        0
    } else {
        ESRCH
    }
}

/// The answer to a process that asks another one to trace it.
fn model_of_traceme(settings: &SeeOtherUids, own: &Process, tracer: &Process) -> i32 {
    let is_member = is_exempt(settings, tracer.gids[0]);
    let is_near = settings.primarygroup && own.gids[0] == tracer.gids[0];
    let is_root = settings.suser_privileged && tracer.uids[1] == 0;
    if own.uids[0] == tracer.uids[0] || is_member || is_near || is_root {
        0
    } else {
        ESRCH
    }
}

fn id() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 7, 1000])
}

fn process() -> impl Strategy<Value = Process> {
    let ids = || [id(), id(), id(), id()];
    let capabilities = prop::collection::vec(prop::sample::select(vec![5, 19, 21, 23, 24]), 0..3);
    let groups = prop::collection::vec(id(), 0..3);
    (ids(), ids(), groups, capabilities).prop_map(|(uids, gids, groups, capabilities)| Process {
        uids,
        gids,
        groups,
        capabilities: capabilities.iter().fold(0, |all, bit| all | 1 << bit),
    })
}

fn settings() -> impl Strategy<Value = SeeOtherUids> {
    (prop::option::of(id()), any::<[bool; 2]>()).prop_map(|(group, flags)| SeeOtherUids {
        specificgid: group.map(|group| (AccountId::Number(group), Origin::default())),
        primarygroup: flags[0],
        suser_privileged: flags[1],
    })
}

/// A request about another process.
fn about(point: EntryPoint, other: &Process, signal: u32) -> Vec<u8> {
    let [uid, euid, suid, _] = other.uids;
    let gid = other.gids[0];
    match point {
        EntryPoint::TaskKill => words(&[uid, suid, 9, signal, gid, 0]),
        _ => words(&[uid, euid, suid, gid, 9, 0]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    // Threat model: M30
    #[test]
    fn seeotheruids_decides_as_its_model(
        settings in settings(),
        own in process(),
        other in process(),
        signal in prop::sample::select(vec![0, 9, 15, 18, 19]),
    ) {
        let traceme = EntryPoint::PtraceTraceme;
        let mut expected: Vec<_> = ACTS.iter().map(|(point, capability)| {
            let is_free = *point == EntryPoint::TaskKill && signal == 18;
            let wanted = model(&settings, &own, &other, *capability);
            (*point, if is_free { 0 } else { wanted })
        }).collect();
        expected.push((traceme, model_of_traceme(&settings, &own, &other)));
        let questions: Vec<_> = expected.iter().map(|(point, _)| Question {
            point: *point,
            process: &own,
            request: about(*point, &other, signal),
            labels: Default::default(),
        }).collect();
        let encoded = Settings::Seeotheruids(settings.clone(), Names::default()).encode().unwrap();
        let answers = ask(program(), &encoded, &questions);
        for ((point, wanted), (answer, _)) in expected.iter().zip(answers) {
            prop_assert_eq!(answer, *wanted, "{}", point);
        }
    }
}

#[test]
fn a_name_whose_number_is_not_known_is_refused() {
    let staff = AccountId::Name("staff".to_owned());
    let settings = SeeOtherUids {
        specificgid: Some((staff, Origin::default())),
        ..SeeOtherUids::default()
    };
    let encode = |names| Settings::Seeotheruids(settings.clone(), names).encode();
    let mut names = Names::default();
    // A user of this name is no group.
    names.users.insert("staff".to_owned(), 50);
    let refused = encode(names.clone()).unwrap_err();
    assert!(
        matches!(&refused, Error::Unresolved(name) if name == "staff"),
        "{refused}"
    );
    names.groups.insert("staff".to_owned(), 50);
    assert_eq!(encode(names).unwrap(), words(&[0, 1, 1, 50]));
}
