//! Every entry point, and labels that begin and end, while modules are loaded and unloaded. The test takes a
//! minute, or as many seconds as USHER_STRESS_SECONDS says.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::attacks::Actor;
use crate::labels::Labels;
use crate::object_labels::OBJECTS;
use crate::reached::{ELSEWHERE, Reacher, when_permitted};
use crate::*;

/// State that the acting threads share while modules come and go.
#[derive(Default)]
struct Stress {
    is_over: AtomicBool,
    /// Acts so far.
    acts: AtomicU32,
    wrong: Mutex<BTreeSet<String>>,
}

/// Ends the other threads, also when a test fails.
struct Over<'s>(&'s Stress);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Stress {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, act: &str, result: &str, expected: &[&str]) {
        self.acts.fetch_add(1, Ordering::Relaxed);
        if !expected.contains(&result) {
            let wrong = format!("{act}: {result}, not {}", expected.join(" or "));
            self.wrong.lock().unwrap().insert(wrong);
        }
    }

    /// A process that reaches each entry point, and is refused nothing.
    fn reach(&self, mut reacher: Reacher) {
        let points = EntryPoint::all().filter(|point| !ELSEWHERE.contains(point));
        for point in points.cycle() {
            if !self.goes_on() {
                break;
            }
            let result = reacher.act(point);
            self.note(&point.to_string(), &result, &[when_permitted(point)]);
        }
        reacher.end();
    }

    /// Objects are made under one name, and used under it and another one.
    fn use_objects(&self, user: u32) {
        let mut actor = Actor::start(user);
        let names = [("closed", "ok"), ("other", "EACCES")];
        // Names of POSIX queues are not removed, and a user has few.
        let objects = OBJECTS.into_iter().filter(|name| *name != "posix_queue");
        let uses = objects.flat_map(|object| {
            names.map(|(name, result)| (format!("used_as:{object}:{name}"), result))
        });
        let uses: Vec<_> = uses.collect();
        for (act, expected) in uses.iter().cycle() {
            if !self.goes_on() {
                break;
            }
            self.note(act, &actor.act(act), &[expected]);
        }
    }

    /// Files are made and programs executed under one name, and read under it and another one.
    fn use_files(&self, labels: &Files, user: u32) {
        let mut actors = ["closed", "other"].map(|name| Actor::labelled(user, name));
        let (own, other) = (0, 1);
        let made = labels.folder.join("made");
        while self.goes_on() {
            for (actor, act, expected) in [
                (own, on("create", &made), "ok"),
                (own, on("read", &made), "ok"),
                (other, on("read", &made), "EACCES"),
                (other, on("stat", &made), "EACCES"),
                (
                    own,
                    onto("after_exec", &labels.program, &labels.closed),
                    "ok",
                ),
                (
                    other,
                    onto("after_exec", &labels.program, &labels.closed),
                    "EACCES",
                ),
                (own, on("unlink", &made), "ok"),
            ] {
                self.note(&act, &actors[actor].act(&act), &[expected]);
            }
        }
    }

    /// The same acts while the module itself comes and goes: each is permitted or refused, and none fails
    /// otherwise.
    fn use_what_is_there(&self, labels: &Files, user: u32) {
        let mut actor = Actor::start(user);
        let made = labels.folder.join("made");
        // The label's module may be unloaded, may not permit changes any more, or may not know the value; or
        // the directory's label is not read yet. ENOTSUP is Python's name for EOPNOTSUPP.
        let expected = [
            "ok", "EPERM", "EACCES", "EINVAL", "ENOTSUP", "EAGAIN", "EEXIST", "ENOENT",
        ];
        let acts = [
            "label:test/closed".to_owned(),
            "used_as:pipe:closed".to_owned(),
            "used_as:shared_memory:other".to_owned(),
            "used_as:stream_pair:closed".to_owned(),
            on("create", &made),
            on("read", &made),
            "label:test/other".to_owned(),
            on("read", &labels.closed),
            on("unlink", &made),
        ];
        for act in acts.iter().cycle() {
            if !self.goes_on() {
                break;
            }
            self.note(act, &actor.act(act), &expected);
        }
    }

    fn require_nothing_wrong(&self) {
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let acts = self.acts.load(Ordering::Relaxed);
        println!("{acts} acts");
        assert!(acts > 0);
    }
}

