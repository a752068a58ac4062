//! Two hosts for each test: network namespaces with a cable between them. The test's process starts
//! itself again on the first, in a mount namespace and a cgroup of its own. Everything is removed
//! afterwards, even if the test fails.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use usher_ipsec::{Ipsec, MarkMask, Settings};
use usher_protection::{Class, Item, Kind, Level, Profile, ProgramName, Rules, Tables, Treatment};

const INSIDE: &str = "USHER_TEST_INSIDE";
const CGROUP: &str = "USHER_TEST_CGROUP";
/// Time limit of a test in seconds: a longer one hangs, even in an emulated machine.
const PATIENCE: &str = "400";
/// Time limit of a condition.
const PATIENT: Duration = Duration::from_secs(60);

/// A governed program on both hosts: a copy of the interpreter, which is another file.
pub const GOVERNED: &str = "/mnt/governed";
const OTHER: &str = "/usr/bin/python3";

pub const ENCRYPTION: Class = Class::new(Kind::Encryption, Profile::Standard);
pub const AUTHENTICATION: Class = Class::new(Kind::Authentication, Profile::Standard);

/// Host A, where the test runs, has 10.1.0.1 and fd01::1 to fd01::3; host B has .2 and .3.
pub const B: &str = "10.1.0.2";
pub const B_TOO: &str = "10.1.0.3";
pub const B6: &str = "fd01::2";

/// The test functions run in a world of their own.
macro_rules! tests {
    ($($(#[$attribute:meta])* fn $name:ident($world:ident) $body:block)*) => {
        $($(#[$attribute])* #[test]
        fn $name() {
            fn body($world: &$crate::world::World) $body
            $crate::world::world(stringify!($name), body);
        })*
    };
}

pub struct World {
    /// The cgroup of host A's processes; the test's own is a leaf of it.
    pub cgroup: PathBuf,
    /// The cgroup of host B's processes.
    pub cgroup_of_b: PathBuf,
}

pub fn is_emulated() -> bool {
    std::env::var_os("USHER_VM").is_some()
}

/// Runs `body` in a world of its own. `name` is the name of the test function.
pub fn world(name: &str, body: fn(&World)) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped {name}: needs root, for a network namespace and BPF");
        return;
    }
    if let Err(reason) = Ipsec::probe() {
        eprintln!("skipped {name}: this kernel does not accept the monitor: {reason}");
        return;
    }
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == name) {
        let cgroup = PathBuf::from(std::env::var_os(CGROUP).unwrap());
        let [cgroup, cgroup_of_b] = ["a", "b"].map(|host| {
            let group = cgroup.join(host);
            fs::create_dir_all(group.join("own")).unwrap();
            group
        });
        enter(&cgroup.join("own"), std::process::id());
        set_up();
        body(&World {
            cgroup,
            cgroup_of_b,
        });
        return;
    }
    let path = cgroups().join(format!("usher-test-{}-{name}", std::process::id()));
    fs::create_dir(&path).unwrap();
    let status = Command::new("timeout")
        .args(["--signal=KILL", PATIENCE])
        .args(["unshare", "--net", "--mount", "--propagation=private"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            name,
            "--nocapture",
            "--test-threads=1",
            "--include-ignored",
        ])
        .env(INSIDE, name)
        .env(CGROUP, &path)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    fs::write(path.join("cgroup.kill"), "1").unwrap();
    remove_groups(&path);
    assert!(status.success(), "{name}: {status}");
}

fn cgroups() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut mounts = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|mount| mount[2] == "cgroup2").unwrap();
    mount[1].into()
}

pub fn enter(group: &Path, process: u32) {
    fs::write(group.join("cgroup.procs"), process.to_string()).unwrap();
}

fn remove_groups(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    // The killed processes may take a moment to leave.
    eventually("the group is empty", || fs::remove_dir(path).is_ok());
}

