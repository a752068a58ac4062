//! The module `seeotheruids` in a kernel: each refusal with a twin that is permitted.

use super::attacks::Actor;
use super::*;

/// A view of /proc that hides processes which one may not trace.
struct Hidden(PathBuf);

impl Hidden {
    fn mount(world: &World) -> Self {
        let path = world.path("proc");
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "proc", "-o", "hidepid=ptraceable", "proc"])
            .arg(&path)
            .status();
        assert!(mount.unwrap().success());
        Self(path)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Acts of a process on another one, each with the error if the process does not see the other.
const WAYS: [(&str, &str); 9] = [
    ("kill", "EPERM"),
    ("seize", "ESRCH"),
    ("read", "EPERM"),
    ("environ", "EACCES"),
    ("scheduler", "ESRCH"),
    ("affinity", "ESRCH"),
    ("nice", "ESRCH"),
    ("limit", "ESRCH"),
    ("entry", "ENOENT"),
];

// Threat model: M9, M30
#[test]
fn processes_of_other_users_are_out_of_reach() {
    let Some(mut world) = World::new("seeotheruids", 71) else {
        return;
    };
    let (user, other) = (world.user, world.twin);
    let mut actor = Actor::start(0);
    let hidden = Hidden::mount(&world);
    let place = hidden.0.display();
    // The process of the user has root's capabilities, so the kernel itself refuses nothing.
    let by = |gid: &str, to: u32, to_gid: u32, way: &str| {
        format!("reaches:root:{user}:{gid}:{to}:{to_gid}:{way}:{place}")
    };
    let all = |gid: &str, to: u32, to_gid: u32, is_seen: bool| {
        let ways = WAYS.iter();
        let results = ways.map(|(way, error)| {
            (
                by(gid, to, to_gid, way),
                if is_seen { "ok" } else { *error },
            )
        });
        results.collect::<Vec<_>>()
    };
    let settings = |statements: &str| {
        let ModuleSettings::Seeotheruids(exempt) = block("seeotheruids", statements) else {
            panic!("{statements}");
        };
        Settings::Seeotheruids(exempt, Names::default())
    };
    actor.does_all(&all("9", other, 8, true));
    let strict = settings("suser_privileged no;");
    world.framework().load(&Module::with(strict)).unwrap();
    actor.does_all(&all("9", other, 8, false));
    // The same user, whatever the group; job control, whatever the user.
    actor.does_all(&all("9", user, 8, true));
    actor.does_all(&[
        (by("9", other, 8, "continue"), "ok"),
        (by("9", other, 8, "traceme"), "ESRCH"),
        (by("9", user, 8, "traceme"), "ok"),
        // Not stopped, with CAP_SYS_ADMIN or CAP_PERFMON: Linux does not ask about it.
        (by("9", other, 8, "environ").replace("root", "admin"), "ok"),
        (by("9", other, 8, "seize").replace("root", "admin"), "ESRCH"),
    ]);
    let mut configure = |settings: Settings| {
        world
            .framework()
            .configure("seeotheruids", &settings)
            .unwrap();
    };
    // By group.
    configure(settings(
        "specificgid 7; primarygroup yes; suser_privileged no;",
    ));
    actor.does_all(&all("8", other, 8, true));
    actor.does_all(&all("9+7", other, 8, true));
    actor.does_all(&[
        (by("9", other, 8, "seize"), "ESRCH"),
        (by("9", other, 8, "kill"), "EPERM"),
        (by("9+8", other, 8, "seize"), "ESRCH"),
        (by("7", other, 8, "environ"), "ok"),
        (by("8", other, 8, "traceme"), "ok"),
        (by("9", other, 7, "traceme"), "ok"),
        (by("9", other, 6, "traceme"), "ESRCH"),
    ]);
    // A capability exempts, by default. Without it the real user counts, where the kernel looks at other ids.
    configure(settings(""));
    actor.does_all(&all("9", other, 8, true));
    let saved = |act: &str, to: u32| format!("reaches:{act}:{user}:9:{to}:8:kill:{place}");
    actor.does_all(&[
        (saved("plain", other), "EPERM"),
        (saved("plain", user), "ok"),
    ]);
    let refusals = world.framework().modules().unwrap()[0].refusals.clone();
    let points: Vec<_> = refusals.iter().map(|(point, _)| *point).collect();
    for point in [
        EntryPoint::TaskKill,
        EntryPoint::PtraceAccessCheck,
        EntryPoint::PtraceTraceme,
        EntryPoint::TaskSetscheduler,
        EntryPoint::TaskSetnice,
        EntryPoint::TaskPrlimit,
    ] {
        assert!(points.contains(&point), "{point}: {refusals:?}");
    }
    world.framework().unload("seeotheruids").unwrap();
    actor.does_all(&[(saved("plain", other), "ok")]);
}
