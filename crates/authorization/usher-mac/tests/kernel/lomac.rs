//! The module `lomac` in a kernel: a process that reads something of a lower level is lowered to that level,
//! and each refusal has a twin that is permitted.

use usher_mac::{ModuleEvent, NotLowered, Outcome, Told};

use super::attacks::Actor;
use super::*;

/// All events of modules since the last call.
fn events(framework: &Framework) -> Vec<ModuleEvent> {
    let mut all = Vec::new();
    loop {
        let (events, more) = framework.take_events().unwrap();
        all.extend(events);
        if !more {
            return all;
        }
    }
}

// Threat model: M28, M55, M56
#[test]
fn who_reads_what_is_lower_gets_lower() {
    let Some(mut world) = World::new("lomac", 74) else {
        return;
    };
    let mounted = world.mount_multilabel();
    // This process runs from before the module is loaded.
    let mut older = Actor::start(0);
    for name in ["lomac", "biba"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    set_label(&mounted, "lomac/equal,biba/equal");
    let path = |name: &str| mounted.join(name).display().to_string();
    let make = |name: &str, label: &str, from: Option<&str>| {
        let file = mounted.join(name);
        match from {
            Some(program) => fs::copy(program, &file).map(drop).unwrap(),
            None => fs::write(&file, "text").unwrap(),
        }
        set_label(&file, label);
    };
    make("high", "lomac/high,biba/equal", None);
    make("high_too", "lomac/high,biba/equal", None);
    make("ten", "lomac/10,biba/equal", None);
    make("low", "lomac/low,biba/equal", None);
    make("everybodys", "lomac/equal,biba/equal", None);
    make("doubted", "lomac/low,biba/low", None);
    make("low_shell", "lomac/low,biba/equal", Some("/bin/dash"));
    make("ten_shell", "lomac/10,biba/equal", Some("/bin/dash"));
    make(
        "marked_shell",
        "lomac/high[low],biba/equal",
        Some("/bin/dash"),
    );
    make("high_shell", "lomac/high,biba/equal", Some("/bin/dash"));
    let sharing = world.compile("sharing");
    // The interpreter does what the first line says, and does not open the script.
    let script = |name: &str, label: &str, line: &str| {
        let file = mounted.join(name);
        fs::write(&file, format!("#!{line}\n")).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        set_label(&file, label);
    };
    let writes = "/usr/bin/env -S sh -c 'echo x >&9 || exit 1'";
    for (name, label) in [
        ("high_script", "lomac/high,biba/equal"),
        ("low_script", "lomac/low,biba/equal"),
        ("marked_script", "lomac/high[low],biba/equal"),
    ] {
        script(name, label, writes);
    }
    for (name, label, inner) in [
        ("low_outside", "lomac/low,biba/equal", "high_script"),
        ("low_inside", "lomac/high,biba/equal", "low_script"),
        ("high_twice", "lomac/high,biba/equal", "high_script"),
    ] {
        script(name, label, &path(inner));
    }
    script(
        "low_without",
        "lomac/low,biba/equal",
        "/no/such/interpreter",
    );
    // No program.
    make("low_nothing", "lomac/low,biba/equal", None);
    let mode = Permissions::from_mode(0o755);
    fs::set_permissions(mounted.join("low_nothing"), mode).unwrap();
    fs::create_dir(mounted.join("low_folder")).unwrap();
    set_label(&mounted.join("low_folder"), "lomac/low,biba/equal");
    fs::create_dir(mounted.join("drop")).unwrap();
    set_label(&mounted.join("drop"), "lomac/equal[5],biba/equal");

    // EACCES: lowered. EPERM: refused, and not lowered.
    let takes =
        |element: &str, onto: &str, way: &str| format!("takes:{element}:{}:{way}", path(onto));
    let high =
        |way: &str, name: &str| takes("lomac/high", "high", &format!("{way}:{}", path(name)));
    let low = path("low");
    let becomes = |element: &str, program: &str| {
        format!("becomes:{element}:{}:{}", path("high"), path(program))
    };
    let serve = |element: &str, act: &str| format!("serve:{element}:0:{act}");
    let shares = |way: &str| format!("shares:lomac/high:{sharing}:{way}:{}:{low}", path("high"));
    let mut sleeper = Command::new("sleep");
    let mut sleeper = sleeper.arg("600").spawn().unwrap();
    let kill = format!("kill:{}", sleeper.id());
    expect(&[
        (high("reads", "low"), "EACCES"),
        (high("reads", "ten"), "EACCES"),
        (high("reads_later", "low"), "EACCES"),
        (high("maps", "low"), "EACCES"),
        (high("in_other_thread", "low"), "EACCES"),
        (high("in_many_threads", "low"), "EACCES"),
        // Its own level, a higher one, `equal`; names and attributes.
        (high("reads", "high_too"), "ok"),
        (high("maps", "high_too"), "ok"),
        (high("reads", "everybodys"), "ok"),
        (high("opens", "low"), "ok"),
        (high("lists", "low_folder"), "ok"),
        (
            takes("lomac/10", "ten", &format!("reads:{}", path("ten"))),
            "ok",
        ),
        (
            takes("lomac/10", "ten", &format!("reads:{}", path("high"))),
            "ok",
        ),
        (takes("lomac/10", "ten", &format!("reads:{low}")), "EACCES"),
        // A process is not lowered below the level of what it reads.
        (
            takes("lomac/high", "ten", &format!("reads:{}", path("ten"))),
            "ok",
        ),
        (takes("lomac/high", "low", &format!("reads:{low}")), "ok"),
        // Exempt.
        (takes("lomac/equal", "high", &format!("reads:{low}")), "ok"),
        (takes("none", "high", &format!("reads:{low}")), "ok"),
        // Objects that others have made.
        (
            takes("lomac/high", "high", "reads_pipe:lomac/low"),
            "EACCES",
        ),
        (takes("lomac/high", "high", "reads_pipe:lomac/high"), "ok"),
        (takes("lomac/high", "high", "receives:lomac/low"), "EACCES"),
        (takes("lomac/high", "high", "receives:lomac/high"), "ok"),
        (
            takes("lomac/high", "high", "takes_message:lomac/low"),
            "EACCES",
        ),
        (
            takes("lomac/high", "high", "takes_message:lomac/high"),
            "ok",
        ),
        (
            takes("lomac/10", "ten", "takes_message:lomac/high"),
            "EPERM",
        ),
        (takes("lomac/high", "high", "attaches:lomac/low"), "EACCES"),
        (takes("lomac/high", "high", "attaches:lomac/high"), "ok"),
        (
            takes("lomac/high", "high", "attaches_to_write:lomac/low"),
            "EACCES",
        ),
        (
            takes("lomac/10", "ten", "attaches_to_write:lomac/high"),
            "EPERM",
        ),
        (takes("lomac/10", "ten", "attaches_to_write:lomac/10"), "ok"),
        ("waits_for_message:lomac/10:lomac/low".into(), "ok"),
        ("waits_for_message:lomac/10:lomac/high".into(), "EACCES"),
        // Access that cannot be taken away again: then nothing is read.
        (
            takes(
                "lomac/high",
                "high",
                &format!("reads_sharing:{low}:{}", path("high_too")),
            ),
            "EPERM",
        ),
        (
            takes(
                "lomac/high",
                "high",
                &format!("reads_beside_private:{low}:{}", path("high_too")),
            ),
            "EACCES",
        ),
        (
            takes("lomac/high", "high", &format!("reads_sharing_memory:{low}")),
            "EPERM",
        ),
        (
            takes("lomac/high", "high", &format!("reads_traced:{low}")),
            "EPERM",
        ),
        (high("reads_traced", "high_too"), "ok"),
        (
            takes("lomac/high", "high", &format!("reads_tracing:{low}")),
            "EPERM",
        ),
        (high("reads_tracing", "high_too"), "ok"),
        (high("reads_after_tracing", "low"), "EACCES"),
        (
            takes("lomac/high", "high", &format!("reads_listened:{low}:yes")),
            "EPERM",
        ),
        (
            takes("lomac/high", "high", &format!("reads_listened:{low}:no")),
            "EACCES",
        ),
        // Another module refuses.
        (
            takes(
                "lomac/high,biba/high",
                "high",
                &format!("reads:{}", path("doubted")),
            ),
            "EPERM",
        ),
        (
            takes(
                "lomac/high,biba/low",
                "high",
                &format!("reads:{}", path("doubted")),
            ),
            "EACCES",
        ),
        // Programs.
        (becomes("lomac/high", "high_shell"), "ok"),
        (becomes("lomac/high", "low_shell"), "EACCES"),
        (becomes("lomac/high", "ten_shell"), "EACCES"),
        (becomes("lomac/high", "marked_shell"), "EACCES"),
        (becomes("lomac/high", "high_script"), "ok"),
        (becomes("lomac/high", "low_script"), "EACCES"),
        (becomes("lomac/high", "marked_script"), "EACCES"),
        (becomes("lomac/high", "low_outside"), "EACCES"),
        (becomes("lomac/high", "low_inside"), "EACCES"),
        (becomes("lomac/high", "high_twice"), "ok"),
        (becomes("lomac/equal", "low_script"), "ok"),
        (becomes("lomac/equal", "low_shell"), "ok"),
        (becomes("none", "low_shell"), "ok"),
        (
            format!(
                "stays_at_failure:lomac/high:{}:{}",
                path("high"),
                path("low_nothing")
            ),
            "ok",
        ),
        (
            format!(
                "stays_at_failure:lomac/high:{}:{}",
                path("high"),
                path("low_without")
            ),
            "ok",
        ),
        // Memory that another process has mapped, or may map now.
        (shares("vfork"), "ok"),
        (shares("vfork_reads"), "ok"),
        (shares("vfork_maps"), "EACCES"),
        (shares("vfork_twice"), "EACCES"),
        (shares("vfork_maps_memory"), "ok"),
        // Parent and child have different levels by then.
        (shares("vfork_maps_later"), "EACCES"),
        (shares("clone"), "EACCES"),
        (shares("clone_reads"), "EACCES"),
        (shares("fork"), "ok"),
        (shares("thread_fork"), "EACCES"),
        // Files of a higher level are not changed.
        (
            serve("lomac/10", &format!("write:{}", path("high"))),
            "EACCES",
        ),
        (
            serve("lomac/10", &format!("chmod:{}", path("high"))),
            "EACCES",
        ),
        (serve("lomac/10", &format!("write:{low}")), "ok"),
        (serve("lomac/10", &format!("stat:{low}")), "ok"),
        (serve("lomac/10", &kill), "EACCES"),
        (serve("none", &kill), "ok"),
        (serve("lomac/10", "set_clock"), "EPERM"),
        (serve("lomac/high", "set_clock"), "ok"),
        // New files: their maker's level, or the auxiliary one of their directory.
        (
            serve("lomac/high,biba/equal", &format!("create:{}", path("made"))),
            "ok",
        ),
        (
            takes("lomac/high", "high", &format!("reads:{}", path("made"))),
            "ok",
        ),
        (
            serve(
                "lomac/high,biba/equal",
                &format!("create:{}", path("drop/made")),
            ),
            "ok",
        ),
        (
            serve("lomac/low", &format!("create:{}", path("drop/other"))),
            "EACCES",
        ),
        (
            serve("lomac/low", &format!("create:{}", path("low_folder/other"))),
            "ok",
        ),
        (high("reads", "drop/made"), "EACCES"),
        // A process takes levels, and gives files levels, within its range.
        (serve("lomac/10(low-10)", "label:lomac/low"), "ok"),
        (serve("lomac/10(low-10)", "label:lomac/high"), "EPERM"),
        (serve("lomac/10", "label:lomac/10[5]"), "EINVAL"),
        (
            serve(
                "lomac/high(10-high)",
                &format!("label_file:{}:lomac/10[9]", path("ten")),
            ),
            "EPERM",
        ),
        (
            serve(
                "lomac/high(9-high)",
                &format!("label_file:{}:lomac/10[9]", path("ten")),
            ),
            "ok",
        ),
    ]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    // The mappings of the older process are not known.
    older.does_all(&[
        (
            takes("lomac/high", "high", &format!("reads:{}", path("ten"))),
            "EPERM",
        ),
        (
            takes("lomac/high", "high", &format!("reads:{}", path("high_too"))),
            "ok",
        ),
    ]);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}

#[test]
fn what_a_module_did_is_told() {
    let Some(mut world) = World::new("told", 75) else {
        return;
    };
    let mounted = world.mount_multilabel();
    let module = Module::named("lomac").unwrap();
    world.framework().load(&module).unwrap();
    set_label(&mounted, "lomac/equal");
    for (name, label) in [("notes", "lomac/low"), ("high", "lomac/high")] {
        fs::write(mounted.join(name), "text").unwrap();
        set_label(&mounted.join(name), label);
    }
    let path = |name: &str| mounted.join(name).display().to_string();
    let by = |way: &str| format!("takes:lomac/high:{}:{way}:{}", path("notes"), path("notes"));
    events(world.framework());
    let lost = world.framework().lost_events().unwrap();
    expect(&[
        (by("reads"), "ok"),
        (by("reads_traced"), "EPERM"),
        (format!("serve:lomac/10:0:write:{}", path("high")), "EACCES"),
    ]);
    let told = events(world.framework());
    let of = |outcome: Outcome| {
        let found = told.iter().find(|event| event.outcome == outcome);
        found.unwrap_or_else(|| panic!("no {outcome:?} in {told:#?}"))
    };
    let element = |text: &str| Told::Element(text.to_owned());
    let lowered = of(Outcome::Lowered);
    assert_eq!(lowered.module, "lomac");
    assert_eq!(lowered.point, EntryPoint::FilePermission);
    assert_eq!(lowered.subject, element("lomac/high"));
    assert_eq!(lowered.object, element("lomac/low"));
    assert_eq!(lowered.element, element("lomac/low"));
    assert_eq!(lowered.uid, 0);
    assert!(lowered.process.is_some_and(|process| process > 1));
    assert!(
        lowered
            .command
            .as_deref()
            .is_some_and(|name| name.starts_with("python"))
    );
    let file = lowered.file.as_ref().unwrap();
    let metadata = fs::metadata(mounted.join("notes")).unwrap();
    assert_eq!(file.inode, metadata.ino());
    assert_eq!(
        (file.major, file.minor),
        (libc::major(metadata.dev()), libc::minor(metadata.dev()))
    );
    assert_eq!(file.name.as_deref(), Some("notes"));
    let kept = of(Outcome::NotLowered(NotLowered::IsTraced));
    assert_eq!(
        (&kept.subject, &kept.element),
        (&element("lomac/high"), &Told::Nothing)
    );
    let refused = of(Outcome::Refused(libc::EACCES));
    assert_eq!(refused.object, element("lomac/high"));
    let name = refused.file.as_ref().and_then(|file| file.name.as_deref());
    assert_eq!(name, Some("high"));
    let module = &world.framework().modules().unwrap()[0];
    // The process that was traced was not lowered.
    assert_eq!(module.lowered, 1);
    assert_eq!(world.framework().lost_events().unwrap(), lost);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}

// Threat model: M19
#[test]
fn events_that_nobody_reads_are_lost_and_counted() {
    let Some(mut world) = World::new("lost", 76) else {
        return;
    };
    let file = world.file("file", OWNER);
    let rule = world.rule("n");
    world.load_rules(vec![rule]);
    events(world.framework());
    let before = world.framework().lost_events().unwrap();
    let mut actor = Actor::start(world.user);
    let mut refusals = 0;
    while world.framework().lost_events().unwrap() == before {
        assert!(refusals < 10_000, "nothing is ever lost");
        assert_eq!(actor.act(&on("read", &file)), "EACCES");
        refusals += 1;
    }
    // The events that had room are reported, and their room is free again.
    let told = events(world.framework());
    assert!(told.len() > 1000, "{}", told.len());
    let about = |event: &ModuleEvent| event.uid == 3000 + 2 * 76 && event.module == "bsdextended";
    assert!(told.iter().any(about));
    assert_eq!(actor.act(&on("read", &file)), "EACCES");
    assert!(!events(world.framework()).is_empty());
}