fn set_up() {
    for folder in ["/mnt", "/run"] {
        run("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", folder]);
    }
    fs::create_dir("/mnt/bpf").unwrap();
    run("mount", &["-t", "bpf", "bpf", "/mnt/bpf"]);
    fs::copy(fs::canonicalize(OTHER).unwrap(), GOVERNED).unwrap();
    fs::write("/mnt/actor.py", include_str!("actor.py")).unwrap();
    for command in [
        "ip netns add b",
        "ip link set lo up",
        "ip link add cable type veth peer name cable netns b",
        "ip address add 10.1.0.1/24 dev cable",
        "ip address add fd01::1/64 dev cable nodad",
        "ip link set cable up",
        "ip -n b link set lo up",
        "ip -n b address add 10.1.0.2/24 dev cable",
        "ip -n b address add 10.1.0.3/24 dev cable",
        "ip -n b address add fd01::2/64 dev cable nodad",
        "ip -n b address add fd01::3/64 dev cable nodad",
        "ip -n b link set cable up",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        run(words[0], &words[1..]);
    }
    eventually("the cable is up", || {
        let ends = [run("ip", &["link"]), run("ip", &["-n", "b", "link"])];
        ends.iter()
            .all(|links| links.contains("cable@") && links.contains("state UP"))
    });
}

/// Runs a command that must succeed, and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until the condition is true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENT, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that does with sockets what the test says (actor.py).
pub struct Actor {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    fn start(command: &mut Command, group: Option<&Path>) -> Self {
        let mut process = command
            .arg("/mnt/actor.py")
            .env("PYTHONHOME", "/usr")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(group) = group {
            enter(group, process.id());
        }
        let mut actor = Self {
            orders: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            process,
        };
        assert_eq!(actor.answer(), "ready");
        actor
    }

    /// A governed program on host A.
    pub fn governed() -> Self {
        Self::start(&mut Command::new(GOVERNED), None)
    }

    /// Another program on host A.
    pub fn other() -> Self {
        Self::start(&mut Command::new(OTHER), None)
    }

    /// Another program on host B.
    pub fn peer() -> Self {
        Self::start(Command::new("ip").args(["netns", "exec", "b", OTHER]), None)
    }

    /// A governed program on host B, in its cgroup.
    pub fn governed_peer(world: &World) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", "b", GOVERNED]);
        Self::start(&mut command, Some(&world.cgroup_of_b.join("own")))
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn order(&mut self, code: &str) -> String {
        let line = code.replace('\n', "\x1e");
        writeln!(self.orders, "{line}").unwrap();
        self.answer()
    }

    /// Runs code that must succeed; returns `r`.
    pub fn run(&mut self, code: &str) -> String {
        let answer = self.order(code);
        match answer.strip_prefix("ok ") {
            Some(result) => result.to_owned(),
            None => panic!("{code}: {answer}"),
        }
    }

    /// Begins code whose answer is read by [`Actor::end`].
    pub fn begin(&mut self, code: &str) {
        writeln!(self.orders, "{}", code.replace('\n', "\x1e")).unwrap();
    }

    /// The errno of the code begun before; 0: it succeeded.
    pub fn end(&mut self) -> i32 {
        number(&self.answer())
    }

    /// The errno of the code; 0: it succeeded.
    pub fn errno(&mut self, code: &str) -> i32 {
        number(&self.order(code))
    }

    /// A mark, or another number.
    pub fn number(&mut self, code: &str) -> u32 {
        self.run(&format!("r = {code}")).parse().unwrap()
    }
}

fn number(answer: &str) -> i32 {
    match answer.split_once(' ') {
        Some(("ok", _)) => 0,
        Some(("errno", number)) => number.parse().unwrap(),
        _ => panic!("{answer}"),
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Protection on host A, for the governed program. Nothing is pinned.
pub fn open(world: &World) -> Ipsec {
    Ipsec::open(&settings(world)).unwrap()
}

/// Protection on host B, for the same program.
pub fn open_at_b(world: &World) -> Ipsec {
    let settings = Settings {
        cgroup: world.cgroup_of_b.clone(),
        sysctls: Some("/mnt/sysctls_of_b".into()),
        ..settings(world)
    };
    let opening = std::thread::spawn(move || {
        let network = fs::File::open("/run/netns/b").unwrap();
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&network), kind)
            .unwrap();
        Ipsec::open(&settings).unwrap()
    });
    opening.join().unwrap()
}

