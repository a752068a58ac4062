//! The framework and its modules in a kernel. They attach LSM programs, so they run in a virtual machine
//! only.

#[path = "kernel/actors.rs"]
mod actors;
#[path = "kernel/attacks/mod.rs"]
mod attacks;
#[path = "shared/block.rs"]
mod block;
#[path = "kernel/compositions.rs"]
mod compositions;
#[path = "kernel/ifoff.rs"]
mod ifoff;
#[path = "kernel/interfaces.rs"]
mod interfaces;
#[path = "kernel/labels.rs"]
mod labels;
#[path = "kernel/levels.rs"]
mod levels;
#[path = "kernel/lomac.rs"]
mod lomac;
#[path = "kernel/object_labels.rs"]
mod object_labels;
#[path = "kernel/overlays.rs"]
mod overlays;
#[path = "kernel/partition.rs"]
mod partition;
#[path = "kernel/passing.rs"]
mod passing;
#[path = "kernel/portacl.rs"]
mod portacl;
#[path = "kernel/reached.rs"]
mod reached;
#[path = "kernel/rules.rs"]
mod rules;
#[path = "kernel/seeotheruids.rs"]
mod seeotheruids;
#[path = "kernel/stress.rs"]
mod stress;
#[path = "kernel/te.rs"]
mod te;
#[path = "kernel/ubns.rs"]
mod ubns;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use actors::{act, actor, all, expect, on, onto, python, set_label};
use block::block;
use usher_mac::{Answers, EntryPoint, Error, Framework, Module, Names, Settings};
use usher_mac_blocks::ModuleSettings;
use usher_mac_blocks::bsdextended::AccessRule;

/// The user whose files a test is about.
const OWNER: u32 = 3900;
/// Another owner, whose files no rule is about.
const OTHER: u32 = 3901;

/// The folder of the framework.
const PINS: &str = "/sys/fs/bpf/test_mac";

/// The framework without a module, and files. Each test has two users of its own, so tests do not meet.
struct World {
    framework: Option<Framework>,
    pins: PathBuf,
    files: tempfile::TempDir,
    /// The user that rules are about.
    user: u32,
    /// A user that no rule is about.
    twin: u32,
    kept: MutexGuard<'static, Option<Framework>>,
}

/// The framework that the last test has left, with its dispatchers, which take long to load. One test has it
/// at a time: lsm_set_self_attr(2) reaches one framework only.
static KEPT: Mutex<Option<Framework>> = Mutex::new(None);

impl World {
    /// None where the kernel does not run the framework, or LSM programs are not to be attached.
    fn new(name: &str, number: u32) -> Option<Self> {
        if std::env::var_os("USHER_VM").is_none() {
            println!(
                "skipped {name}: attaches LSM programs, which is done in a virtual machine only"
            );
            return None;
        }
        // A test that has failed has closed the framework.
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let pins = PathBuf::from(PINS);
        let framework = match kept.take().map_or_else(|| Framework::open(&pins), Ok) {
            Err(Error::Unsupported(lacking)) => {
                println!("skipped {name}: {lacking}");
                return None;
            }
            opened => opened.unwrap(),
        };
        // Where files have handles.
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(files.path(), Permissions::from_mode(0o777)).unwrap();
        Some(Self {
            framework: Some(framework),
            pins,
            files,
            user: 3000 + 2 * number,
            twin: 3001 + 2 * number,
            kept,
        })
    }

    fn framework(&mut self) -> &mut Framework {
        self.framework.as_mut().unwrap()
    }

    /// A script that every user may read, write and execute unless a rule refuses.
    fn file(&self, name: &str, owner: u32) -> PathBuf {
        let path = self.files.path().join(name);
        fs::write(&path, "#!/bin/true\n").unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        path
    }

    /// Compiles a program of tests/.
    fn compile(&self, name: &str) -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
        let program = self.path(name);
        let compiled = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .args([&program, &source])
            .status();
        assert!(compiled.unwrap().success());
        program.display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Mounts a file system where every file has a label of its own.
    fn mount_multilabel(&mut self) -> PathBuf {
        let mounted = self.path("multilabel");
        fs::create_dir(&mounted).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "mode=1777", "tmpfs"])
            .arg(&mounted)
            .status();
        assert!(mount.unwrap().success());
        let device = fs::metadata(&mounted).unwrap().dev();
        let devices = BTreeSet::from([(libc::major(device), libc::minor(device))]);
        self.framework().set_multilabel(&devices).unwrap();
        mounted
    }

    /// A rule about what the user does to the owner's files.
    fn rule(&self, mode: &str) -> AccessRule {
        world_rule(self.user, mode)
    }

    fn load_rules(&mut self, rules: Vec<AccessRule>) {
        self.framework().load(&Module::bsdextended(rules)).unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let framework = self.framework.take();
        let framework = framework.map_or_else(|| Framework::open(&self.pins), Ok);
        if std::thread::panicking() {
            // The next test has a new one.
            let _ = framework.and_then(Framework::close);
            return;
        }
        let mut framework = framework.unwrap();
        for module in framework.modules().unwrap() {
            framework.unload(&module.name).unwrap();
        }
        // The next file system may have the number of one that was here.
        framework.set_multilabel(&BTreeSet::new()).unwrap();
        framework.set_interfaces(&BTreeMap::new()).unwrap();
        framework.permit_families(&BTreeSet::new()).unwrap();
        assert!(framework.attached().unwrap().is_empty());
        *self.kept = Some(framework);
    }
}

