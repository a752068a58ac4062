//! A separate world for each test: network namespace, mount namespace with a BPF file system,
//! cgroup. The test's process starts itself again inside. Everything is removed afterwards, even if
//! the test fails.
#![allow(
    dead_code,
    unused_macros,
    reason = "every test binary uses a part of it"
)]

pub mod token;

use std::io::{self, Read, Seek, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use usher_base::ConnectionTuple;
use usher_kernel::admission::{Admission, AdmissionRow, Announced, Limits};
use usher_kernel::cgroup::{self, Group};
use usher_kernel::{KernelError, listener};
use usher_proto::SessionId;

/// Set in the inner process to the name of the test.
const INSIDE: &str = "USHER_TEST_INSIDE";
/// Set in the inner process to the path of the test's cgroup.
const CGROUP: &str = "USHER_TEST_CGROUP";
/// Set in the inner process if the test reads tokens at interfaces, as kernels before 6.6 do.
const AT_INTERFACES: &str = "USHER_TEST_AT_INTERFACES";
/// Time limit of a test in seconds: a longer one hangs, even in an emulated machine.
const PATIENCE: &str = "900";

/// The service of the tests, its port, and two users.
pub const SERVICE: u32 = 7;
pub const PORT: u16 = 143;
pub const ALICE: u32 = 61_001;
pub const BOB: u32 = 61_002;

/// The host of the tests' sessions with tokens, and the addresses of its connections.
pub const HOST: u64 = 77;
pub const CLIENT_ADDRESSES: [&str; 10] = [
    "10.9.0.1", "10.9.0.2", "10.9.0.3", "::1", "fd00::2", "10.8.0.2", "fd08::2", "10.7.0.2",
    "fd07::2", "10.1.0.2",
];

/// The number of rounds: a tenth in an emulated machine, which is that much slower.
pub fn rounds(native: u32) -> u32 {
    if is_emulated() { native / 10 } else { native }
}

pub fn is_emulated() -> bool {
    std::env::var_os("USHER_VM").is_some()
}

macro_rules! tests_run_by {
    ($run:ident; $($(#[$documentation:meta])* fn $name:ident($world:ident) $body:block)*) => {
        $($(#[$documentation])* #[test]
        fn $name() {
            fn body($world: &$crate::world::World) $body
            $crate::world::$run(stringify!($name), body);
        })*
    };
}

/// The test functions run in a world of their own.
macro_rules! tests {
    ($($tests:tt)*) => { tests_run_by! { world; $($tests)* } };
}

/// As `tests`, once for each place where this kernel can read tokens.
macro_rules! tests_of_tokens {
    ($($tests:tt)*) => { tests_run_by! { worlds_of_tokens; $($tests)* } };
}

/// Whether this kernel has programs for netfilter that see packets whole.
pub fn has_netfilter_programs() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 6)
}

/// The surroundings of a test.
pub struct World {
    /// A folder of a BPF file system.
    pub pins: PathBuf,
    /// The cgroup whose leaf `keeper` this process is in.
    pub cgroup: PathBuf,
    /// Whether tokens are read at interfaces: because this kernel cannot read them at LOCAL_IN, or
    /// because the test asks for it.
    pub at_interfaces: bool,
}

/// Runs `body` in a world of its own. `name` is the name of the test function.
pub fn world(name: &str, body: fn(&World)) {
    run_in(name, body, &[!has_netfilter_programs()]);
}

/// Runs `body` once with tokens read at interfaces and once with tokens read at LOCAL_IN; in an
/// emulated machine only as Usher reads them on its kernel.
pub fn worlds_of_tokens(name: &str, body: fn(&World)) {
    let at_interfaces: &[bool] = match (has_netfilter_programs(), is_emulated()) {
        (false, _) => &[true],
        (true, true) => &[false],
        (true, false) => &[false, true],
    };
    run_in(name, body, at_interfaces);
}

/// Runs `body` in a world for each value of [`World::at_interfaces`].
fn run_in(name: &str, body: fn(&World), at_interfaces: &[bool]) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped {name}: needs root, for a network namespace and BPF");
        return;
    }
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == name) {
        let cgroup = PathBuf::from(std::env::var_os(CGROUP).unwrap());
        Group::create(&cgroup, "keeper")
            .unwrap()
            .move_self()
            .unwrap();
        let mount = Path::new("/mnt");
        run("mount", &["-t", "tmpfs", "tmpfs", "/mnt"]);
        std::fs::create_dir(mount.join("bpf")).unwrap();
        run("mount", &["-t", "bpf", "bpf", "/mnt/bpf"]);
        run("ip", &["link", "set", "lo", "up"]);
        run("ip", &["address", "add", "10.9.0.1/24", "dev", "lo"]);
        body(&World {
            pins: mount.join("bpf/usher"),
            cgroup,
            at_interfaces: std::env::var_os(AT_INTERFACES).is_some(),
        });
        return;
    }
    for &at_interfaces in at_interfaces {
        run_outside(name, at_interfaces);
    }
}

