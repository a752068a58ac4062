//! Modules together: what all permit is done, and of several errors the first in order is returned.

use super::attacks::Actor;
use super::te::{base, types};
use super::*;

/// How often each module has refused.
fn refusals(world: &mut World) -> BTreeMap<String, u64> {
    let modules = world.framework().modules().unwrap().into_iter();
    let modules = modules.map(|module| {
        let counts = module.refusals.iter().map(|(_, count)| count);
        (module.name, counts.sum())
    });
    modules.collect()
}

/// Each act with its result, and the modules that refuse it.
fn require(world: &mut World, actor: &mut Actor, cases: &[(String, &str, &[&str])]) {
    for (act, result, expected) in cases {
        let before = refusals(world);
        actor.does_all(&[(act.clone(), *result)]);
        let after = refusals(world).into_iter();
        let refusing = after.filter(|(name, count)| before[name] != *count);
        let refusing: BTreeSet<String> = refusing.map(|(name, _)| name).collect();
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(refusing, expected, "{act}");
    }
}

/// A mail server, and another server that may trace it.
fn servers() -> Settings {
    let base = ["imapd", "web"].map(base).concat();
    types(&format!(
        "domain imapd, web; type top, mail, log; {base}
         allow imapd mail file read write; allow web imapd process ptrace;
         allow imapd self process ptrace;"
    ))
}

// Threat model: M20
#[test]
fn modules_together_permit_what_each_of_them_permits() {
    let Some(mut world) = World::new("compositions", 80) else {
        return;
    };
    let user = world.user;
    let plain = world.file("plain", OWNER);
    let mounted = world.mount_multilabel();
    for module in [Module::named("biba").unwrap(), Module::with(servers())] {
        world.framework().load(&module).unwrap();
    }
    set_label(&mounted, "biba/equal,te/top,mls/equal");
    for (name, label) in [
        ("low_mail", "biba/low,te/mail,mls/equal"),
        ("high_mail", "biba/high,te/mail,mls/equal"),
        ("low_log", "biba/low,te/log,mls/9"),
        ("high_log", "biba/high,te/log,mls/9"),
    ] {
        let path = mounted.join(name);
        fs::write(&path, "text").unwrap();
        chown(&path, Some(user), Some(user)).unwrap();
        set_label(&path, label);
    }
    let on = |element: &str, act: &str, name: &str| {
        format!(
            "serve:{element}:{user}:{act}:{}",
            mounted.join(name).display()
        )
    };
    let mut actor = Actor::start(0);
    let ten = "biba/10,te/imapd";
    require(
        &mut world,
        &mut actor,
        &[
            (on(ten, "write", "low_mail"), "ok", &[]),
            (on(ten, "write", "high_mail"), "EACCES", &["biba"]),
            (on(ten, "write", "low_log"), "EACCES", &["te"]),
            (on(ten, "write", "high_log"), "EACCES", &["biba", "te"]),
            // Without its element, one of the two modules is not asked.
            (on("te/imapd", "write", "high_mail"), "ok", &[]),
            (on("biba/10", "write", "low_log"), "ok", &[]),
        ],
    );
    world.framework().unload("biba").unwrap();
    // Their errors differ: ESRCH comes before EACCES.
    let partition = Module::named("partition").unwrap();
    world.framework().load(&partition).unwrap();
    let seizes = |own: &str, other: &str| format!("crosses:{user}:{own}:{other}:seize");
    require(
        &mut world,
        &mut actor,
        &[
            (
                seizes("partition/1,te/web", "partition/1,te/imapd"),
                "ok",
                &[],
            ),
            (
                seizes("partition/1,te/web", "partition/1,te/web"),
                "EACCES",
                &["te"],
            ),
            (
                seizes("partition/1,te/web", "partition/2,te/imapd"),
                "ESRCH",
                &["partition"],
            ),
            (
                seizes("partition/1,te/web", "partition/2,te/web"),
                "ESRCH",
                &["partition", "te"],
            ),
        ],
    );
    world.framework().unload("te").unwrap();
    // Rules are about files, partitions about processes: each of these acts is decided by one module.
    let rule = world.rule("n");
    world.load_rules(vec![rule]);
    let read = |element: &str| format!("serve:{element}:{user}:read:{}", plain.display());
    let kill = |other: &str| format!("crosses:{user}:partition/1:{other}:kill");
    require(
        &mut world,
        &mut actor,
        &[
            (read("partition/1"), "EACCES", &["bsdextended"]),
            (kill("partition/1"), "ok", &[]),
            (kill("partition/2"), "EPERM", &["partition"]),
        ],
    );
    let rule = world.rule("arswx");
    let rules = settings(vec![rule]);
    world.framework().configure("bsdextended", &rules).unwrap();
    require(
        &mut world,
        &mut actor,
        &[
            (read("partition/1"), "ok", &[]),
            (kill("partition/1"), "ok", &[]),
            (kill("partition/2"), "EPERM", &["partition"]),
        ],
    );
    world.framework().unload("bsdextended").unwrap();
    world.framework().unload("partition").unwrap();
    for name in ["biba", "mls"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    // The names are looked up in directories whose labels the modules have not read yet.
    fs::read_dir(&mounted).unwrap();
    let both = "biba/10,mls/10";
    require(
        &mut world,
        &mut actor,
        &[
            (on("biba/10,mls/equal", "write", "low_log"), "ok", &[]),
            (
                on("biba/10,mls/equal", "write", "high_log"),
                "EACCES",
                &["biba"],
            ),
            (on(both, "write", "low_log"), "EACCES", &["mls"]),
            (on(both, "write", "high_log"), "EACCES", &["biba", "mls"]),
            (on(both, "read", "high_log"), "ok", &[]),
            (
                on("biba/10,mls/5", "read", "low_log"),
                "EACCES",
                &["biba", "mls"],
            ),
        ],
    );
    drop(actor);
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}
