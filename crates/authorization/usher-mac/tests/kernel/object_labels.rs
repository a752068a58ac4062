//! The life of labels of objects without names, by the module `test`: only a process with the name `closed`
//! uses what was made under it.

use super::*;

/// As `object_acts.py` has them.
pub(super) const OBJECTS: [&str; 16] = [
    "pipe",
    "memory_file",
    "huge_memory_file",
    "posix_queue",
    "stream_pair",
    "unix_listener",
    "unix_accepted",
    "unix_datagrams",
    "tcp_listener",
    "tcp_accepted",
    "mptcp_accepted",
    "udp",
    "message_queue",
    "semaphores",
    "shared_memory",
    "file_system",
];

// Threat model: M68, M69, M72, M77
#[test]
fn an_object_has_the_label_under_which_it_was_made() {
    let Some(mut world) = World::new("objects", 35) else {
        return;
    };
    let test = Module::named("test").unwrap();
    world.framework().load(&test).unwrap();
    let user = world.user;
    let uses = |name: &str| OBJECTS.map(|object| format!("used_as:{object}:{name}"));
    let results = |name: &str| {
        let results = act(user, &uses(name));
        let results = OBJECTS.into_iter().zip(results);
        let results = results.map(|(object, result)| format!("{object} {result}"));
        results.collect::<Vec<_>>()
    };
    let expected = |result: &str| OBJECTS.map(|object| format!("{object} used_as {result}"));
    assert_eq!(results("closed"), expected("ok"));
    assert_eq!(results("other"), expected("EACCES"));
    // Also where an object takes the place of an ended one in the kernel's memory.
    assert_eq!(act(user, &["many_ipc:20".into()]), ["many_ipc ok"]);
    let tried = ["ipc_as:closed".into(), "ipc_as:other".into()];
    assert_eq!(act(user, &tried), ["ipc_as ok", "ipc_as EACCES"]);
    assert!(!world.labelled().is_empty());
    // An element of an unloaded module has no effect, and is forgotten.
    world.framework().unload("test").unwrap();
    world.await_none_labelled();
    world.framework().load(&test).unwrap();
    assert_eq!(act(user, &tried), all(&tried, "ok"));
    assert_eq!(act(user, &["remove_ipc".into()]), ["remove_ipc ok"]);
    // These end with their acts, and their labels with them.
    assert_eq!(results("closed"), expected("ok"));
    world.await_none_labelled();
}

impl World {
    /// The tables of labels of System V IPC objects and of mounted file systems that are not empty.
    fn labelled(&self) -> Vec<String> {
        let tables = ["ipc_objects", "file_systems"].map(|table| {
            let mut dump = Command::new("bpftool");
            dump.args(["-j", "map", "dump", "pinned"]);
            let dumped = dump.arg(self.pins.join(table)).output().unwrap();
            assert!(dumped.status.success());
            (table, String::from_utf8(dumped.stdout).unwrap())
        });
        let labelled = tables
            .into_iter()
            .filter(|(_, dumped)| dumped.contains("\"key\""));
        labelled
            .map(|(table, dumped)| format!("{table}: {dumped}"))
            .collect()
    }

    /// Waits until no object has a label: the kernel ends removed objects a moment later.
    pub(super) fn await_none_labelled(&self) {
        for _ in 0..1000 {
            if self.labelled().is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("labels of what has ended: {:#?}", self.labelled());
    }
}