pub fn settings(world: &World) -> Settings {
    Settings {
        cgroup: world.cgroup.clone(),
        pins: None,
        mask: MarkMask::default(),
        sysctls: Some("/mnt/sysctls".into()),
    }
}

/// Treatments by name, for networks.
#[derive(Clone)]
pub enum To {
    Trusted,
    Untrusted,
    /// Local port, remote port (0: any), class, level.
    Protected(Vec<(u16, u16, Class, Level)>),
}

pub fn mandatory(class: Class) -> To {
    To::Protected(vec![(0, 0, class, Level::Mandatory)])
}

pub fn optional(class: Class) -> To {
    To::Protected(vec![(0, 0, class, Level::Optional)])
}

/// Tables of applications, each with one program and its networks; those that are left out are
/// discarded. Signatures as `usher-protection` makes them.
pub fn tables(applications: &[(&str, Vec<(&str, To)>)]) -> Tables {
    let mut tables = Tables::default();
    for (program, networks) in applications {
        let mut all = vec![
            ("0.0.0.0/0".parse().unwrap(), Treatment::Discard),
            ("::/0".parse().unwrap(), Treatment::Discard),
        ];
        for (network, to) in networks {
            let network: ipnet::IpNet = network.parse().unwrap();
            let treatment = match to {
                To::Trusted => Treatment::Bypass,
                To::Untrusted => Treatment::Discard,
                To::Protected(items) => Treatment::Items(list(&mut tables, items)),
            };
            all.retain(|(known, _)| *known != network);
            all.push((network, treatment));
        }
        all.sort();
        add(&mut tables, program, all);
    }
    tables
}

fn list(tables: &mut Tables, items: &[(u16, u16, Class, Level)]) -> usize {
    let mut list = Vec::new();
    for &(local, remote, class, level) in items {
        let known = tables.classes.iter().position(|one| *one == (class, level));
        list.push(Item {
            local_port: local.try_into().ok(),
            remote_port: remote.try_into().ok(),
            class: known.unwrap_or_else(|| {
                tables.classes.push((class, level));
                tables.classes.len() - 1
            }),
        });
    }
    let known = tables.item_lists.iter().position(|one| *one == list);
    known.unwrap_or_else(|| {
        tables.item_lists.push(list);
        tables.item_lists.len() - 1
    })
}

/// Adds an application. It has a signature of its own unless all of its traffic is treated alike.
pub fn add(tables: &mut Tables, program: &str, networks: Vec<(ipnet::IpNet, Treatment)>) {
    let plain = |treatment: &Treatment| match treatment {
        Treatment::Items(list) => {
            let list = &tables.item_lists[*list];
            list[0].local_port.is_none() && list[0].remote_port.is_none()
        }
        Treatment::Bypass | Treatment::Discard => true,
    };
    let same = networks.iter().all(|(_, one)| *one == networks[0].1) && plain(&networks[0].1);
    let known = tables
        .applications
        .iter()
        .find(|one| one.networks == networks);
    let next = tables.applications.iter().map(|one| one.signature).max();
    let signature = match known {
        _ if same => 0,
        Some(known) => known.signature,
        None => next.unwrap_or(0) + 1,
    };
    let program = match program.starts_with('/') {
        true => ProgramName::Path(program.to_owned()),
        false => ProgramName::Name(program.to_owned()),
    };
    tables.applications.push(Rules {
        programs: vec![program],
        signature,
        networks,
    });
}

/// The class mark of a class at a level.
pub fn mark(class: Class, level: Level) -> u32 {
    MarkMask::default().class_mark(class, level)
}
