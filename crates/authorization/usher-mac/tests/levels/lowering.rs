//! The module `lomac`: as `biba`, but reading lowers the process.

use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_label::{Auxiliary, Level, Levels, Range, TypedValue};
use usher_mac::EntryPoint;

use crate::asked::{Question, ask, words};
use crate::cases::{Case, Element, case};
use crate::commands::{self, command, made_socket, makes_socket, sets_option};
use crate::model::{BOTH, Module, READS, WRITES, Ways};
use crate::{EACCES, EINVAL, EPERM, at_socket, compiled, packet, privileged, process};

/// MAC_DEMOTES.
const DEMOTES: i32 = 0x4d44;

/// An element as the module sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Own {
    Nothing,
    Unknown,
    Of(Auxiliary),
}

impl Own {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Nothing => Element::Nothing.encode(),
            Self::Unknown => Element::Unknown.encode(),
            Self::Of(auxiliary) => TypedValue::Auxiliary(auxiliary.clone()).to_bytes().to_vec(),
        }
    }

    /// The element as `biba` would read it: one with an auxiliary level only counts as unknown.
    fn plain(&self) -> Element {
        match self {
            Self::Nothing => Element::Nothing,
            Self::Unknown | Self::Of(Auxiliary::With(None, _)) => Element::Unknown,
            Self::Of(Auxiliary::Plain(levels)) => Element::Of(levels.clone()),
            Self::Of(Auxiliary::With(Some(level), _)) => {
                Element::Of(Levels::Effective(level.clone()))
            }
        }
    }

    fn level(&self) -> Option<Level> {
        match self.plain() {
            Element::Of(levels) => levels.effective().cloned(),
            _ => None,
        }
    }

    fn auxiliary(&self) -> Option<&Level> {
        match self {
            Self::Of(Auxiliary::With(_, auxiliary)) => Some(auxiliary),
            _ => None,
        }
    }

    fn is_exempt(&self) -> bool {
        *self == Self::Nothing || self.level() == Some(Level::Equal)
    }

    /// The level of an object with this element.
    fn level_or(&self, usual: &Level) -> Option<Level> {
        match self {
            Self::Nothing => Some(usual.clone()),
            _ => self.level(),
        }
    }

    /// The element, lowered to this level.
    fn lowered(&self, level: &Level) -> Self {
        Self::Of(match self {
            Self::Of(Auxiliary::With(_, auxiliary)) => {
                Auxiliary::With(Some(level.clone()), auxiliary.clone())
            }
            Self::Of(Auxiliary::Plain(Levels::Both(_, range))) => {
                let keeps = *range.low() != Level::Equal && level.dominates(range.low());
                let low = if keeps { range.low() } else { level };
                let range = Range::new(low.clone(), level.clone()).unwrap();
                Auxiliary::Plain(Levels::Both(level.clone(), range))
            }
            _ => Auxiliary::Plain(Levels::Effective(level.clone())),
        })
    }

    /// The result of reading, and perhaps writing: the answer, and the element after DEMOTES.
    fn takes(&self, object: &Self, usual: &Level, ways: Ways) -> (i32, Option<Self>) {
        let only_writes = Ways {
            reads: false,
            ..ways
        };
        let refused = Module::Biba.may(&self.plain(), &object.plain(), usual, only_writes);
        let (Some(own), Some(level)) = (self.level(), object.level_or(usual)) else {
            return (if self.is_exempt() { 0 } else { EACCES }, None);
        };
        let is_lowered = refused == 0 && ways.reads && !self.is_exempt() && !level.dominates(&own);
        if is_lowered {
            (DEMOTES, Some(self.lowered(&level)))
        } else {
            (refused, None)
        }
    }

    /// The element of a program that is begun with this one.
    fn executing(&self, file: &Self) -> (i32, Self) {
        if self.is_exempt() {
            return (0, self.clone());
        }
        let (Some(_), Some(level)) = (self.level(), file.level_or(&Level::High)) else {
            return (EACCES, self.clone());
        };
        let mut next = self.clone();
        for level in [Some(&level), file.auxiliary()].into_iter().flatten() {
            if next.level().is_some_and(|own| !level.dominates(&own)) {
                next = next.lowered(level);
            }
        }
        (0, next)
    }

    /// The element of a file that is made in a directory.
    fn making_in(&self, directory: &Self) -> Self {
        let own = self.level().filter(|level| *level != Level::Equal);
        let own = own.unwrap_or(Level::High);
        let auxiliary = directory.auxiliary();
        let auxiliary = auxiliary.filter(|level| own.dominates(level)).cloned();
        Self::Of(Auxiliary::Plain(Levels::Effective(
            auxiliary.unwrap_or(own),
        )))
    }

    fn makes_in(&self, directory: &Self) -> i32 {
        let refused = Module::Biba.may(&self.plain(), &directory.plain(), &Level::High, WRITES);
        let is_above = |level: &Level| self.level().is_some_and(|own| own.dominates(level));
        match directory.auxiliary() {
            Some(level) if refused == 0 && !self.is_exempt() && !is_above(level) => EACCES,
            _ => refused,
        }
    }

    fn gives(&self, former: &Self, wanted: &Self) -> i32 {
        let answer = Module::Biba.relabels_file(&self.plain(), &former.plain(), &wanted.plain());
        let (0, false, Some(auxiliary)) = (answer, self.is_exempt(), wanted.auxiliary()) else {
            return answer;
        };
        // Setting an auxiliary level takes the same right as setting an effective one.
        let auxiliary = Element::Of(Levels::Effective(auxiliary.clone()));
        Module::Biba.relabels_file(&self.plain(), &former.plain(), &auxiliary)
    }
}

