//! Self-protection: Usher's BPF objects, pins and daemons are touched by its daemons only.

mod ownership;

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use ownership::*;
use usher_kernel::KernelError;
use usher_kernel::ownership::{Ownership, OwnershipError, ProcessState, Reason};

const MAP_BY_ID: i64 = 14;
const PROGRAM_BY_ID: i64 = 13;
const LINK_BY_ID: i64 = 30;
const NEXT_MAP: i64 = 12;
const NEXT_PROGRAM: i64 = 11;
const NEXT_LINK: i64 = 31;
const BPF_FS: &str = "/mnt/bpf";
const USHER: &str = "/mnt/bpf/usher";

/// bpf(2) with two numbers; the second is written to by some commands.
fn bpf(command: i64, first: u32) -> io::Result<(i64, u32)> {
    let mut attributes = [first, 0, 0, 0];
    let address = attributes.as_mut_ptr() as i64;
    call(libc::SYS_bpf, &[command, address, 16]).map(|result| (result, attributes[1]))
}

/// How many of the host's objects this process gets a descriptor of, and how many it is refused.
fn reach(next: i64, by_id: i64) -> (usize, usize) {
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

fn reach_all() -> [(usize, usize); 3] {
    [
        reach(NEXT_MAP, MAP_BY_ID),
        reach(NEXT_PROGRAM, PROGRAM_BY_ID),
        reach(NEXT_LINK, LINK_BY_ID),
    ]
}

/// What can be done to the pins. Undone again where it works, and what destroys is not among them.
fn touch(pins: &Path) -> Vec<(&'static str, io::Result<()>)> {
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
fn permitted(outcomes: &[(&str, io::Result<()>)]) {
    for (name, outcome) in outcomes {
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
    }
}

/// Nothing succeeded. (What comes second of a pair finds nothing to undo.)
#[track_caller]
fn refused(outcomes: &[(&str, io::Result<()>)]) {
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

fn unmount(path: &str) -> io::Result<()> {
    let path = std::ffi::CString::new(path).unwrap();
    call(
        libc::SYS_umount2,
        &[path.as_ptr() as i64, libc::MNT_DETACH.into()],
    )
    .map(drop)
}

fn attach(pid: u32) -> io::Result<()> {
    const SEIZE: i64 = 0x4206;
    call(libc::SYS_ptrace, &[SEIZE, pid.into(), 0, 0]).map(drop)
}

fn open_memory(pid: u32) -> io::Result<()> {
    std::fs::File::open(format!("/proc/{pid}/mem")).map(drop)
}

fn take_descriptor(pid: u32) -> io::Result<()> {
    let pidfd = call(libc::SYS_pidfd_open, &[pid.into(), 0])?;
    call(libc::SYS_pidfd_getfd, &[pidfd, 2, 0]).map(drop)
}

/// What systemctl, ps and root's own eyes read of a process.
fn read_status(pid: u32) {
    for file in ["stat", "status", "cmdline", "environ", "maps", "cgroup"] {
        std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    }
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    std::fs::read_link(format!("/proc/{pid}/fd/2")).unwrap();
}

fn load(pins: &Path) -> Ownership {
    let ownership = Ownership::open(pins).unwrap();
    ownership.fence_accounts(&[SERVICE]).unwrap();
    ownership
}

/// Starts this program again, in the part of a keeper; gives whether it came to a good end.
fn another_keeper(name: &str) -> Command {
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

/// Not a test by itself: what the tests start as a second process of the daemons' program.
#[test]
fn in_the_part_of_another_keeper() {
    let Ok(part) = std::env::var("USHER_TEST_KEEPER") else {
        return;
    };
    let pins = Path::new(USHER).join("ownership");
    match part.as_str() {
        "adopts" => {
            let ownership = Ownership::open(&pins).unwrap();
            assert!(ownership.refusals().unwrap().of(Reason::Pins) > 0);
            ownership.protect(Path::new(USHER), &[]).unwrap();
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
            let error = Ownership::open(&pins).unwrap_err();
            assert!(
                matches!(error, OwnershipError::Kernel(KernelError::Protected { .. })),
                "{error}"
            );
        }
        "traces" => {
            let mut daemon = Command::new(std::env::var_os("USHER_TEST_DAEMON").unwrap());
            let part = another_keeper("is refused");
            daemon
                .args(part.get_args())
                .env("USHER_TEST_KEEPER", "is refused");
            // `exec` under a tracer stops; it is let go on.
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
            let error = Ownership::open(&pins).unwrap_err();
            assert!(
                matches!(error, OwnershipError::Kernel(KernelError::InUse { .. })),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn the_probe_finds_that_the_programs_load() {
    if in_virtual_machine("the_probe_finds_that_the_programs_load") {
        let mut probes = usher_kernel::probe::ALL.iter();
        let ownership = probes.find(|probe| probe.name == "ownership").unwrap();
        ownership.run().unwrap();
    }
}

#[test]
fn what_is_protected_is_the_daemons_alone() {
    process_of_its_own("what_is_protected_is_the_daemons_alone", |pins| {
        let ownership = load(pins);
        let count = |reason| ownership.refusals().unwrap().of(reason);
        let own = std::process::id();
        assert!(matches!(
            std::thread::scope(|scope| scope
                .spawn(|| ownership.protect(Path::new(USHER), &[]))
                .join()
                .unwrap()),
            Err(OwnershipError::SeveralThreads)
        ));
        let [maps, programs, links] = reach_all();
        assert_eq!([maps.1, programs.1, links.1], [0; 3]);
        in_child(|| {
            permitted(&touch(pins));
            attach(own).unwrap();
        });
        in_child(|| {
            open_memory(own).unwrap();
            take_descriptor(own).unwrap();
        });

        ownership.protect(Path::new(USHER), &[]).unwrap();

        // This process goes on as before.
        assert_eq!(reach_all(), [maps, programs, links]);
        permitted(&touch(pins));
        in_child(|| {
            let [maps, programs, links] = reach_all();
            assert!(maps.1 >= 12, "maps: {maps:?}");
            assert!(programs.1 >= 30, "programs: {programs:?}");
            assert!(links.1 >= 30, "links: {links:?}");
            refused(&touch(pins));
            expect_refused(unmount(BPF_FS));
            expect_refused(std::fs::remove_dir(USHER));
            expect_refused(attach(own));
            open_memory(own).unwrap_err();
            expect_refused(take_descriptor(own));
            read_status(own);
        });
        for reason in [
            Reason::Map,
            Reason::Program,
            Reason::Link,
            Reason::Pins,
            Reason::Unmount,
            Reason::Tracing,
        ] {
            assert!(count(reason) > 0, "{reason:?}");
        }
        // Other BPF file systems are none of ours.
        in_child(|| {
            std::fs::create_dir("/mnt/other").unwrap();
            run("mount", &["-t", "bpf", "bpf", "/mnt/other"]);
            unmount("/mnt/other").unwrap();
        });
        // Threads are the daemon's.
        let pins = pins.to_owned();
        std::thread::spawn(move || permitted(&touch(&pins)))
            .join()
            .unwrap();
    });
}

#[test]
fn a_later_keeper_adopts_and_nobody_else_does() {
    process_of_its_own("a_later_keeper_adopts_and_nobody_else_does", |pins| {
        // Made before the keeper, or they would hold its lock of the pins, too.
        //
        // A settled process stays so while the keeper is away and when another one comes.
        let mut service = process(|line| {
            become_service(SERVICE);
            say(line);
            hear(line);
            become_alice().unwrap();
            say(line);
            hear(line);
            expect_refused(setuid(SERVICE));
        });
        // Attempts all the time: there is no moment without the fence.
        let mut attempts = process(|line| {
            become_service(SERVICE);
            hear(line);
            line.set_nonblocking(true).unwrap();
            let mut count = 0_u64;
            while io::Read::read(line, &mut [0]).is_err() {
                expect_refused(setuid(ALICE));
                count += 1;
            }
            assert!(count > 0);
        });
        let ownership = load(pins);
        ownership.protect(Path::new(USHER), &[]).unwrap();
        assert!(
            another_keeper("finds a keeper there")
                .status()
                .unwrap()
                .success()
        );
        in_child(|| refused(&touch(pins)));

        hear(&mut service.line);
        ownership.grant(service.fd(), &alice()).unwrap();
        say(&mut service.line);
        hear(&mut service.line);
        say(&mut attempts.line);
        drop(ownership);
        in_child(|| {
            assert!(matches!(
                Ownership::open(pins),
                Err(OwnershipError::Kernel(KernelError::Protected { .. }))
            ));
        });
        let copy = Path::new("/mnt/copy");
        std::fs::copy(std::env::current_exe().unwrap(), copy).unwrap();
        assert!(
            another_keeper("is another user")
                .status()
                .unwrap()
                .success()
        );
        assert!(another_keeper("adopts").status().unwrap().success());
        let elsewhere = Command::new(copy)
            .args([
                "--exact",
                "in_the_part_of_another_keeper",
                "--test-threads=1",
            ])
            .env("USHER_TEST_KEEPER", "is refused")
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(elsewhere.success());
        say(&mut attempts.line);
        attempts.done();

        let ownership = Ownership::open(pins).unwrap();
        assert_eq!(
            ownership.state(service.fd()).unwrap(),
            ProcessState::Settled { uid: ALICE }
        );
        say(&mut service.line);
        service.done();
    });
}

#[test]
fn what_a_former_keeper_granted_counts_for_nothing() {
    process_of_its_own("what_a_former_keeper_granted_counts_for_nothing", |pins| {
        // First of all: a child would have the keeper's lock, too.
        let mut service = process(|line| {
            become_service(SERVICE);
            say(line);
            hear(line);
            expect_refused(become_alice());
            say(line);
            hear(line);
            become_alice().unwrap();
        });
        hear(&mut service.line);
        let ownership = load(pins);
        ownership.fence_accounts(&[SERVICE]).unwrap();
        ownership.grant(service.fd(), &alice()).unwrap();
        drop(ownership);
        let ownership = Ownership::open(pins).unwrap();
        assert_eq!(ownership.state(service.fd()).unwrap(), ProcessState::None);
        say(&mut service.line);
        hear(&mut service.line);
        ownership.grant(service.fd(), &alice()).unwrap();
        say(&mut service.line);
        service.done();
    });
}

#[test]
fn a_daemon_with_mounts_of_its_own_is_not_traced_and_touches_nothing() {
    let name = "a_daemon_with_mounts_of_its_own_is_not_traced_and_touches_nothing";
    process_of_its_own(name, |pins| {
        let ownership = load(pins);
        let aside = |part: &str| {
            let keeper = another_keeper(part);
            let mut command = Command::new("unshare");
            command
                .args(["--mount", "--propagation", "unchanged"])
                .arg(keeper.get_program())
                .args(keeper.get_args())
                .env("USHER_TEST_KEEPER", part);
            command.output().unwrap()
        };
        // Before there is protection its parent may trace it, and it sees the pins.
        assert!(!aside("has mounts of its own").status.success());
        ownership.protect(Path::new(USHER), &[]).unwrap();
        let output = aside("has mounts of its own");
        assert!(output.status.success(), "{output:?}");
    });
}

#[test]
fn a_traced_program_is_no_daemon() {
    process_of_its_own("a_traced_program_is_no_daemon", |pins| {
        let ownership = load(pins);
        ownership.protect(Path::new(USHER), &[]).unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        // What a daemon forks is not traced as long as it executes nothing else.
        let mut child = another_keeper("adopts");
        assert_eq!(
            traced(&mut child).spawn().unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
        // So the tracer is another program.
        let copy = Path::new("/mnt/tracer");
        std::fs::copy(std::env::current_exe().unwrap(), copy).unwrap();
        let part = another_keeper("traces");
        let tracer = Command::new(copy)
            .args(part.get_args())
            .env("USHER_TEST_KEEPER", "traces")
            .env("USHER_TEST_DAEMON", std::env::current_exe().unwrap())
            .status()
            .unwrap();
        assert!(tracer.success());
        assert!(another_keeper("adopts").status().unwrap().success());
    });
}

/// Runs what `another_keeper` made: it found what its part says.
#[track_caller]
fn finds_it_so(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Another keeper, with something done before its program is executed.
fn prepared(
    part: &str,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> Command {
    let mut command = another_keeper(part);
    // SAFETY: the callers make system calls only.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, prepare) };
    command
}

/// A folder that has all that this program needs, and at its path a copy of it.
fn make_jail() {
    let jail = "/mnt/jail";
    let own = std::env::current_exe().unwrap();
    let script = format!(
        "set -e
        mkdir -p {jail}/mnt/bpf {jail}/sys {jail}/proc {jail}/dev
        cp --parents {own} $(ldd {own} | grep -o '/[^ ]*') {jail}
        mount --bind /mnt/bpf {jail}/mnt/bpf
        mount --rbind /sys {jail}/sys
        mount --bind /proc {jail}/proc
        mount --bind /dev {jail}/dev",
        own = own.display()
    );
    run("sh", &["-c", &script]);
}

fn change_root(path: &'static std::ffi::CStr) -> io::Result<()> {
    call(libc::SYS_chroot, &[path.as_ptr() as i64])?;
    call(libc::SYS_chdir, &[c"/".as_ptr() as i64]).map(drop)
}

/// Installs a filter that permits everything.
fn filter(flags: i64) -> io::Result<()> {
    let permit = [libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: 0x7fff_0000,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: permit.as_ptr().cast_mut(),
    };
    let program = std::ptr::from_ref(&program) as i64;
    call(libc::SYS_seccomp, &[1, flags, program]).map(drop)
}

#[test]
fn a_program_at_the_path_under_another_root_is_no_keeper() {
    let name = "a_program_at_the_path_under_another_root_is_no_keeper";
    process_of_its_own(name, |pins| {
        let ownership = load(pins);
        ownership.protect(Path::new(USHER), &[]).unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        make_jail();
        finds_it_so(prepared("is refused", || change_root(c"/mnt/jail")));
        // The very file, found in another root.
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        run("mount", &["--bind", own, &format!("/mnt/jail{own}")]);
        finds_it_so(prepared("is refused", || change_root(c"/mnt/jail")));
        finds_it_so(prepared("adopts", || change_root(c"/")));
    });
}

#[test]
fn a_program_mounted_at_the_path_is_no_keeper() {
    process_of_its_own("a_program_mounted_at_the_path_is_no_keeper", |pins| {
        let ownership = load(pins);
        ownership.protect(Path::new(USHER), &[]).unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        std::fs::copy(own, "/mnt/copy").unwrap();
        run("mount", &["--bind", "/mnt/copy", own]);
        finds_it_so(another_keeper("is refused"));
        // Nor by a descriptor of a mount that is nowhere: its path begins where it was cut off.
        run("umount", &[own]);
        std::fs::create_dir_all(format!("/mnt/tree{own}")).unwrap();
        std::fs::remove_dir(format!("/mnt/tree{own}")).unwrap();
        std::fs::copy(own, format!("/mnt/tree{own}")).unwrap();
        const OPEN_TREE_CLONE: i64 = 1;
        let tree = call(
            libc::SYS_open_tree,
            &[
                libc::AT_FDCWD.into(),
                c"/mnt/tree".as_ptr() as i64,
                OPEN_TREE_CLONE,
            ],
        )
        .unwrap();
        let below = format!("/proc/self/fd/{tree}{own}");
        let part = another_keeper("is refused");
        let mut detached = Command::new(below);
        detached
            .args(part.get_args())
            .env("USHER_TEST_KEEPER", "is refused");
        finds_it_so(detached);
        finds_it_so(another_keeper("adopts"));
    });
}

#[test]
fn a_keeper_reads_no_loader_settings_of_its_environment() {
    let name = "a_keeper_reads_no_loader_settings_of_its_environment";
    process_of_its_own(name, |pins| {
        let ownership = load(pins);
        ownership.protect(Path::new(USHER), &[]).unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        std::fs::write(
            "/mnt/loaded.c",
            "#include <fcntl.h>
            __attribute__((constructor)) static void begin(void) { creat(\"/mnt/loaded\", 0600); }
            unsigned int la_version(unsigned int version) { return version; }",
        )
        .unwrap();
        run(
            "gcc",
            &["-shared", "-fPIC", "-o", "/mnt/loaded.so", "/mnt/loaded.c"],
        );
        let loaded = || std::fs::remove_file("/mnt/loaded").is_ok();
        for variable in ["LD_PRELOAD", "LD_AUDIT"] {
            let mut other = Command::new("/usr/bin/true");
            assert!(
                other
                    .env(variable, "/mnt/loaded.so")
                    .status()
                    .unwrap()
                    .success()
            );
            assert!(loaded(), "{variable}");
            let mut keeper = another_keeper("adopts");
            keeper.env(variable, "/mnt/loaded.so");
            finds_it_so(keeper);
            assert!(!loaded(), "{variable}");
        }
    });
}

#[test]
fn what_was_prepared_before_exec_makes_no_keeper() {
    process_of_its_own("what_was_prepared_before_exec_makes_no_keeper", |pins| {
        let ownership = load(pins);
        ownership.protect(Path::new(USHER), &[]).unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        const NEW_LISTENER: i64 = 1 << 3;
        for flags in [0, NEW_LISTENER] {
            finds_it_so(prepared("is refused", move || filter(flags)));
        }
        finds_it_so(prepared("adopts", || Ok(())));
    });
}

#[test]
fn a_program_that_others_may_write_is_no_keeper() {
    process_of_its_own("a_program_that_others_may_write_is_no_keeper", |pins| {
        let own = std::env::current_exe().unwrap();
        let mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&own, mode).unwrap();
        };
        let ownership = load(pins);
        mode(0o775);
        let error = ownership.protect(Path::new(USHER), &[]).unwrap_err();
        assert!(matches!(error, OwnershipError::OpenProgram(_)), "{error}");
        mode(0o755);
        ownership.protect(Path::new(USHER), &[]).unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        mode(0o775);
        finds_it_so(another_keeper("is refused"));
        mode(0o755);
        finds_it_so(another_keeper("adopts"));
    });
}

/// What can be set on, and learned from, a listener.
fn use_of(listener: &std::net::TcpListener) -> Vec<(&'static str, io::Result<()>)> {
    let socket = i64::from(std::os::fd::AsRawFd::as_raw_fd(listener));
    let everything = [libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: u32::MAX,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: everything.as_ptr().cast_mut(),
    };
    let set = |name: i32, value: i64, length: i64| {
        let level = libc::SOL_SOCKET.into();
        call(
            libc::SYS_setsockopt,
            &[socket, level, name.into(), value, length],
        )
        .map(drop)
    };
    let one = 1_i32;
    let one = std::ptr::from_ref(&one) as i64;
    let mut value = [0_u8; 64];
    let mut length = 64_u32;
    let length = std::ptr::from_mut(&mut length) as i64;
    let filter = std::ptr::from_ref(&program) as i64;
    vec![
        ("attach a filter", set(libc::SO_ATTACH_FILTER, filter, 16)),
        (
            "lock it",
            set(libc::SO_LOCK_FILTER, std::ptr::from_ref(&0_i32) as i64, 4),
        ),
        ("take it off", set(libc::SO_DETACH_FILTER, one, 4)),
        ("share the port", set(libc::SO_REUSEADDR, one, 4)),
        (
            "read an option",
            call(
                libc::SYS_getsockopt,
                &[
                    socket,
                    libc::SOL_SOCKET.into(),
                    libc::SO_RCVBUF.into(),
                    value.as_mut_ptr() as i64,
                    length,
                ],
            )
            .map(drop),
        ),
        (
            "read its name",
            call(
                libc::SYS_getsockname,
                &[socket, value.as_mut_ptr() as i64, length],
            )
            .map(drop),
        ),
        ("listen", call(libc::SYS_listen, &[socket, 16]).map(drop)),
    ]
}

#[test]
fn a_users_listener_takes_options_of_its_owner_and_the_keeper_only() {
    let name = "a_users_listener_takes_options_of_its_owner_and_the_keeper_only";
    process_of_its_own(name, |pins| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // Made before the keeper has its mark, which what it forks has in part.
        let mut root = process(|line| {
            hear(line);
            for (name, outcome) in use_of(&listener) {
                let refused = outcome.map_err(|error| error.raw_os_error());
                assert_eq!(refused, Err(Some(libc::EPERM)), "{name}");
            }
            permitted(&use_of(&free));
        });
        let mut owner = process(|line| {
            hear(line);
            setuid(ALICE).unwrap();
            // As with any listener: some kernels let no unprivileged process attach a filter.
            let errnos = |listener| -> Vec<_> {
                let outcomes = use_of(listener).into_iter();
                outcomes
                    .map(|(_, outcome)| outcome.err().map(|error| error.raw_os_error()))
                    .collect()
            };
            let own = errnos(&listener);
            assert_eq!(own, errnos(&free));
            assert_eq!(own[3..], [const { None }; 4]);
        });
        let ownership = load(pins);
        let fd = std::os::fd::AsFd::as_fd(&listener);
        ownership.own_listener(fd, ALICE).unwrap();
        ownership.protect(Path::new(USHER), &[]).unwrap();
        say(&mut root.line);
        root.done();
        assert_eq!(ownership.refusals().unwrap().of(Reason::Listener), 7);
        say(&mut owner.line);
        owner.done();
        permitted(&use_of(&listener));
    });
}

/// Gives itself to its parent as a tracer before it executes its program.
fn traced(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one system call.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, || {
            call(libc::SYS_ptrace, &[libc::PTRACE_TRACEME.into()]).map(drop)
        })
    }
}
