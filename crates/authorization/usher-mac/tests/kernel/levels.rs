//! The modules `biba` and `mls` in a kernel, alone and together: each refusal with a twin that is permitted.

use super::*;

/// A process that may lower itself.
const TEN: &str = "biba/10(low-10)";

// Threat model: M26
#[test]
fn information_flows_between_levels_one_way() {
    let Some(mut world) = World::new("levels", 81) else {
        return;
    };
    let user = world.user;
    let elsewhere = world.file("elsewhere", user).display().to_string();
    let mounted = world.mount_multilabel();
    for name in ["biba", "mls"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    set_label(&mounted, "biba/equal,mls/equal");
    let path = |name: &str| mounted.join(name).display().to_string();
    for (name, label) in [
        ("high", "biba/high,mls/equal"),
        ("low", "biba/low,mls/equal"),
        ("secret", "biba/equal,mls/9"),
        ("public", "biba/equal,mls/low"),
        ("both", "biba/low,mls/9"),
    ] {
        let file = mounted.join(name);
        fs::write(&file, "text").unwrap();
        chown(&file, Some(user), Some(user)).unwrap();
        set_label(&file, label);
    }
    let folder = mounted.join("folder");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(user), Some(user)).unwrap();
    set_label(&folder, "biba/high,mls/equal");
    let by = |element: &str, act: &str| format!("serve:{element}:{user}:{act}");
    let on = |element: &str, act: &str, name: &str| by(element, &format!("{act}:{}", path(name)));
    let root = |element: &str, act: &str| format!("serve:{element}:0:{act}");
    let mut sleeper = Command::new("sleep");
    let sleeper = sleeper.arg("600").uid(user).gid(user).spawn();
    let mut sleeper = sleeper.unwrap();
    let kill = format!("kill:{}", sleeper.id());
    expect(&[
        // Integrity: up is read, down is written.
        (on(TEN, "read", "high"), "ok"),
        (on(TEN, "write", "high"), "EACCES"),
        (on(TEN, "append", "high"), "EACCES"),
        (on(TEN, "truncate", "high"), "EACCES"),
        (on(TEN, "chmod", "high"), "EACCES"),
        (on(TEN, "set_acl", "high"), "EACCES"),
        (on(TEN, "remove_acl", "high"), "EACCES"),
        (on(TEN, "unlink", "high"), "EACCES"),
        (on(TEN, "rmdir", "folder"), "EACCES"),
        (on("biba/high", "rmdir", "folder"), "ok"),
        (on(TEN, "write", "low"), "ok"),
        (on(TEN, "chmod", "low"), "ok"),
        (on(TEN, "set_acl", "low"), "ok"),
        (on(TEN, "remove_acl", "low"), "ok"),
        (on(TEN, "read", "low"), "EACCES"),
        (on(TEN, "mapped", "low"), "EACCES"),
        (on(TEN, "stat", "low"), "EACCES"),
        (on("biba/low", "read", "low"), "ok"),
        (on("biba/equal", "read", "low"), "ok"),
        (on("none", "read", "low"), "ok"),
        (on("none", "write", "high"), "ok"),
        // A new file is its maker's.
        (on(TEN, "create", "new"), "ok"),
        (on(TEN, "write", "new"), "ok"),
        (on("biba/low", "write", "new"), "EACCES"),
        (on("biba/low", "read", "new"), "ok"),
        (on("biba/high", "read", "new"), "EACCES"),
        // Files without a level are `high`. Devices such as /dev/null are not.
        (by("biba/low", &format!("write:{elsewhere}")), "EACCES"),
        (by("biba/low", &format!("read:{elsewhere}")), "ok"),
        (by("none", &format!("write:{elsewhere}")), "ok"),
        (by("biba/low", "write:/dev/null"), "ok"),
        (by("biba/low", &kill), "EACCES"),
        (by("none", &kill), "ok"),
        // A process moves within its range.
        (by(TEN, "label:biba/low"), "ok"),
        (by(TEN, "label:biba/10(5-10)"), "ok"),
        (by(TEN, "label:biba/11(low-11)"), "EPERM"),
        (by(TEN, "label:biba/10(low-high)"), "EPERM"),
        (by(TEN, "label:biba/equal"), "EPERM"),
        (by(TEN, "label:biba/(low-10)"), "EINVAL"),
        (by("biba/low", "label:biba/5"), "EPERM"),
        (by("biba/equal", "label:biba/high"), "ok"),
        // Root's privileges, too.
        (root("biba/low", "set_clock"), "EPERM"),
        (root("biba/high", "set_clock"), "ok"),
        (root("none", "set_clock"), "ok"),
        (
            root("biba/low", &format!("label_file:{}:biba/high", path("low"))),
            "EPERM",
        ),
        (
            root(
                "biba/high(low-high)",
                &format!("label_file:{}:biba/5", path("new")),
            ),
            "ok",
        ),
        (
            root("biba/high", &format!("label_file:{}:biba/5", path("low"))),
            "EPERM",
        ),
        (
            root(
                "none",
                &format!("label_file:{}:biba/5(low-high)", path("low")),
            ),
            "EINVAL",
        ),
        // Confidentiality: the other way round.
        (on("mls/5", "read", "public"), "ok"),
        (on("mls/5", "write", "public"), "EACCES"),
        (on("mls/5", "append", "secret"), "ok"),
        (on("mls/5", "read", "secret"), "EACCES"),
        (on("mls/9", "read", "secret"), "ok"),
        (by("mls/5", &format!("write:{elsewhere}")), "EACCES"),
        (by("mls/5", &format!("read:{elsewhere}")), "ok"),
        (by("mls/5", &kill), "EACCES"),
        // Both.
        (on("biba/low,mls/9", "read", "both"), "ok"),
        (on("biba/low,mls/5", "read", "both"), "EACCES"),
        (on("biba/10,mls/9", "read", "both"), "EACCES"),
        (on("biba/10,mls/9", "write", "both"), "ok"),
        (on("biba/10,mls/10", "write", "both"), "EACCES"),
        (by(TEN, "label:biba/low,mls/5"), "ok"),
        // Also where the process waits, and one without a level acts.
        ("waits_for_message:mls/5:mls/9".into(), "EACCES"),
        ("waits_for_message:mls/9:mls/9".into(), "ok"),
        ("waits_for_message:biba/10:biba/low".into(), "EACCES"),
        ("waits_for_message:biba/low:biba/low".into(), "ok"),
        // By loopback, whose label is that of what came.
        ("hears:biba/10".into(), "ok"),
        ("hears:mls/5".into(), "ok"),
        // A process sends a netlink message itself.
        ("waits_for_netlink:mls/5:mls/9".into(), "EACCES"),
        ("waits_for_netlink:mls/9:mls/9".into(), "ok"),
        ("waits_for_netlink:mls/9:mls/5".into(), "ok"),
    ]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let interface = ("lo".to_owned(), "biba/low,mls/low".parse().unwrap());
    world
        .framework()
        .set_interfaces(&BTreeMap::from([interface]))
        .unwrap();
    expect(&[
        ("hears:biba/10".into(), "EACCES"),
        ("hears:biba/low".into(), "ok"),
        ("hears:mls/5".into(), "EPERM"),
        ("hears:mls/low".into(), "ok"),
        ("hears:none".into(), "ok"),
    ]);
    // A module that is loaded again has not read the labels of files yet. Processes without a level, and the
    // other module, do not wait for that.
    world.framework().unload("mls").unwrap();
    let mls = Module::named("mls").unwrap();
    world.framework().load(&mls).unwrap();
    expect(&[
        (on("mls/9", "stat", "secret"), "EACCES"),
        (on("none", "stat", "secret"), "ok"),
        (on("biba/low", "stat", "low"), "ok"),
        (on("biba/5", "stat", "low"), "EACCES"),
    ]);
    fs::read_dir(&mounted).unwrap();
    fs::read(mounted.join("secret")).unwrap();
    expect(&[
        (on("mls/9", "stat", "secret"), "ok"),
        (on("mls/5", "stat", "secret"), "EACCES"),
    ]);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}

/// A module is not asked again about what it has permitted. So labels are changed after accesses that are
/// remembered: each access is made twice under every pair of labels.
#[test]
fn what_was_permitted_is_not_permitted_by_other_labels() {
    let Some(mut world) = World::new("remembered", 82) else {
        return;
    };
    let user = world.user;
    let mounted = world.mount_multilabel();
    let biba = Module::named("biba").unwrap();
    world.framework().load(&biba).unwrap();
    set_label(&mounted, "biba/equal");
    let file = mounted.join("file");
    fs::write(&file, "text").unwrap();
    chown(&file, Some(user), Some(user)).unwrap();
    let path = file.display();
    let by = |element: &str, act: &str| format!("serve:{element}:{user}:{act}:{path}");
    let twice = |acts: &[(String, &'static str)]| {
        for _ in 0..2 {
            expect(acts);
        }
    };
    // The file goes from one level to another and back.
    for (label, read, write) in [
        ("biba/10", "ok", "ok"),
        ("biba/high", "ok", "EACCES"),
        ("biba/low", "EACCES", "ok"),
        ("biba/10", "ok", "ok"),
    ] {
        set_label(&file, label);
        twice(&[
            (by(TEN, "read"), read),
            (by(TEN, "write"), write),
            (by("none", "read"), "ok"),
            (by("none", "write"), "ok"),
        ]);
    }
    // While it is open.
    let relabelled = |next: &str| format!("write_file_relabelled:{TEN}:{user}:{path}:{next}");
    for (next, answer) in [("biba/5", "ok"), ("biba/11", "EACCES")] {
        set_label(&file, "biba/10");
        expect(&[(relabelled(next), answer)]);
    }
    set_label(&file, "biba/10");
    // The process changes its own level while it has the file open.
    let relabelled = |next: &str| format!("write_relabelled:{TEN}:{user}:{path}:{next}");
    twice(&[
        (relabelled("biba/10"), "ok"),
        (relabelled("biba/9"), "EACCES"),
    ]);
    // The module goes and comes back: its elements have other numbers.
    world.framework().unload("biba").unwrap();
    twice(&[(by("none", "write"), "ok")]);
    world.framework().load(&biba).unwrap();
    fs::read_dir(&mounted).unwrap();
    fs::read(&file).unwrap();
    twice(&[
        (by(TEN, "write"), "ok"),
        (by("biba/9", "write"), "EACCES"),
        (by("biba/high", "read"), "EACCES"),
    ]);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}