/// Makes a world, and runs the test inside.
fn run_outside(name: &str, at_interfaces: bool) {
    let parent = cgroup::mount().unwrap();
    let group = format!("usher-test-{}-{name}", std::process::id());
    let path = parent.join(&group);
    let made = Group::create(&parent, &group).unwrap();
    // A file: what tests print at the same time must not mix, because skips are read from it.
    let mut printed = tempfile::tempfile().unwrap();
    let status = Command::new("timeout")
        .args([
            "--signal=KILL",
            PATIENCE,
            "unshare",
            "--net",
            "--mount",
            "--propagation=private",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, name)
        .env(CGROUP, &path)
        .envs(at_interfaces.then_some((AT_INTERFACES, "")))
        .stdin(Stdio::null())
        .stdout(printed.try_clone().unwrap())
        .stderr(printed.try_clone().unwrap())
        .status()
        .unwrap();
    made.kill().unwrap();
    drop(made);
    remove_groups(&path);
    let mut text = Vec::new();
    printed.rewind().unwrap();
    printed.read_to_end(&mut text).unwrap();
    // Kept with this test's own output, so that a failure is shown with its reason.
    print!("{}", String::from_utf8_lossy(&text));
    if !status.success() {
        // The text is printed at once as well: the harness shows that output after all tests, for which there
        // may be no time.
        std::io::stderr().write_all(&text).unwrap();
        panic!("{name}, at interfaces {at_interfaces}: {status}");
    }
}

fn remove_groups(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    // The killed processes may take a moment to leave.
    let mut outcome = std::fs::remove_dir(path);
    for _ in 0..100 {
        if outcome.is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
        outcome = std::fs::remove_dir(path);
    }
    outcome.unwrap();
}

/// Runs a command that must succeed.
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
}

/// Waits until the condition is true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < Duration::from_secs(100),
            "did not happen: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The limits of [`World::open`].
pub const LIMITS: Limits = Limits {
    sessions: 16,
    admissions: 64,
    listeners: 16,
    tokens: 64,
};

impl World {
    pub fn open(&self) -> Result<Admission, KernelError> {
        self.open_with(&LIMITS)
    }

    pub fn open_with(&self, limits: &Limits) -> Result<Admission, KernelError> {
        let open = if self.at_interfaces {
            Admission::open_at_interfaces
        } else {
            Admission::open
        };
        let admission = open(&self.pins, &self.cgroup, limits)?;
        let reason = admission.reads_at_interfaces();
        assert_eq!(reason.is_some(), self.at_interfaces, "{reason:?}");
        let addresses = CLIENT_ADDRESSES.map(|address| (HOST, address.parse().unwrap()));
        admission.set_client_addresses(&addresses)?;
        Ok(admission)
    }

    /// Admission of the service, with a listener for each of the two users.
    pub fn serve(&self) -> (Admission, OwnedFd, OwnedFd) {
        let admission = self.open().unwrap();
        admission.set_services(&[(PORT, SERVICE)]).unwrap();
        let alice = queue(&admission, ALICE, 16);
        let bob = queue(&admission, BOB, 16);
        (admission, alice, bob)
    }
}

/// A listener of the user, entered as the user's queue.
pub fn queue(admission: &Admission, uid: u32, backlog: u32) -> OwnedFd {
    let listener = listener::create(SERVICE, uid, PORT, backlog).unwrap();
    admission
        .add_listener(SERVICE, uid, listener.as_fd())
        .unwrap();
    listener
}

pub fn session(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

pub fn announced(uid: u32) -> Announced {
    Announced {
        session: session(uid.to_le_bytes()[0]),
        service: SERVICE,
        uid,
        lifetime: Duration::from_secs(10),
    }
}

/// A client's socket, bound to an address and port before it connects.
pub struct Client {
    socket: OwnedFd,
    pub connection: ConnectionTuple,
}

pub fn v4(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, 1], port))
}

pub fn v6(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))
}

impl Client {
    /// `from` with port 0: any free port.
    pub fn bound(from: SocketAddr, to: SocketAddr) -> Self {
        let family = if from.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let socket =
            rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &from).unwrap();
        let own = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        Self {
            socket,
            connection: ConnectionTuple::new(own, to).unwrap(),
        }
    }

    pub fn v4() -> Self {
        Self::bound(v4(0), v4(PORT))
    }

    pub fn v6() -> Self {
        Self::bound(v6(0), v6(PORT))
    }

    pub fn connect(self) -> io::Result<TcpStream> {
        rustix::net::connect(&self.socket, &self.connection.server)?;
        Ok(self.socket.into())
    }

    /// Connects, expecting a RST.
    pub fn expect_refused(self) {
        let error = self.connect().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    }
}

/// The next connection of the queue, and its client.
pub fn accept(listener: &OwnedFd) -> (TcpStream, SocketAddr) {
    eventually("a connection waits", || {
        listener::has_waiting(listener.as_fd())
    });
    let (socket, from) = rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC).unwrap();
    let from = SocketAddr::try_from(from.unwrap()).unwrap();
    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
    (socket.into(), from)
}

/// The entry of a connection.
pub fn row(admission: &Admission, connection: &ConnectionTuple) -> Option<AdmissionRow> {
    let rows = admission.admissions().unwrap();
    rows.into_iter().find(|row| row.connection == *connection)
}

/// Delays the end of the listener's handshakes until the client sends data.
pub fn hold_handshakes(listener: &impl AsFd) {
    let seconds: libc::c_int = 60;
    // SAFETY: an integer option, from a local variable of its size.
    let code = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&listener.as_fd()),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            4,
        )
    };
    assert_eq!(code, 0);
}