/// The rule of a statement, which names nothing.
fn rule(statement: &str) -> AccessRule {
    match block("bsdextended", statement) {
        ModuleSettings::Bsdextended(mut rules) => rules.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Settings of rules that name nothing.
fn settings(rules: Vec<AccessRule>) -> Settings {
    Settings::Bsdextended(rules, Names::default())
}

#[test]
fn a_kernel_that_lacks_the_hooks_is_refused_by_name() {
    match Framework::probe() {
        Ok(()) => println!("this kernel runs the framework"),
        Err(lacking) => {
            println!("{lacking}");
            assert!(lacking.to_string().starts_with("mandatory access control"));
        }
    }
    // The kernel that the tests are for.
    if std::env::var_os("USHER_VM").is_some_and(|kernel| kernel == "6.18") {
        Framework::probe().unwrap();
    }
}

#[test]
fn the_error_is_chosen_by_precedence() {
    let Some(mut world) = World::new("precedence", 4) else {
        return;
    };
    let file = world.file("file", OWNER);
    let rules = vec![world.rule("n")];
    let user = world.user;
    let answers = |error: i32| {
        Settings::Test(Answers {
            uid: user,
            errors: vec![(EntryPoint::InodePermission, error)],
        })
    };
    // `test` comes first: asked alone, then with bsdextended, which answers EACCES.
    world.framework().load(&Module::with(answers(0))).unwrap();
    let acts = [on("read", &file)];
    assert_eq!(act(user, &acts), ["read ok"]);
    // EDEADLOCK is Python's name for EDEADLK.
    let name = |error: i32| match error {
        libc::EDEADLK => "EDEADLOCK",
        libc::EINVAL => "EINVAL",
        libc::ENOENT => "ENOENT",
        libc::EPERM => "EPERM",
        _ => "EIO",
    };
    // The rule of bsdextended is for one file, but the answers of `test` are for every name. No actor could
    // start while these are in force, so the actor is started before.
    world.load_rules(rules);
    assert_eq!(act(user, &acts), ["read EACCES"]);
    for (error, with_rules) in [
        (libc::EDEADLK, "EDEADLOCK"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENOENT, "ENOENT"),
        (libc::EPERM, "EACCES"),
        (libc::EIO, "EACCES"),
    ] {
        for (rules, expected) in [(true, with_rules), (false, name(error))] {
            let opener = Opener::start(user, &file);
            let framework = world.framework();
            let mode = if rules { "n" } else { "arswx" };
            // The rule is for directories as well: they are looked up before the file.
            let rule = rule(&format!("rule subject uid {user} mode {mode};"));
            let only = settings(vec![rule]);
            framework.configure("bsdextended", &only).unwrap();
            framework.configure("test", &answers(error)).unwrap();
            assert_eq!(opener.open(), expected, "{error} {rules}");
            framework.configure("test", &answers(0)).unwrap();
            let none = settings(Vec::new());
            framework.configure("bsdextended", &none).unwrap();
        }
    }
    let wrong = world.framework().configure("test", &settings(Vec::new()));
    assert!(matches!(wrong, Err(Error::OtherSettings(_))), "{wrong:?}");
    let twice = world.framework().load(&Module::with(answers(0)));
    assert!(matches!(twice, Err(Error::Loaded(_))), "{twice:?}");
}

/// A rule about what the user does to the owner's files.
fn world_rule(user: u32, mode: &str) -> AccessRule {
    rule(&format!(
        "rule subject uid {user} object uid {OWNER} mode {mode};"
    ))
}

/// An actor that opens a file when it is asked to: it looks nothing up for itself meanwhile.
struct Opener(Child);

impl Opener {
    fn start(uid: u32, file: &Path) -> Self {
        let mut actor = actor(uid, &[on("on_demand", file)]);
        let child = actor.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut opener = Self(child.unwrap());
        assert_eq!(opener.line(), "begun");
        opener
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        let out = self.0.stdout.as_mut().unwrap();
        let mut byte = [0];
        while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    fn open(mut self) -> String {
        drop(self.0.stdin.take());
        let result = self.line();
        // The actor ends as soon as it may look up names again.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        result
    }
}

#[test]
fn a_signal_is_never_refused_with_esrch() {
    let Some(mut world) = World::new("signal", 5) else {
        return;
    };
    let answers = Answers {
        uid: world.user,
        errors: vec![
            (EntryPoint::TaskKill, libc::ESRCH),
            (EntryPoint::SocketBind, libc::EADDRNOTAVAIL),
            (EntryPoint::SocketConnect, libc::ENETDOWN),
            (EntryPoint::MmapFile, 0),
        ],
    };
    world
        .framework()
        .load(&Module::with(Settings::Test(answers)))
        .unwrap();
    // A process of the same user.
    let other = |user: u32| {
        let mut sleeper = Command::new("sleep");
        sleeper.arg("300").uid(user).gid(user).spawn().unwrap()
    };
    for (user, results) in [
        (
            world.user,
            ["kill EPERM", "bind EADDRNOTAVAIL", "connect ENETDOWN"],
        ),
        (world.twin, ["kill ok", "bind ok", "connect ok"]),
    ] {
        let mut sleeper = other(user);
        let acts = [
            format!("kill:{}", sleeper.id()),
            "bind:0".into(),
            "connect:9".into(),
        ];
        let done = act(user, &acts);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(done, results);
    }
}

/// Hooks, by name, each once.
fn hooks(of: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let hooks: BTreeSet<_> = of.collect();
    hooks.into_iter().collect()
}

#[test]
fn a_hook_that_no_loaded_module_declares_is_not_attached() {
    let Some(mut world) = World::new("attached", 6) else {
        return;
    };
    assert!(world.framework().attached().unwrap().is_empty());
    world.load_rules(Vec::new());
    let of_rules = world.framework().attached().unwrap();
    let declared = world.framework().modules().unwrap();
    let declared = declared[0].entry_points.iter().map(|point| point.hook());
    assert_eq!(of_rules, hooks(declared));
    assert!(of_rules.contains(&"inode_permission"));
    assert!(!of_rules.contains(&"task_kill"), "{of_rules:?}");
    world.framework().load(&Module::none()).unwrap();
    assert_eq!(
        world.framework().attached().unwrap(),
        hooks(EntryPoint::all().map(EntryPoint::hook))
    );
    world.framework().unload("none").unwrap();
    assert_eq!(world.framework().attached().unwrap(), of_rules);
    world.framework().unload("bsdextended").unwrap();
    assert!(world.framework().attached().unwrap().is_empty());
    assert_eq!(world.framework().modules().unwrap(), []);
    let gone = world.framework().unload("bsdextended");
    assert!(matches!(gone, Err(Error::NotLoaded(_))), "{gone:?}");
}

// Threat model: M11
#[test]
fn what_is_in_force_outlives_the_process() {
    const CHILD: &str = "USHER_MAC_TEST_CHILD";
    let Some(mut world) = World::new("outlives", 7) else {
        return;
    };
    let file = world.file("file", OWNER);
    let acts = [on("read", &file)];
    if std::env::var_os(CHILD).is_some() {
        // This process is the one that is killed.
        world.load_rules(vec![world_rule(3000 + 2 * 7, "n")]);
        println!("\nloaded");
        loop {
            std::thread::park();
        }
    }
    drop(world.framework.take());
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .args([
            "--exact",
            "what_is_in_force_outlives_the_process",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "loaded"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(act(world.user, &acts), ["read EACCES"]);
    // Half a module, of a process that was killed while it loaded.
    let half = world.pins.join("slot_5");
    fs::create_dir(&half).unwrap();
    world.framework = Some(Framework::open(&world.pins).unwrap());
    assert!(!half.exists());
    assert_eq!(act(world.user, &acts), ["read EACCES"]);
    let loaded = world.framework().modules().unwrap();
    assert_eq!(loaded[0].name, "bsdextended");
    world
        .framework()
        .configure("bsdextended", &settings(Vec::new()))
        .unwrap();
    assert_eq!(act(world.user, &acts), ["read ok"]);
    world
        .framework()
        .configure("bsdextended", &settings(vec![world_rule(3014, "n")]))
        .unwrap();
    assert_eq!(act(world.user, &acts), ["read EACCES"]);
    assert!(world.framework().objects().unwrap().maps.len() > 5);
    world.framework().unload("bsdextended").unwrap();
    assert_eq!(act(world.user, &acts), ["read ok"]);
    // Nothing is left of a framework that is closed.
    world.framework.take().unwrap().close().unwrap();
    assert!(!world.pins.exists());
}
