//! Ways around rules of `bsdextended`. Each is tried without a rule, which shows that it works, then by the
//! user whom the rule names, and by the twin.

use crate::*;

use usher_bpf::Pins;

/// Words of the table `in_force`, the first of which says which modules decide.
const IN_FORCE_WORDS: usize = 71;

/// Each act on this path.
fn each(acts: &[&str], path: &Path) -> Vec<String> {
    acts.iter().map(|act| on(act, path)).collect()
}

// Threat model: M1
#[test]
fn no_other_way_to_a_file_evades_its_rule() {
    let Some(mut world) = World::new("ways", 10) else {
        return;
    };
    let file = world.file("refused", OWNER);
    let second = world.path("second");
    fs::hard_link(&file, &second).unwrap();
    let permitted = world.file("permitted", OTHER);
    let acts = [
        "in_a_namespace",
        "by_another_mount",
        "by_an_overlay",
        "by_symlink",
        "from_its_folder",
        "execute_descriptor",
        "by_ring",
        "by_polled_ring",
        "by_openat2",
        "by_cloned_tree",
        "in_another_root",
        "by_memfd",
        "watch",
        "marked",
    ];
    let to = |path: &Path| each(&acts, path);
    assert_eq!(act(world.user, &to(&file)), all(&to(&file), "ok"));
    let rules = vec![world.rule("n")];
    world.load_rules(rules);
    for name in [&file, &second] {
        assert_eq!(act(world.user, &to(name)), all(&to(name), "EACCES"));
    }
    assert_eq!(act(world.user, &to(&permitted)), all(&to(&permitted), "ok"));
    assert_eq!(act(world.twin, &to(&file)), all(&to(&file), "ok"));
}

// Threat model: M1
#[test]
fn nothing_is_made_in_a_refused_folder() {
    let Some(mut world) = World::new("folder", 11) else {
        return;
    };
    let folder = |name: &str, owner: u32| {
        let path = world.path(name);
        fs::create_dir(&path).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        path
    };
    let (refused, permitted) = (folder("refused", OWNER), folder("permitted", OTHER));
    let acts = [
        "unnamed",
        "folder_in",
        "symlink_in",
        "pipe_in",
        "socket_in",
        "renamed_in",
    ];
    let into = |path: &Path| each(&acts, path);
    assert_eq!(act(world.user, &into(&refused)), all(&into(&refused), "ok"));
    let rules = vec![world.rule("rsx")];
    world.load_rules(rules);
    let results = act(world.user, &into(&refused));
    assert_eq!(results, all(&into(&refused), "EACCES"));
    let results = act(world.user, &into(&permitted));
    assert_eq!(results, all(&into(&permitted), "ok"));
    assert_eq!(act(world.twin, &into(&refused)), all(&into(&refused), "ok"));
}

// Threat model: M3
#[test]
fn every_id_of_the_thread_counts() {
    let Some(mut world) = World::new("ids", 12) else {
        return;
    };
    let file = world.file("file", OWNER);
    let (user, twin) = (world.user, world.twin);
    // Programs that become the user, and the twin, when anybody executes them.
    let becoming = |name: &str, owner: u32| {
        let program = world.path(name);
        fs::copy("/bin/cat", &program).unwrap();
        chown(&program, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
        format!("run:{}:{}", program.display(), file.display())
    };
    let to_user = becoming("user", user);
    let to_twin = becoming("twin", twin);
    let of_threads = |users: [u32; 2]| {
        let path = file.display();
        format!("as_threads:{path}:{}:{}", users[0], users[1])
    };
    let both = [of_threads([user, twin])];
    assert_eq!(act(0, &both), ["as_threads ok"]);
    let rules = vec![world.rule("n")];
    world.load_rules(rules);
    assert_eq!(act(0, &both), ["as_threads EACCES"]);
    assert_eq!(act(0, &[of_threads([twin, twin + 100])]), ["as_threads ok"]);
    // The real user counts as well as the effective one, the program's owner.
    let programs = [to_user, to_twin];
    assert_eq!(act(twin, &programs), ["run EACCES", "run ok"]);
    assert_eq!(act(user, &programs), ["run EACCES", "run EACCES"]);
}

// Threat model: M5
#[test]
fn a_program_may_be_executed_that_may_not_be_read() {
    let Some(mut world) = World::new("execute", 13) else {
        return;
    };
    let program = world.path("program");
    fs::copy("/bin/true", &program).unwrap();
    chown(&program, Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let acts = each(&["execute", "read"], &program);
    let rules = vec![world.rule("x")];
    world.load_rules(rules);
    assert_eq!(act(world.user, &acts), ["execute ok", "read EACCES"]);
    let reading = settings(vec![world.rule("rs")]);
    let framework = world.framework();
    framework.configure("bsdextended", &reading).unwrap();
    assert_eq!(act(world.user, &acts), ["execute EACCES", "read ok"]);
    // Not stopped: what may be read can be executed otherwise.
    let otherwise = each(&["by_memfd", "by_loader", "made_executable"], &program);
    assert_eq!(act(world.user, &otherwise), all(&otherwise, "ok"));
    assert_eq!(act(world.twin, &acts), ["execute ok", "read ok"]);
}

// Threat model: M11
#[test]
fn a_module_without_its_bit_is_undone_by_the_next_one() {
    let Some(mut world) = World::new("half", 14) else {
        return;
    };
    let file = world.file("file", OWNER);
    let acts = [on("read", &file)];
    let rules = vec![world.rule("n")];
    world.load_rules(rules.clone());
    assert_eq!(act(world.user, &acts), ["read EACCES"]);
    // The state that a process leaves if it is killed after attaching everything and before setting the bit.
    drop(world.framework.take());
    let pins = Pins::lock(&world.pins).unwrap();
    let table = pins.table::<u32, [u64; IN_FORCE_WORDS]>("in_force");
    let table = table.unwrap().unwrap();
    let mut now = table.get(&0).unwrap().unwrap();
    now[0] = 0;
    table.set(&0, &now).unwrap();
    drop(pins);
    assert_eq!(act(world.user, &acts), ["read ok"]);
    world.framework = Some(Framework::open(&world.pins).unwrap());
    assert_eq!(world.framework().modules().unwrap(), []);
    assert!(world.framework().attached().unwrap().is_empty());
    assert_eq!(act(world.user, &acts), ["read ok"]);
    world.load_rules(rules);
    assert_eq!(act(world.user, &acts), ["read EACCES"]);
    assert_eq!(act(world.twin, &acts), ["read ok"]);
}
