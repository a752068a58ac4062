//! Two hosts for each test: network namespaces with a cable between them. The test's process starts
//! itself again on the first, in a mount namespace and a cgroup of its own. Everything is removed
//! afterwards, even if the test fails.
#![allow(dead_code, reason = "every test binary uses a part of it")]

mod policies;

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use usher_bpf::Lack;
use usher_ipsec::{Ipsec, MarkMask, Settings};
use usher_protection::{Class, Kind, Profile};

pub use policies::*;

const INSIDE: &str = "USHER_TEST_INSIDE";
const CGROUP: &str = "USHER_TEST_CGROUP";
/// Time limit of a test in seconds: a longer one hangs, even in an emulated machine.
const PATIENCE: &str = "900";
/// Time limit of a condition.
const PATIENT: Duration = Duration::from_secs(60);

/// A governed program on both hosts: a copy of the interpreter, which is another file.
pub const GOVERNED: &str = "/mnt/governed";
pub const OTHER: &str = "/usr/bin/python3";

pub const ENCRYPTION: Class = Class::new(Kind::Encryption, Profile::Standard);
pub const AUTHENTICATION: Class = Class::new(Kind::Authentication, Profile::Standard);

/// Host A, where the test runs, has 10.1.0.1 and fd01::1 to fd01::3; host B has .2 and .3.
pub const B: &str = "10.1.0.2";
pub const B_TOO: &str = "10.1.0.3";
pub const B6: &str = "fd01::2";

/// The marks of sockets whose traffic is not protected.
pub const BYPASS: u32 = 0x0010_0000;
pub const EPERM: i32 = libc::EPERM;