/// Files of a multilabel file system.
struct Files {
    folder: PathBuf,
    closed: PathBuf,
    program: PathBuf,
}

fn reacher(world: &World, uid: u32, name: &str) -> Reacher {
    let folder = world.path(name);
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(uid), Some(uid)).unwrap();
    Reacher::start(uid, &folder)
}

/// What the kernel has complained about since it booted.
fn complaints() -> Vec<String> {
    let log = Command::new("dmesg").output().unwrap();
    assert!(log.status.success());
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let bad = [
        "BUG:",
        "WARNING:",
        "Oops",
        "refcount_t",
        "general protection",
        "blocked for more than",
    ];
    let lines = log.lines();
    let found = lines.filter(|line| bad.iter().any(|word| line.contains(word)));
    found.map(Into::into).collect()
}

/// Other modules come and go, in changing orders, and settings and labels of interfaces change.
fn others_come_and_go(framework: &mut Framework, until: Instant) -> u32 {
    let others = ["none", "biba", "bsdextended", "mls", "lomac"];
    let interfaces = [
        BTreeMap::new(),
        BTreeMap::from([("lo".to_owned(), "test/plain,biba/equal".parse().unwrap())]),
    ];
    let mut round = 0;
    while Instant::now() < until {
        for step in 0..others.len() {
            let name = others[(step * (round % 3 + 1) + round) % others.len()];
            let is_loaded = framework
                .modules()
                .unwrap()
                .iter()
                .any(|module| module.name == name);
            if is_loaded {
                framework.unload(name).unwrap();
            } else {
                framework.load(&Module::named(name).unwrap()).unwrap();
            }
            framework
                .set_interfaces(&interfaces[(step + round) % 2])
                .unwrap();
        }
        round += 1;
    }
    u32::try_from(round).unwrap()
}

#[test]
fn labels_and_entry_points_withstand_stress() {
    let Some(mut labels) = Labels::new("stress", 80) else {
        return;
    };
    let seconds = std::env::var("USHER_STRESS_SECONDS").map_or(60, |text| text.parse().unwrap());
    let before = complaints();
    let files = Files {
        folder: labels.mounted.clone(),
        closed: labels.file("closed", "closed"),
        program: labels.file("program", "plain"),
    };
    let (user, twin) = (labels.world.user, labels.world.twin);
    let half = Duration::from_secs(seconds) / 2;

    let stress = Stress::default();
    let first = reacher(&labels.world, user, "first");
    std::thread::scope(|scope| {
        let _over = Over(&stress);
        scope.spawn(|| stress.reach(first));
        scope.spawn(|| stress.use_objects(user));
        scope.spawn(|| stress.use_files(&files, twin));
        let rounds = others_come_and_go(labels.world.framework(), Instant::now() + half);
        println!("other modules came and went {rounds} times");
    });
    stress.require_nothing_wrong();

    let stress = Stress::default();
    let second = reacher(&labels.world, user, "second");
    std::thread::scope(|scope| {
        let _over = Over(&stress);
        scope.spawn(|| stress.reach(second));
        scope.spawn(|| stress.use_what_is_there(&files, twin));
        let until = Instant::now() + half;
        let framework = labels.world.framework();
        let mut rounds = 0;
        while Instant::now() < until {
            framework.unload("test").unwrap();
            framework.load(&Module::named("test").unwrap()).unwrap();
            rounds += 1;
        }
        println!("the module came and went {rounds} times");
    });
    stress.require_nothing_wrong();

    // Ended processes and objects have given their labels back, so there is room for others. Refused acts have
    // left objects of System V IPC behind, as this one does.
    let refused = "used_as:shared_memory:other";
    assert_eq!(act(user, &[refused.into()]), ["used_as EACCES"]);
    assert_eq!(act(0, &["remove_all_ipc".into()]), ["remove_all_ipc ok"]);
    labels.world.await_none_labelled();
    fs::read_dir(&labels.mounted).unwrap();
    assert_eq!(act(user, &["label:test/another".into()]), ["label ok"]);
    let loaded = labels.world.framework().modules().unwrap();
    for module in loaded {
        labels.world.framework().unload(&module.name).unwrap();
    }
    assert_eq!(complaints(), before);
}
