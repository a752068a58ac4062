//! The module `partition` in a kernel: each refusal with a twin that is permitted.

use super::attacks::Actor;
use super::*;

/// Acts of a process on another one, or on objects that the other has made, each with the error if the other
/// is in another partition.
const WAYS: [(&str, &str); 12] = [
    ("kill", "EPERM"),
    ("seize", "ESRCH"),
    ("environ", "EACCES"),
    ("scheduler", "ESRCH"),
    ("nice", "ESRCH"),
    ("in_child", "EPERM"),
    ("by_program", "EPERM"),
    ("stream", "EACCES"),
    ("datagram", "EACCES"),
    ("queue", "EACCES"),
    ("semaphore", "EACCES"),
    ("memory", "EACCES"),
];

// Threat model: M31
#[test]
fn a_process_in_a_partition_reaches_its_own_only() {
    let Some(mut world) = World::new("partition", 72) else {
        return;
    };
    let module = Module::named("partition").unwrap();
    world.framework().load(&module).unwrap();
    let mut actor = Actor::start(0);
    let user = world.user;
    let by = |own: &str, other: &str, way: &str| format!("crosses:{user}:{own}:{other}:{way}");
    let all = |own: &str, other: &str, is_reached: bool| {
        let ways = WAYS.iter();
        let results =
            ways.map(|(way, error)| (by(own, other, way), if is_reached { "ok" } else { *error }));
        results.collect::<Vec<_>>()
    };
    actor.does_all(&all("partition/1", "partition/2", false));
    actor.does_all(&all("partition/1", "none", false));
    actor.does_all(&all("partition/1", "partition/1", true));
    actor.does_all(&all("none", "partition/2", true));
    actor.does_all(&[
        (by("partition/1", "partition/0", "kill"), "EPERM"),
        (by("partition/0", "partition/1", "kill"), "ok"),
        // The kernel does not tell modules whose limits they are, so a process in a partition is
        // refused all.
        (by("partition/1", "partition/1", "limit"), "ESRCH"),
        (by("none", "partition/1", "limit"), "ok"),
        // Root's privileges do not help here.
        ("crosses:0:partition/1:partition/2:kill".into(), "EPERM"),
        ("crosses:0:partition/1:none:seize".into(), "ESRCH"),
        ("crosses:0:partition/1:partition/2:stream".into(), "EACCES"),
        ("crosses:0:partition/1:none:memory".into(), "EACCES"),
        ("crosses:0:partition/1:partition/1:seize".into(), "ok"),
        // Not stopped, with CAP_SYS_ADMIN or CAP_PERFMON: Linux does not call an entry point for
        // it.
        ("crosses:0:partition/1:none:environ".into(), "ok"),
    ]);
}

// Threat model: M31
#[test]
fn nothing_leads_out_of_a_partition() {
    let Some(mut world) = World::new("partition_left", 73) else {
        return;
    };
    let module = Module::named("partition").unwrap();
    world.framework().load(&module).unwrap();
    let mut actor = Actor::start(0);
    let user = world.user;
    let as_user = |act: &str| format!("as:{user}:{user}:{act}");
    let within = |act: &str| format!("within:partition/1:{act}");
    actor.does_all(&[
        // Entering takes a privilege, and no privilege is enough to leave.
        (as_user("label:partition/1"), "EPERM"),
        (as_user("label_at_exec:partition/1"), "EPERM"),
        (within("label:partition/2"), "EPERM"),
        (within("label:partition/0"), "EPERM"),
        (within("label_at_exec:partition/2"), "EPERM"),
        (within("label_at_exec:partition/0"), "EPERM"),
        (within("in_child:label:partition/2"), "EPERM"),
        ("within:partition/0:label:partition/2".into(), "ok"),
        ("within:none:label:partition/2".into(), "ok"),
        ("within:none:label_at_exec:partition/2".into(), "ok"),
        ("within:none:label:partition/x".into(), "EINVAL"),
        ("enters_by_program:partition/1".into(), "ok"),
        ("enters_by_program:partition/0".into(), "EPERM"),
    ]);
}