fn level() -> impl Strategy<Value = Level> {
    let few = ["low", "high", "equal", "0", "5", "9", "65535"];
    prop::sample::select(few.to_vec()).prop_map(|text| text.parse().unwrap())
}

fn levels() -> impl Strategy<Value = Levels> {
    let range = (level(), level()).prop_filter_map("no range", |(one, other)| {
        Range::new(one.clone(), other.clone())
            .or_else(|_| Range::new(other, one))
            .ok()
    });
    (level(), prop::option::weighted(0.6, range), 0u8..8).prop_map(|(level, range, kind)| {
        match range {
            Some(range) if kind == 0 => Levels::Range(range),
            Some(range) => Levels::Both(level, range),
            None => Levels::Effective(level),
        }
    })
}

fn element() -> impl Strategy<Value = Own> {
    prop_oneof![
        2 => Just(Own::Nothing),
        1 => Just(Own::Unknown),
        9 => levels().prop_map(|levels| Own::Of(Auxiliary::Plain(levels))),
        4 => (level(), level())
            .prop_map(|(level, auxiliary)| Own::Of(Auxiliary::With(Some(level), auxiliary))),
        1 => level().prop_map(|auxiliary| Own::Of(Auxiliary::With(None, auxiliary))),
    ]
}

/// The module's answers, each with the element that the module may write, as it is afterwards.
fn asked(
    noise: u32,
    labels: &[&Own; 3],
    questions: &[(EntryPoint, Vec<u8>)],
) -> Vec<(i32, Vec<u8>)> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compiled::compile("levels/lomac.c"));
    let process = process(noise);
    let questions: Vec<_> = questions
        .iter()
        .map(|(point, request)| Question {
            point: *point,
            process: &process,
            request: request.clone(),
            labels: labels.map(Own::encode),
        })
        .collect();
    ask(program, &[0; 8], &questions)
}

type Answer = (i32, Option<Own>);

