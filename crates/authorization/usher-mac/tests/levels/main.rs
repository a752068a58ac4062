//! The modules `biba` and `mls` compiled for user space, compared with a model that is written from
//! docs/mac.md and orders levels by itself.

mod cases;
#[path = "../shared/compiled.rs"]
mod compiled;
mod model;

use std::path::PathBuf;
use std::sync::OnceLock;

use cases::{Case, Element, case, words};
use model::{BOTH, Module, READS, WRITES};
use proptest::prelude::*;
use usher_label::Level;
use usher_mac::EntryPoint;

const EACCES: i32 = -libc::EACCES;
const EPERM: i32 = -libc::EPERM;
const EINVAL: i32 = -libc::EINVAL;

/// The capabilities that a process below `high` uses.
const OWN_CAPABILITIES: [u32; 21] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 18, 23, 24, 28, 29, 31, 35, 36,
];

fn program(module: Module) -> &'static PathBuf {
    static BIBA: OnceLock<PathBuf> = OnceLock::new();
    static MLS: OnceLock<PathBuf> = OnceLock::new();
    match module {
        Module::Biba => BIBA.get_or_init(|| compiled::compile("levels/biba.c")),
        Module::Mls => MLS.get_or_init(|| compiled::compile("levels/mls.c")),
    }
}

/// The module's answers at these entry points, each with the last element as the module left it.
fn asked(module: Module, case: &Case, questions: &[(EntryPoint, Vec<u8>)]) -> Vec<(i32, Vec<u8>)> {
    let mut input = Vec::new();
    for (point, request) in questions {
        input.extend(words(&[*point as u32, 0]));
        input.extend(words(&[
            1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 0, 0, 77, 0,
        ]));
        let mut request = request.clone();
        request.resize(128, 0);
        input.extend(request);
        for element in [&case.own, &case.object, &case.last] {
            input.extend(element.encode());
        }
    }
    let output = compiled::run(program(module), &input);
    let (answers, rest) = output.as_chunks::<124>();
    assert!(rest.is_empty());
    let answers = answers.iter().map(|answer| {
        let code = i32::from_ne_bytes(answer[..4].try_into().unwrap());
        (code, answer[4..].to_vec())
    });
    answers.collect()
}

fn packet(case: &Case) -> Vec<u8> {
    words(&[2, 1, 0, 1000, case.interface, 0])
}

/// Each question, with the model's answer.
fn questions(module: Module, case: &Case) -> Vec<(EntryPoint, Vec<u8>, i32)> {
    use EntryPoint::*;
    let Case {
        own, object, last, ..
    } = case;
    let usual = module.usual();
    let of_file = case.usual_of_file(&usual);
    let of_open = match case.kind {
        1 | 12 => Level::Equal,
        _ => of_file.clone(),
    };
    let on = |object: &Element, usual: &Level, ways| module.may(own, object, usual, ways);
    let first_of = |one: i32, other: i32| if one == 0 { other } else { one };
    let in_directory = on(last, &usual, WRITES);
    let changed = first_of(in_directory, on(object, &of_file, WRITES));
    let access = case.file(&[case.access, 0]);
    let ipc = words(&[1, 2, 0, 0, 0, 0, 0o600, case.argument]);
    let traced = if case.argument & 2 == 0 { READS } else { BOTH };
    let trace = words(&[0, 0, 0, 0, 1, case.argument]);
    let stirred = if case.argument == 0 { READS } else { BOTH };
    let attached = if case.argument & 0o10000 == 0 {
        BOTH
    } else {
        READS
    };
    // One of the two has a file that is replaced.
    let mut replacing = case.file(&[]);
    replacing.extend(case.file(&[u32::from(case.access & 1 == 1), 0]));
    let replaced = if case.access & 1 == 1 {
        changed
    } else {
        in_directory
    };
    vec![
        (
            InodePermission,
            access.clone(),
            on(object, &of_file, case.ways()),
        ),
        (FileOpen, access.clone(), on(object, &of_file, case.ways())),
        (FilePermission, access, on(object, &of_open, case.ways())),
        (
            MmapFile,
            case.file(&[case.protection, case.flags]),
            on(object, &of_file, case.ways_of_mapping()),
        ),
        (InodeGetattr, case.file(&[]), on(object, &of_file, READS)),
        (InodeCreate, case.file(&[]), in_directory),
        (InodeRmdir, case.file(&[]), in_directory),
        (InodeLink, case.file(&[]), changed),
        (InodeRenameTo, replacing, replaced),
        (InodeSetattr, case.file(&[1]), on(object, &of_file, WRITES)),
        (BprmCheckSecurity, case.file(&[]), on(object, &usual, READS)),
        (TaskKill, words(&[0, 0, 1, 9]), on(object, &usual, WRITES)),
        (PtraceAccessCheck, trace.clone(), on(object, &usual, traced)),
        (PtraceTraceme, trace, on(object, &usual, BOTH)),
        (SocketSendmsg, Vec::new(), on(object, &Level::Equal, WRITES)),
        (SocketRecvmsg, Vec::new(), on(object, &Level::Equal, READS)),
        (
            UnixStreamConnect,
            Vec::new(),
            on(object, &Level::Equal, BOTH),
        ),
        (
            SocketDeliver,
            packet(case),
            on(object, &case.usual_of_packet(), READS),
        ),
        (InterfaceTransmit, packet(case), module.transmits(case)),
        (MsgQueueMsgsnd, ipc.clone(), on(object, &usual, WRITES)),
        (MsgQueueMsgrcv, ipc.clone(), on(object, &usual, BOTH)),
        (SemSemop, ipc.clone(), on(object, &usual, stirred)),
        (ShmShmat, ipc, on(object, &usual, attached)),
        (
            RelabelProcess,
            Vec::new(),
            module.relabels_process(object, last),
        ),
        (
            RelabelFile,
            Vec::new(),
            module.relabels_file(own, object, last),
        ),
    ]
}

fn privileged(own: &Element, capability: u32, is_initial: bool) -> i32 {
    let is_trusted = match own {
        Element::Nothing => true,
        Element::Unknown => false,
        Element::Of(levels) => matches!(levels.effective(), Some(Level::High | Level::Equal)),
    };
    if is_trusted || !is_initial || OWN_CAPABILITIES.contains(&capability) {
        return 0;
    }
    EPERM
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(900))]

    #[test]
    fn levels_decide_as_their_model(case in case()) {
        for module in [Module::Biba, Module::Mls] {
            let expected = questions(module, &case);
            let wanted: Vec<_> = expected.iter().map(|(point, request, _)| (*point, request.clone())).collect();
            let answers = asked(module, &case, &wanted);
            for ((point, _, wanted), (answer, _)) in expected.iter().zip(answers) {
                prop_assert_eq!(answer, *wanted, "{:?} {}", module, point);
            }
            let made = &asked(module, &case, &[(EntryPoint::NewFile, Vec::new())])[0];
            prop_assert_eq!(made, &(0, module.of_new_file(&case.own).encode()));
        }
    }

    #[test]
    fn privileges_are_for_the_highest_level(case in case(), is_initial in any::<bool>()) {
        let request = words(&[case.capability, is_initial.into(), 0, 0]);
        let answer = asked(Module::Biba, &case, &[(EntryPoint::Capable, request)])[0].0;
        prop_assert_eq!(answer, privileged(&case.own, case.capability, is_initial));
    }
}
