//! Ways to other processes, and ways to pass files and messages to them. At each entry point the module
//! `test` refuses one user and permits the twin.

use crate::labels::Labels;
use crate::*;

use super::Actor;

/// Acts of a process on another process of the same user, and their results when the module
/// refuses.
const OTHERS: [(&str, &str); 20] = [
    ("seize", "EACCES"),
    ("attach", "EACCES"),
    ("read", "EPERM"),
    ("write", "EPERM"),
    ("open mem", "EACCES"),
    ("open environ", "EACCES"),
    ("open auxv", "EACCES"),
    ("open maps", "EACCES"),
    ("open smaps", "EACCES"),
    ("open pagemap", "EACCES"),
    ("open fd", "EACCES"),
    ("open fdinfo/0", "EACCES"),
    ("fd/0", "EACCES"),
    ("cwd", "EACCES"),
    ("root", "EACCES"),
    ("exe", "EACCES"),
    ("ns/mnt", "EACCES"),
    ("compare", "EPERM"),
    ("locks", "EPERM"),
    ("take", "EPERM"),
];

// Threat model: M9, M10
pub(super) fn no_way_to_another_process_or_its_files_evades_a_module(labels: &mut Labels) {
    let (user, twin) = (labels.world.user, labels.world.twin);
    let file = labels.file("file", "plain");
    let mut actors = [Actor::start(twin), Actor::start(user)];
    let mut cases: Vec<(EntryPoint, String, &str)> = Vec::new();
    for (way, result) in OTHERS {
        cases.push((
            EntryPoint::PtraceAccessCheck,
            format!("other:{way}"),
            result,
        ));
    }
    for (point, act, result) in [
        (
            EntryPoint::PtraceTraceme,
            "traced_by_parent".into(),
            "EACCES",
        ),
        (EntryPoint::FileReceive, on("received", &file), "EBADF"),
        // Not stopped: Linux does not call the entry point for it.
        (EntryPoint::FileReceive, on("received_by_ring", &file), "ok"),
        (EntryPoint::FileReceive, "other:take".into(), "EACCES"),
        (
            EntryPoint::UnixStreamConnect,
            "abstract_stream".into(),
            "EACCES",
        ),
        (
            EntryPoint::UnixMaySend,
            "abstract_datagram".into(),
            "EACCES",
        ),
        (
            EntryPoint::SocketConnect,
            "connect_by_ring".into(),
            "EACCES",
        ),
        (EntryPoint::MmapFile, on("mapped", &file), "EACCES"),
        (
            EntryPoint::FileMprotect,
            on("made_executable", &file),
            "EACCES",
        ),
        (
            EntryPoint::BprmCheckSecurity,
            "by_memfd:/bin/true".into(),
            "EACCES",
        ),
    ] {
        cases.push((point, act, result));
    }
    for (point, act, result) in cases {
        let answers = |errors| Settings::Test(Answers { uid: user, errors });
        let framework = labels.world.framework();
        actors[1].does(&act, "ok");
        let refusing = answers(vec![(point, libc::EACCES)]);
        framework.configure("test", &refusing).unwrap();
        super::attempt(&mut actors, [(act.as_str(), result)]);
        framework.configure("test", &answers(Vec::new())).unwrap();
    }
}
