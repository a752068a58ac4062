//! The life of labels of objects without names, by the module `test`: only a process with the name `closed`
//! uses what was made under it.

use super::*;

/// As `object_acts.py` has them.
const OBJECTS: [&str; 14] = [
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
    "udp",
    "message_queue",
    "semaphores",
    "shared_memory",
];

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
    // Also where one has ended, whose place in the kernel's memory another one takes.
    assert_eq!(act(user, &["many_ipc:20".into()]), ["many_ipc ok"]);
    // The label of a module that was unloaded counts for nothing, and no module keeps any.
    world.framework().unload("test").unwrap();
    world.framework().load(&test).unwrap();
    assert_eq!(results("closed"), expected("ok"));
}
