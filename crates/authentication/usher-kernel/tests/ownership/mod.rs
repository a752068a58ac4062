//! A world for the tests of LSM programs. The programs are in force for the whole host while the
//! test's process runs, so the tests run one after the other, and only in a virtual machine.
//! Loading takes seconds there, so the tests of one binary share a world, except for those that
//! change who may touch it.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use usher_kernel::ownership::{Identity, Ownership, Reason};

pub mod ring;

/// Set in the inner process to the name of the test.
const INSIDE: &str = "USHER_TEST_INSIDE";
/// Seconds after which a test hangs: an emulated machine is slow.
const PATIENCE: &str = "900";

pub const SERVICE: u32 = 62_001;
/// An account like a service's, but not under the fence.
pub const FREE: u32 = 62_002;
pub const ALICE: u32 = 61_001;
pub const BOB: u32 = 61_002;
pub const MORE_GROUPS: [u32; 2] = [61_010, 61_020];

const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_NET_BIND_SERVICE: u32 = 10;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The surroundings of a test.
pub struct World {
    pub ownership: Ownership,
    pub pins: PathBuf,
}

/// The test functions run in a world of their own.
#[macro_export]
macro_rules! ownership_tests {
    ($($(#[$documentation:meta])* fn $name:ident($world:ident) $body:block)*) => {
        $($(#[$documentation])* #[test]
        fn $name() {
            fn body($world: &$crate::ownership::World) $body
            $crate::ownership::world(stringify!($name), body);
        })*
    };
}

/// Whether LSM programs may be attached here. Prints the reason if not.
pub fn in_virtual_machine(name: &str) -> bool {
    let inside = std::env::var_os("USHER_VM").is_some();
    if !inside {
        println!("skipped {name}: attaches LSM programs, which is done in a virtual machine only");
    }
    inside
}

/// Runs `body` in the world of this binary. `name` is the name of the test function.
pub fn world(name: &str, body: fn(&World)) {
    static WORLD: OnceLock<World> = OnceLock::new();
    if !in_virtual_machine(name) {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // In a thread, because a mount namespace belongs to a thread. The file system of the pins
    // outlives it by the descriptor that `Ownership` holds, and ends with the process.
    body(WORLD.get_or_init(|| std::thread::spawn(open_world).join().unwrap()));
}

fn open_world() -> World {
    call(libc::SYS_unshare, &[libc::CLONE_NEWNS.into()]).unwrap();
    run("mount", &["--make-rprivate", "/"]);
    let pins = folder();
    let ownership = Ownership::open(&pins).unwrap();
    ownership.fence_accounts(&[SERVICE]).unwrap();
    World { ownership, pins }
}

/// Runs `body` in a new process and mount namespace.
pub fn process_of_its_own(name: &str, body: fn(&Path)) {
    if !in_virtual_machine(name) {
        return;
    }
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == name) {
        // The child has one thread, which the guard requires.
        in_child(|| body(&folder()));
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let status = Command::new("timeout")
        .args(["--signal=KILL", PATIENCE])
        .args(["unshare", "--mount", "--propagation=private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, name)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{name}: {status}");
}

/// A folder of a fresh BPF file system, in which pins may be made.
fn folder() -> PathBuf {
    run("mount", &["-t", "tmpfs", "tmpfs", "/mnt"]);
    std::fs::create_dir(Path::new("/mnt/bpf")).unwrap();
    run("mount", &["-t", "bpf", "bpf", "/mnt/bpf"]);
    std::fs::create_dir("/mnt/bpf/usher").unwrap();
    PathBuf::from("/mnt/bpf/usher/ownership")
}

/// Runs a command that must succeed.
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
}

impl World {
    /// The number of refusals for this reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.ownership.refusals().unwrap().of(reason)
    }
}

pub fn alice() -> Identity {
    Identity {
        uid: ALICE,
        gid: ALICE,
        groups: MORE_GROUPS.to_vec(),
    }
}

/// A child process, and a line to it.
pub struct Process {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub line: UnixStream,
}

/// Forks; the child runs `body`, which must return.
pub fn process(body: impl FnOnce(&mut UnixStream)) -> Process {
    let (line, mut far) = UnixStream::pair().unwrap();
    // SAFETY: the child has a copy of this thread only, while another one may just end a test or start
    // the next. After a fork, the C library's locks are free; `body` takes none of the standard
    // library's (`thread`).
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", io::Error::last_os_error());
    if pid == 0 {
        drop(line);
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&mut far)));
        // SAFETY: ends the process without running or flushing anything of the parent.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let pid = Pid::from_raw(pid).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    Process { pid, pidfd, line }
}

impl Process {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Waits for the child's end, which must be a success.
    #[track_caller]
    pub fn done(self) {
        let (_, status) = waitpid(Some(self.pid), WaitOptions::empty())
            .unwrap()
            .unwrap();
        assert_eq!(status.exit_status(), Some(0), "the child: {status:?}");
    }
}

/// A process of the service that holds a grant for alice runs `body`.
#[track_caller]
pub fn with_a_grant(world: &World, body: impl FnOnce()) {
    let mut service = process(|line| {
        become_service(SERVICE);
        say(line);
        hear(line);
        body();
    });
    hear(&mut service.line);
    world.ownership.grant(service.fd(), &alice()).unwrap();
    say(&mut service.line);
    service.done();
}

/// Runs `body` in a child, which must succeed.
#[track_caller]
pub fn in_child(body: impl FnOnce()) {
    process(|_| body()).done();
}

/// Runs `body` in another thread of this process and waits for its end; a panic there is one here.
///
/// For children. A thread of the standard library enters itself in a table at its start and end, whose
/// lock stays taken in a child if another thread of the test held it at the fork. (A process of
/// [`process_of_its_own`] has no such thread.)
#[track_caller]
pub fn in_thread(body: impl FnOnce() + Send + 'static) {
    let thread = thread(body);
    thread.join();
}

/// A thread that [`thread`] has started.
#[must_use = "its panic is told by `join`"]
pub struct Thread(libc::pthread_t);

/// Like [`in_thread`], without waiting.
pub fn thread(body: impl FnOnce() + Send + 'static) -> Thread {
    type Body = Box<dyn FnOnce() + Send>;
    extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: `thread` gives each body to one thread.
        let body = unsafe { Box::from_raw(body.cast::<Body>()) };
        let outcome = catch_unwind(AssertUnwindSafe(*body));
        std::ptr::without_provenance_mut(usize::from(outcome.is_err()))
    }
    let body: *mut Body = Box::into_raw(Box::new(Box::new(body)));
    let mut thread = 0;
    // SAFETY: `run` takes what `body` points to, and it has the type that `run` expects.
    let errno =
        unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), run, body.cast()) };
    assert_eq!(errno, 0, "pthread_create");
    Thread(thread)
}

