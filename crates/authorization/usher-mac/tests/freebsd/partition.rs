//! The module `partition`.

use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use usher_mac::EntryPoint;

use crate::asked::{Process, Question, ask, words};
use crate::{EACCES, EPERM, ESRCH};

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| crate::compiled::compile("freebsd/partition.c"))
}

/// Entry points at which the process acts on another one. At `ptrace_traceme` the other one acts on it.
const TO_PROCESSES: [EntryPoint; 6] = [
    EntryPoint::TaskKill,
    EntryPoint::PtraceAccessCheck,
    EntryPoint::TaskSetscheduler,
    EntryPoint::TaskSetnice,
    EntryPoint::TaskSetpgid,
    EntryPoint::TaskPrlimit,
];

const TO_OBJECTS: [EntryPoint; 12] = [
    EntryPoint::UnixStreamConnect,
    EntryPoint::UnixMaySend,
    EntryPoint::MsgQueueAssociate,
    EntryPoint::MsgQueueMsgctl,
    EntryPoint::MsgQueueMsgsnd,
    EntryPoint::MsgQueueMsgrcv,
    EntryPoint::SemAssociate,
    EntryPoint::SemSemctl,
    EntryPoint::SemSemop,
    EntryPoint::ShmAssociate,
    EntryPoint::ShmShmctl,
    EntryPoint::ShmShmat,
];

/// CAP_SYS_ADMIN and CAP_SETUID.
const MAY_ENTER: u64 = 1 << 21 | 1 << 7;

/// A process's partition: none for a process without an element.
type Partition = Option<u32>;

fn encode(partition: Partition) -> Vec<u8> {
    partition.map_or(Vec::new(), |number| words(&[3, 0, number]))
}

/// Whether a process may reach another one, by usher-mac-partition(7).
fn reaches(own: Partition, other: Partition) -> bool {
    [None, Some(0)].contains(&own) || own == other
}

fn unless(permitted: bool, error: i32) -> i32 {
    if permitted { 0 } else { error }
}

fn partition() -> impl Strategy<Value = Partition> {
    prop::sample::select(vec![
        None,
        Some(0),
        Some(1),
        Some(2),
        Some(256),
        Some(u32::MAX),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    // Threat model: M31
    #[test]
    fn partition_decides_as_its_model(
        own in partition(),
        other in partition(),
        wanted in partition(),
        capabilities in prop::sample::select(vec![0, 1 << 21, 1 << 7, !MAY_ENTER, u64::MAX]),
    ) {
        let process = Process { capabilities, ..Process::default() };
        let reached = reaches(own, other);
        let mut expected = vec![
            (EntryPoint::PtraceTraceme, unless(reaches(other, own), ESRCH)),
            // Here `other` is the process's former partition.
            (EntryPoint::RelabelProcess, unless(
                [None, Some(0)].contains(&other) && capabilities & MAY_ENTER != 0,
                EPERM,
            )),
        ];
        expected.extend(TO_PROCESSES.map(|point| (point, unless(reached, ESRCH))));
        expected.extend(TO_OBJECTS.map(|point| (point, unless(reached, EACCES))));
        let mut points: Vec<_> = expected.iter().map(|(point, _)| *point).collect();
        points.push(EntryPoint::NewFile);
        let questions: Vec<_> = points.iter().map(|point| Question {
            point: *point,
            process: &process,
            request: Vec::new(),
            labels: [own, other, wanted].map(encode),
        }).collect();
        let mut answers = ask(program(), &[0; 8], &questions);
        // Files have no partition.
        prop_assert_eq!(answers.pop(), Some((0, vec![0; 120])));
        for ((point, wanted), (answer, _)) in expected.iter().zip(answers) {
            prop_assert_eq!(answer, *wanted, "{}", point);
        }
    }
}