/// Each question, with the model's answer.
fn questions([own, object, last]: &[&Own; 3], case: &Case) -> Vec<(EntryPoint, Vec<u8>, Answer)> {
    use EntryPoint::*;
    let usual = Level::High;
    let of_file = case.usual_of_file(&usual);
    let of_open = match case.kind {
        1 | 12 => Level::Equal,
        _ => of_file.clone(),
    };
    let on = |object: &Own, usual: &Level, ways| {
        Module::Biba.may(&own.plain(), &object.plain(), usual, ways)
    };
    let plain = |answer: i32| (answer, None);
    let first_of = |one: i32, other: i32| if one == 0 { other } else { one };
    let in_directory = on(last, &usual, WRITES);
    let changed = first_of(in_directory, on(object, &of_file, WRITES));
    let made = own.makes_in(last);
    let access = case.file(&[case.access, 0]);
    let opened = match case.ways() {
        Ways { writes: true, .. } => on(object, &of_file, WRITES),
        _ => 0,
    };
    let used = Ways {
        reads: case.ways().reads && case.kind != 4,
        ..case.ways()
    };
    let ipc = words(&[1, 2, 0, 0, 0, 0, 0o600, case.argument]);
    let attached = if case.argument & 0o10000 == 0 {
        BOTH
    } else {
        READS
    };
    let stirred = if case.argument == 0 { READS } else { BOTH };
    let controls = |changing: &[u32]| {
        let changes = changing.contains(&(case.argument & 0xff));
        plain(on(object, &usual, if changes { BOTH } else { READS }))
    };
    let traced = match case.argument & 2 {
        0 => 0,
        _ => on(object, &usual, BOTH),
    };
    let limits = match case.argument & 2 {
        0 => 0,
        _ => Module::Biba.may(&own.plain(), &Element::Unknown, &usual, BOTH),
    };
    let trace = words(&[0, 0, 0, 0, 1, case.argument]);
    let mut replacing = case.file(&[]);
    replacing.extend(case.file(&[u32::from(case.access & 1 == 1), 0]));
    let replaced = if case.access & 1 == 1 {
        changed
    } else {
        in_directory
    };
    let receiving = words(&[2, 1, 6, 0, 6, 35]);
    let transmitted = Case {
        own: own.plain(),
        object: object.plain(),
        ..case.clone()
    };
    let relabelled = match last {
        Own::Of(Auxiliary::With(..)) => EINVAL,
        _ => Module::Biba.relabels_process(&object.plain(), &last.plain()),
    };
    vec![
        (InodePermission, access.clone(), plain(opened)),
        (
            FileIoctl,
            case.file(&[command(case), 0]),
            plain(commands::controls(
                Module::Biba,
                [&own.plain(), &object.plain()],
                case,
                Ways::default(),
            )),
        ),
        (
            SocketCreate,
            made_socket(case),
            plain(makes_socket(&own.plain(), case)),
        ),
        (
            SocketSetsockopt,
            words(&[2, 1, 6, case.argument, 6, 31]),
            plain(sets_option(&own.plain(), case)),
        ),
        (FileOpen, access.clone(), plain(opened)),
        (FilePermission, access, own.takes(object, &of_open, used)),
        (
            MmapFile,
            case.file(&[0, 0, case.permitted, 0]),
            own.takes(object, &of_file, case.ways_of_mapping()),
        ),
        (InodeCreate, case.file(&[]), plain(made)),
        (InodeMkdir, case.file(&[]), plain(made)),
        (InodeSymlink, case.file(&[]), plain(made)),
        (InodeMknod, case.file(&[]), plain(made)),
        (InodeRmdir, case.file(&[]), plain(changed)),
        (InodeLink, case.file(&[]), plain(changed)),
        (InodeUnlink, case.file(&[]), plain(changed)),
        (InodeRename, case.file(&[]), plain(changed)),
        (InodeRenameTo, replacing, plain(replaced)),
        (
            InodeSetattr,
            case.file(&[1]),
            plain(on(object, &of_file, WRITES)),
        ),
        (
            InodeSetAcl,
            case.file(&[]),
            plain(on(object, &of_file, WRITES)),
        ),
        (
            InodeRemoveAcl,
            case.file(&[]),
            plain(on(object, &of_file, WRITES)),
        ),
        (
            TaskKill,
            words(&[0, 0, 1, 9]),
            plain(on(object, &usual, WRITES)),
        ),
        (
            TaskSetscheduler,
            Vec::new(),
            plain(on(object, &usual, WRITES)),
        ),
        (TaskSetnice, Vec::new(), plain(on(object, &usual, WRITES))),
        (PtraceAccessCheck, trace.clone(), plain(traced)),
        (
            PtraceTraceme,
            trace.clone(),
            plain(on(object, &usual, BOTH)),
        ),
        (TaskPrlimit, trace, plain(limits)),
        (
            SocketSendmsg,
            at_socket(case),
            plain(on(object, &Level::Equal, WRITES)),
        ),
        (
            SocketRecvmsg,
            at_socket(case),
            own.takes(object, &Level::Equal, READS),
        ),
        (SocketGetsockopt, Vec::new(), plain(0)),
        (
            SocketGetsockopt,
            receiving,
            plain(on(object, &Level::Equal, READS)),
        ),
        (
            UnixStreamConnect,
            Vec::new(),
            plain(on(object, &Level::Equal, BOTH)),
        ),
        (
            UnixMaySend,
            Vec::new(),
            plain(on(object, &Level::Equal, WRITES)),
        ),
        (
            SocketDeliver,
            packet(case),
            plain(on(object, &case.usual_of_packet(), READS)),
        ),
        (
            InterfaceTransmit,
            packet(case),
            plain(Module::Biba.transmits(&transmitted)),
        ),
        (MsgQueueMsgctl, ipc.clone(), controls(&[0, 1])),
        (SemSemctl, ipc.clone(), controls(&[0, 1, 16, 17])),
        (ShmShmctl, ipc.clone(), controls(&[0, 1, 11, 12])),
        (
            MsgQueueMsgsnd,
            ipc.clone(),
            plain(on(object, &usual, WRITES)),
        ),
        (MsgQueueMsgrcv, ipc.clone(), own.takes(object, &usual, BOTH)),
        (SemSemop, ipc.clone(), plain(on(object, &usual, stirred))),
        (ShmShmat, ipc, own.takes(object, &usual, attached)),
        (RelabelProcess, Vec::new(), plain(relabelled)),
        (RelabelFile, Vec::new(), plain(own.gives(object, last))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(900))]

    // Threat model: M28
    #[test]
    fn reading_lowers_as_the_model_says(own in element(), object in element(), last in element(), case in case()) {
        let labels = [&own, &object, &last];
        let expected = questions(&labels, &case);
        let wanted: Vec<_> = expected.iter().map(|(point, request, _)| (*point, request.clone())).collect();
        for ((point, _, (wanted, element)), (answer, left)) in expected.iter().zip(asked(case.noise, &labels, &wanted)) {
            prop_assert_eq!(answer, *wanted, "{}", point);
            let element = element.as_ref().unwrap_or(&last);
            prop_assert_eq!(left, element.encode(), "{}", point);
        }
    }

    // Threat model: M28
    #[test]
    fn programs_and_new_files_are_as_low_as_they_must(own in element(), object in element(), last in element(), noise in any::<u32>()) {
        let labels = [&own, &object, &last];
        let questions = [(EntryPoint::NewFile, Vec::new()), (EntryPoint::NewProgram, Vec::new())];
        let answers = asked(noise, &labels, &questions);
        prop_assert_eq!(&answers[0], &(0, own.making_in(&object).encode()));
        let (answer, next) = last.executing(&object);
        prop_assert_eq!(&answers[1], &(answer, next.encode()));
        // The level never rises.
        if let (Some(before), Some(after)) = (last.level(), next.level()) {
            prop_assert!(before.dominates(&after));
        }
    }

    #[test]
    fn a_lowered_process_has_the_privileges_of_its_level(own in element(), object in element(), case in case(), is_initial in any::<bool>()) {
        let request = words(&[case.capability, is_initial.into(), 0, 0]);
        let answer = asked(case.noise, &[&own, &object, &object], &[(EntryPoint::Capable, request)])[0].0;
        let expected = privileged(&own.plain(), case.capability, is_initial);
        prop_assert!(answer == expected && [0, EPERM].contains(&answer));
    }
}
