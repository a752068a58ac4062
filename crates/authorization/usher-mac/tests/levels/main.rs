//! The modules `biba`, `mls` and `lomac` compiled for user space, compared with models that are written from
//! docs/mac.md and order levels by themselves.

#[path = "../shared/asked.rs"]
mod asked;
mod cases;
mod commands;
#[path = "../shared/compiled.rs"]
mod compiled;
mod lowering;
mod model;

use std::path::PathBuf;
use std::sync::OnceLock;

use asked::{Process, Question, ask, words};
use cases::{Case, Element, case};
use commands::{command, controls, made_socket, makes_socket, sets_option};
use model::{BOTH, Module, READS, WRITES};
use proptest::prelude::*;
use usher_label::Level;
use usher_mac::EntryPoint;

const EACCES: i32 = -libc::EACCES;
const EPERM: i32 = -libc::EPERM;
const EINVAL: i32 = -libc::EINVAL;

/// The capabilities that a process below `high` uses.
const OWN_CAPABILITIES: [u32; 20] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 18, 23, 24, 28, 29, 35, 36,
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
    let process = process(case.noise);
    let labels = [&case.own, &case.object, &case.last].map(Element::encode);
    let questions: Vec<_> = questions
        .iter()
        .map(|(point, request)| Question {
            point: *point,
            process: &process,
            request: request.clone(),
            labels: labels.clone(),
        })
        .collect();
    // There are no settings: a word in their place.
    ask(program(module), &[0; 8], &questions)
}

/// A process of any user.
fn process(noise: u32) -> Process {
    Process {
        uids: [noise >> 9; 4],
        gids: [noise >> 11; 4],
        capabilities: noise.into(),
        ..Process::default()
    }
}

/// An address at a socket, or another thing that is done with it.
fn at_socket(case: &Case) -> Vec<u8> {
    words(&[
        case.noise & 63,
        case.noise & 7,
        case.noise >> 9,
        case.noise >> 3,
    ])
}

fn packet(case: &Case) -> Vec<u8> {
    let noise = case.noise;
    words(&[
        noise & 63,
        noise & 7,
        noise >> 9,
        noise,
        case.interface,
        noise >> 5,
    ])
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
    // The command is in the low byte.
    let commanded = |changing: &[u32]| {
        let changes = changing.contains(&(case.argument & 0xff));
        on(object, &usual, if changes { BOTH } else { READS })
    };
    let limits = match case.argument & 2 {
        0 => 0,
        _ => module.may(own, &Element::Unknown, &usual, BOTH),
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
            case.file(&[0, 0, case.permitted, 0]),
            on(object, &of_file, case.ways_of_mapping()),
        ),
        (InodeGetattr, case.file(&[]), on(object, &of_file, READS)),
        (InodeCreate, case.file(&[]), in_directory),
        (InodeRmdir, case.file(&[]), changed),
        (InodeLink, case.file(&[]), changed),
        (InodeRenameTo, replacing, replaced),
        (InodeSetattr, case.file(&[1]), on(object, &of_file, WRITES)),
        (InodeSetAcl, case.file(&[]), on(object, &of_file, WRITES)),
        (InodeRemoveAcl, case.file(&[]), on(object, &of_file, WRITES)),
        (BprmCheckSecurity, case.file(&[]), on(object, &usual, READS)),
        (
            FileIoctl,
            case.file(&[command(case), 0]),
            controls(module, [own, object], case, READS),
        ),
        (
            FileIoctlCompat,
            case.file(&[command(case), 0]),
            controls(module, [own, object], case, READS),
        ),
        (SocketCreate, made_socket(case), makes_socket(own, case)),
        (
            SocketSetsockopt,
            words(&[2, 1, 6, case.argument, 6, 31]),
            sets_option(own, case),
        ),
        (TaskKill, words(&[0, 0, 1, 9]), on(object, &usual, WRITES)),
        (PtraceAccessCheck, trace.clone(), on(object, &usual, traced)),
        (PtraceTraceme, trace.clone(), on(object, &usual, BOTH)),
        (
            SocketSendmsg,
            at_socket(case),
            on(object, &Level::Equal, WRITES),
        ),
        (
            SocketRecvmsg,
            at_socket(case),
            on(object, &Level::Equal, READS),
        ),
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
        (TaskPrlimit, trace, limits),
        (MsgQueueMsgctl, ipc.clone(), commanded(&[0, 1])),
        (SemSemctl, ipc.clone(), commanded(&[0, 1, 16, 17])),
        (ShmShmctl, ipc.clone(), commanded(&[0, 1, 11, 12])),
        (InodeMkdir, case.file(&[]), in_directory),
        (InodeSymlink, case.file(&[]), in_directory),
        (InodeMknod, case.file(&[]), in_directory),
        (InodeUnlink, case.file(&[]), changed),
        (InodeRename, case.file(&[]), changed),
        (TaskSetscheduler, Vec::new(), on(object, &usual, WRITES)),
        (TaskSetnice, Vec::new(), on(object, &usual, WRITES)),
        (
            SocketGetsockopt,
            Vec::new(),
            on(object, &Level::Equal, READS),
        ),
        (UnixMaySend, Vec::new(), on(object, &Level::Equal, WRITES)),
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

    // Threat model: M26
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

    // Threat model: M26
    #[test]
    fn privileges_are_for_the_highest_level(case in case(), is_initial in any::<bool>()) {
        let request = words(&[case.capability, is_initial.into(), 0, 0]);
        let answer = asked(Module::Biba, &case, &[(EntryPoint::Capable, request)])[0].0;
        prop_assert_eq!(answer, privileged(&case.own, case.capability, is_initial));
    }
}
