//! Attacks while modules are loaded and unloaded.

use crate::labels::Labels;
use crate::*;

use super::Actor;

// Threat model: M7, M43
pub(super) fn nothing_of_a_module_is_left_when_it_comes_again(labels: &mut Labels) {
    let closed = labels.file("left", "closed");
    let program = labels.file("left_program", "plain");
    let pipe = labels.path("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    labels.label(&pipe, "plain");
    let mut user = Actor::labelled(labels.world.user, "closed");
    let mut root = Actor::start(0);
    let begin_exec = format!("{}:test/closed", onto("begin_exec", &program, &closed));
    let (begin_pipe, end_pipe) = (on("begin_pipe", &pipe), on("end_pipe", &pipe));
    let read = on("read", &closed);
    // The results while the module stays.
    user.does(&read, "ok");
    user.does(&begin_exec, "ok");
    user.does("end_exec", "ok");
    root.does(&begin_pipe, "ok");
    root.does(&end_pipe, "ok");
    for (text, result) in [("test/plain", "ok"), ("test/forbid", "EACCES")] {
        root.does(&format!("begin_call:{text}"), "ok");
        root.does("end_call", result);
    }
    // Left when the module goes: a label, a label for the next program, and a call and an opening
    // that wait in the kernel.
    user.does(&begin_exec, "ok");
    root.does("begin_call:test/forbid", "ok");
    root.does(&begin_pipe, "ok");
    labels.world.framework().unload("test").unwrap();
    user.does(&read, "ok");
    let test = Module::named("test").unwrap();
    labels.world.framework().load(&test).unwrap();
    fs::read_dir(&labels.mounted).unwrap();
    user.does(&read, "EACCES");
    user.does("end_exec", "EACCES");
    root.does("end_call", "EACCES");
    root.does(&end_pipe, "ok");
    // The objects that are left do not prevent a new label.
    user.does("label:test/closed", "ok");
    user.does(&read, "ok");
}

// Threat model: M7
#[test]
fn no_access_slips_through_while_a_module_comes_and_goes() {
    let Some(mut world) = World::new("comes", 54) else {
        return;
    };
    const FIRST: u8 = 254;
    const LAST: u8 = 255;
    let file = world.file("file", OWNER);
    let state = world.path("state");
    let set = |number: u8| {
        let file = fs::OpenOptions::new().write(true).open(&state).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[number], 0).unwrap();
    };
    // Waits until the actor has tried in this state.
    let is_seen = |number: u8| {
        while fs::read(&state).unwrap()[1] != number {
            std::thread::yield_now();
        }
    };
    fs::write(&state, [FIRST, 0]).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o666)).unwrap();
    let mut actor = actor(world.user, &[onto("while_it_decides", &file, &state)]);
    let mut actor = actor.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(actor.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    is_seen(FIRST);
    for round in 0..2 {
        let rules = vec![world.rule("n")];
        // 0: the module may or may not decide.
        set(0);
        world.load_rules(rules);
        set(round * 2 + 1);
        is_seen(round * 2 + 1);
        set(0);
        world.framework().unload("bsdextended").unwrap();
        set(round * 2 + 2);
        is_seen(round * 2 + 2);
    }
    set(LAST);
    assert_eq!(lines.next().unwrap().unwrap(), "while_it_decides ok");
    assert!(actor.wait().unwrap().success());
}
