//! Common parts of the tests of the guard: attempts at objects, and other processes of the
//! daemons' program.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use usher_bpf::Objects;
use usher_bpf::guard::{Role, declare};
use usher_kernel::KernelError;
use usher_kernel::ownership::{Ownership, OwnershipError, Reason};

use crate::ownership::*;

pub const MAP_BY_ID: i64 = 14;
pub const PROGRAM_BY_ID: i64 = 13;
pub const LINK_BY_ID: i64 = 30;
pub const NEXT_MAP: i64 = 12;
pub const NEXT_PROGRAM: i64 = 11;
pub const NEXT_LINK: i64 = 31;
pub const BPF_FS: &str = "/mnt/bpf";
pub const USHER: &str = "/mnt/bpf/usher";

/// bpf(2) with two numbers; some commands write to the second.
pub fn bpf(command: i64, first: u32) -> io::Result<(i64, u32)> {
    let mut attributes = [first, 0, 0, 0];
    let address = attributes.as_mut_ptr() as i64;
    call(libc::SYS_bpf, &[command, address, 16]).map(|result| (result, attributes[1]))
}

/// Counts the host's objects whose descriptors this process gets, and those that it is refused.
pub fn reach(next: i64, by_id: i64) -> (usize, usize) {
    let (mut reached, mut refused) = (0, 0);
    let mut id = 0;
    while let Ok((_, found)) = bpf(next, id) {
        id = found;
        match bpf(by_id, id) {
            Ok((descriptor, _)) => {
                call(libc::SYS_close, &[descriptor]).unwrap();
                reached += 1;
            }
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    (reached, refused)
}

pub fn reach_all() -> [(usize, usize); 3] {
    [
        reach(NEXT_MAP, MAP_BY_ID),
        reach(NEXT_PROGRAM, PROGRAM_BY_ID),
        reach(NEXT_LINK, LINK_BY_ID),
    ]
}

/// Attempts at the pins, none of them destructive. Those that succeed are undone.
pub fn touch(pins: &Path) -> Vec<(&'static str, io::Result<()>)> {
    let pin = pins.join("settled");
    let mut outcomes = vec![
        ("list", std::fs::read_dir(pins).map(drop)),
        ("look", std::fs::metadata(&pin).map(drop)),
        ("make a folder", std::fs::create_dir(pins.join("folder"))),
        ("remove a folder", std::fs::remove_dir(pins.join("folder"))),
        ("link", std::fs::hard_link(&pin, pins.join("other"))),
        ("rename a pin", std::fs::rename(&pin, pins.join("another"))),
        (
            "rename it back",
            std::fs::rename(pins.join("another"), &pin),
        ),
        ("remove a pin", std::fs::remove_file(pins.join("other"))),
        ("rename the folder", std::fs::rename(USHER, "/mnt/bpf/away")),
        ("rename it back", std::fs::rename("/mnt/bpf/away", USHER)),
    ];
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    outcomes.push(("change the mode", std::fs::set_permissions(USHER, mode)));
    outcomes.push((
        "change the owner",
        std::os::unix::fs::chown(USHER, Some(0), None),
    ));
    outcomes
}

#[track_caller]
pub fn permitted(outcomes: &[(&str, io::Result<()>)]) {
    for (name, outcome) in outcomes {
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
    }
}

/// Expects that all attempts failed. (An attempt that would undo another fails, too, with nothing to undo.)
#[track_caller]
pub fn refused(outcomes: &[(&str, io::Result<()>)]) {
    for (name, outcome) in outcomes {
        assert!(outcome.is_err(), "{name} succeeded");
    }
    let plainly = outcomes
        .iter()
        .filter(|(_, outcome)| {
            matches!(outcome, Err(error) if error.raw_os_error() == Some(libc::EPERM))
        })
        .count();
    assert!(plainly >= outcomes.len() - 1, "{outcomes:?}");
}

pub fn unmount(path: &str) -> io::Result<()> {
    let path = std::ffi::CString::new(path).unwrap();
    call(
        libc::SYS_umount2,
        &[path.as_ptr() as i64, libc::MNT_DETACH.into()],
    )
    .map(drop)
}

pub fn attach(pid: u32) -> io::Result<()> {
    const SEIZE: i64 = 0x4206;
    call(libc::SYS_ptrace, &[SEIZE, pid.into(), 0, 0]).map(drop)
}

pub fn open_memory(pid: u32) -> io::Result<()> {
    std::fs::File::open(format!("/proc/{pid}/mem")).map(drop)
}

pub fn take_descriptor(pid: u32) -> io::Result<()> {
    let pidfd = call(libc::SYS_pidfd_open, &[pid.into(), 0])?;
    call(libc::SYS_pidfd_getfd, &[pidfd, 2, 0]).map(drop)
}

/// Reads the files of a process that systemctl, ps and root read.
pub fn read_status(pid: u32) {
    for file in ["stat", "status", "cmdline", "environ", "maps", "cgroup"] {
        std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    }
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    std::fs::read_link(format!("/proc/{pid}/fd/2")).unwrap();
}

pub fn load(pins: &Path) -> Ownership {
    let ownership = Ownership::open(pins).unwrap();
    ownership.fence_accounts(&[SERVICE]).unwrap();
    ownership
}

/// A command that starts this program again, to play this part of another keeper.
pub fn another_keeper(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "in_the_part_of_another_keeper",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("USHER_TEST_KEEPER", name)
        .stdin(Stdio::null());
    command
}

/// Plays the part of a second process of the daemons' program.
pub fn play() {
    let Ok(part) = std::env::var("USHER_TEST_KEEPER") else {
        return;
    };
    let pins = Path::new(USHER).join("ownership");
    match part.as_str() {
        "adopts" => {
            assert!(declare(&[Role::Keeper]).unwrap());
            let ownership = Ownership::open(&pins).unwrap();
            assert!(ownership.refusals().unwrap().of(Reason::Pins) > 0);
            ownership
                .guard(Path::new(USHER), &Objects::default())
                .unwrap();
            in_child(|| {
                become_service(SERVICE);
                expect_refused(setuid(ALICE));
            });
            in_child(|| refused(&touch(&pins)));
        }
        "is another user" => {
            setuid(BOB).unwrap();
            std::fs::read_dir(&pins).unwrap_err();
        }
        "is refused" => {
            declare(&[Role::Keeper]).unwrap();
            let error = Ownership::open(&pins).unwrap_err();
            assert!(
                matches!(error, OwnershipError::Kernel(KernelError::Guarded(_))),
                "{error}"
            );
        }
        "traces" => {
            let mut daemon = Command::new(std::env::var_os("USHER_TEST_DAEMON").unwrap());
            let part = another_keeper("is refused");
            daemon
                .args(part.get_args())
                .env("USHER_TEST_KEEPER", "is refused");
            // `exec` under a tracer stops; the tracer continues it.
            let mut child = traced(&mut daemon).spawn().unwrap();
            let pid: i64 = child.id().into();
            let mut status = 0_i32;
            let address = std::ptr::from_mut(&mut status) as i64;
            call(libc::SYS_wait4, &[pid, address]).unwrap();
            assert!(libc::WIFSTOPPED(status));
            call(libc::SYS_ptrace, &[libc::PTRACE_DETACH.into(), pid]).unwrap();
            assert!(child.wait().unwrap().success());
        }
        "has mounts of its own" => {
            std::fs::read_dir(&pins).unwrap_err();
            let own = std::process::id();
            in_child(|| expect_refused(attach(own)));
        }
        "finds a keeper there" => {
            assert!(declare(&[Role::Keeper]).unwrap());
            let error = Ownership::open(&pins).unwrap_err();
            assert!(
                matches!(error, OwnershipError::Kernel(KernelError::InUse(_))),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
}

/// Runs the command of `another_keeper`, which must confirm its expectations.
#[track_caller]
pub fn finds_it_so(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Another keeper, with preparations before its program is executed.
pub fn prepared(
    part: &str,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> Command {
    let mut command = another_keeper(part);
    // SAFETY: the callers only make system calls.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, prepare) };
    command
}

/// Has the command's process make its parent its tracer before it executes the program.
pub fn traced(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one system call.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, || {
            call(libc::SYS_ptrace, &[libc::PTRACE_TRACEME.into()]).map(drop)
        })
    }
}