/// The test functions run in a world of their own.
macro_rules! tests {
    ($($(#[$attribute:meta])* fn $name:ident($world:ident) $body:block)*) => {
        $($(#[$attribute])* #[test]
        fn $name() {
            fn body($world: &$crate::world::World) $body
            $crate::world::world(concat!(module_path!(), "::", stringify!($name)), body);
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

/// Runs `body` in a world of its own. `path` is the path of the test function.
pub fn world(path: &str, body: fn(&World)) {
    // The test's name is without the program's.
    let (_, name) = path.split_once("::").unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped {name}: needs root, for a network namespace and BPF");
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
    if let Some(reason) = refusal() {
        eprintln!("skipped {name}: this kernel does not accept the monitor: {reason}");
        return;
    }
    let path = cgroups().join(format!("usher-test-{}-{name}", std::process::id()));
    fs::create_dir(&path).unwrap();
    // A file, not a pipe, which a process that the test leaves behind would keep open.
    let mut printed = tempfile::tempfile().unwrap();
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
        .stdout(printed.try_clone().unwrap())
        .stderr(printed.try_clone().unwrap())
        .status()
        .unwrap();
    fs::write(path.join("cgroup.kill"), "1").unwrap();
    remove_groups(&path);
    let mut text = Vec::new();
    printed.rewind().unwrap();
    printed.read_to_end(&mut text).unwrap();
    // Kept with this test's own output, so that a failure is shown with its reason.
    print!("{}", String::from_utf8_lossy(&text));
    if !status.success() {
        // Also at once: the harness shows that output after all tests, for which there may be no time.
        std::io::stderr().write_all(&text).unwrap();
        panic!("{name}: {status}");
    }
}

/// The reason that this kernel refuses the monitor. Tried once a test program, because trying loads
/// all of the monitor.
fn refusal() -> Option<&'static Lack> {
    static REFUSAL: OnceLock<Option<Lack>> = OnceLock::new();
    REFUSAL.get_or_init(|| Ipsec::probe().err()).as_ref()
}

/// Whether this kernel makes SAs of ESP. Prints the reason if not.
pub fn has_esp() -> bool {
    // Not needed where they are built in.
    let _ = Command::new("modprobe")
        .args(["-a", "esp4", "esp6"])
        .output();
    let probed = usher_system::namespace::in_new_network(usher_ipsec::probe_esp).unwrap();
    if let Err(reason) = &probed {
        eprintln!("skipped: this kernel has no ESP: {reason}");
    }
    probed.is_ok()
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
    run("ip", &["netns", "add", "b"]);
    // The ends have different numbers: if they share one, the kernel takes up to a second to report that
    // the cable is up.
    batch(
        &[],
        "link set lo up
link add cable index 11 type veth peer name cable index 12 netns b
address add 10.1.0.1/24 dev cable
address add fd01::1/64 dev cable nodad
link set cable up",
    );
    batch(
        &["-n", "b"],
        "link set lo up
address add 10.1.0.2/24 dev cable
address add 10.1.0.3/24 dev cable
address add fd01::2/64 dev cable nodad
address add fd01::3/64 dev cable nodad
link set cable up",
    );
    eventually("the cable is up", || {
        let ends = [run("ip", &["link"]), run("ip", &["-n", "b", "link"])];
        ends.iter()
            .all(|links| links.contains("cable@") && links.contains("state UP"))
    });
    // The kernel assigns IPv6 addresses in a task of its own, which a busy machine runs late.
    // Packets to them are lost before.
    eventually("the hosts have their addresses", || {
        let local = ["-6", "route", "show", "table", "local"];
        let of_b = run("ip", &[&["-n", "b"], &local[..]].concat());
        run("ip", &local).contains("local fd01::1 ")
            && of_b.contains("local fd01::2 ")
            && of_b.contains("local fd01::3 ")
    });
}

/// Runs a command that must succeed, and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs commands of ip(8), one a line, which must succeed. One process runs them all, because emulated
/// machines start processes slowly.
pub fn batch(arguments: &[&str], commands: &str) {
    let mut ip = Command::new("ip")
        .args(arguments)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = ip.stdin.take().unwrap();
    lines.write_all(commands.as_bytes()).unwrap();
    drop(lines);
    let output = ip.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}: {errors}");
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
            // Without packages of the machine, which take a third of the interpreter's start.
            .args(["-S", "/mnt/actor.py"])
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

    /// The governed program on host A, outside the control group of its monitor.
    pub fn outside(world: &World) -> Self {
        let group = world.cgroup_of_b.join("own");
        Self::start(&mut Command::new(GOVERNED), Some(&group))
    }

    /// The interpreter at this path on host A.
    pub fn at(path: &str) -> Self {
        Self::start(&mut Command::new(path), None)
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

    /// The errno of code that waits for something that must not come. Calls on the sockets that it makes
    /// wait two seconds; everywhere else they have a minute, because a busy machine may take long.
    pub fn in_vain(&mut self, code: &str) -> i32 {
        self.run("limit = 2");
        let found = self.errno(code);
        self.run("limit = 60");
        found
    }

    /// The outcomes of each act of `counts` (`keep_trying`), by errno.
    pub fn outcomes(&mut self) -> Vec<(String, Vec<i32>)> {
        let all = "' '.join(':'.join(map(str, (name, *sorted(found)))) for name, found in counts.items())";
        let told = self.run(&format!("r = {all}"));
        let acts = told.trim_matches('\'').split_whitespace().map(|act| {
            let mut words = act.split(':');
            let name = words.next().unwrap().to_owned();
            (name, words.map(|number| number.parse().unwrap()).collect())
        });
        acts.collect()
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

/// Protection of all control groups, for the same program.
pub fn open_at_root(world: &World) -> Ipsec {
    let settings = Settings {
        cgroup: cgroups(),
        ..settings(world)
    };
    Ipsec::open(&settings).unwrap()
}

/// Protection on host B, for the same program.
pub fn open_at_b(world: &World) -> Ipsec {
    let settings = Settings {
        cgroup: world.cgroup_of_b.clone(),
        sysctls: Some("/mnt/sysctls_of_b".into()),
        ..settings(world)
    };
    in_b(|| Ipsec::open(&settings).unwrap())
}

/// Acts in the network namespace of host B.
pub fn in_b<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        let network = fs::File::open("/run/netns/b").unwrap();
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&network), kind)
            .unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

/// Whether LSM programs refuse calls here. If not, prints a skip, so that a virtual machine runs the test too.
/// A test that goes on without them ignores the result.
pub fn sees_calls(ipsec: &Ipsec) -> bool {
    let reason = ipsec.monitor().unseen_calls();
    if let Some(reason) = &reason {
        eprintln!("skipped: this kernel runs no LSM programs: {reason}");
    }
    reason.is_none()
}

pub fn settings(world: &World) -> Settings {
    Settings {
        cgroup: world.cgroup.clone(),
        pins: None,
        mask: MarkMask::default(),
        // LSM programs run for the whole kernel, so only a virtual machine loads them.
        lsm: std::env::var_os("USHER_VM").is_some(),
        daemons: "/proc/self/exe".into(),
        sysctls: Some("/mnt/sysctls".into()),
    }
}