impl Thread {
    #[track_caller]
    pub fn join(self) {
        let mut panicked = std::ptr::null_mut();
        // SAFETY: a thread of this process, which nobody else joins.
        assert_eq!(unsafe { libc::pthread_join(self.0, &raw mut panicked) }, 0);
        assert!(panicked.is_null(), "the thread panicked");
    }
}

pub fn say(line: &mut UnixStream) {
    line.write_all(b".").unwrap();
}

/// Waits for the other side's `say`.
#[track_caller]
pub fn hear(line: &mut UnixStream) {
    line.read_exact(&mut [0]).unwrap();
}

/// The result of a raw system call. Raw, because libc's set*id calls act on all threads.
pub fn call(number: libc::c_long, arguments: &[i64]) -> io::Result<i64> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the callers pass numbers, and addresses of data that lives until the call returns.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

pub fn setuid(uid: u32) -> io::Result<i64> {
    call(libc::SYS_setuid, &[uid.into()])
}

pub fn setresuid(real: u32, effective: u32, saved: u32) -> io::Result<i64> {
    call(
        libc::SYS_setresuid,
        &[real.into(), effective.into(), saved.into()],
    )
}

pub fn setgid(gid: u32) -> io::Result<i64> {
    call(libc::SYS_setgid, &[gid.into()])
}

pub fn setgroups(groups: &[u32]) -> io::Result<i64> {
    call(
        libc::SYS_setgroups,
        &[groups.len() as i64, groups.as_ptr() as i64],
    )
}

pub fn become_alice() -> io::Result<()> {
    setgroups(&MORE_GROUPS)?;
    setgid(ALICE)?;
    setuid(ALICE)?;
    Ok(())
}

#[track_caller]
pub fn expect_errno<T: std::fmt::Debug>(result: io::Result<T>, errno: i32) {
    match result {
        Err(error) => assert_eq!(error.raw_os_error(), Some(errno), "{error}"),
        Ok(value) => panic!("not refused: {value:?}"),
    }
}

#[track_caller]
pub fn expect_refused<T: std::fmt::Debug>(result: io::Result<T>) {
    expect_errno(result, libc::EPERM);
}

/// Makes this process one of the account, with the capabilities of a service that changes its user.
/// They survive exec.
pub fn become_service(uid: u32) {
    let bits = 1_u32 << CAP_SETGID | 1 << CAP_SETUID | 1 << CAP_NET_BIND_SERVICE;
    call(libc::SYS_prctl, &[libc::PR_SET_KEEPCAPS.into(), 1]).unwrap();
    setgroups(&[]).unwrap();
    setgid(uid).unwrap();
    setuid(uid).unwrap();
    // Version 3, this process. The effective, permitted and inheritable sets: their low words, then their
    // high ones.
    let header = [0x2008_0522_u32, 0];
    let data = [bits, bits, bits, 0, 0, 0];
    call(
        libc::SYS_capset,
        &[header.as_ptr() as i64, data.as_ptr() as i64],
    )
    .unwrap();
    for capability in [CAP_SETGID, CAP_SETUID, CAP_NET_BIND_SERVICE] {
        call(
            libc::SYS_prctl,
            &[
                libc::PR_CAP_AMBIENT.into(),
                libc::PR_CAP_AMBIENT_RAISE.into(),
                capability.into(),
            ],
        )
        .unwrap();
    }
}

/// Starts a program, by vfork as the standard library does, and returns whether it succeeded.
pub fn execute(path: &str) -> io::Result<bool> {
    Command::new(path).status().map(|status| status.success())
}
