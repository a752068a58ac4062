//! The guard: which processes of the daemons' program are daemons.

mod guard;
mod ownership;

use std::io;
use std::path::Path;
use std::process::Command;

use guard::*;
use ownership::*;
use usher_bpf::Objects;
use usher_kernel::ownership::OwnershipError;

/// This is no test: the tests start it as a second process of the daemons' program.
#[test]
fn in_the_part_of_another_keeper() {
    play();
}

#[test]
fn a_daemon_with_own_mounts_is_not_traced_and_owns_nothing() {
    let name = "a_daemon_with_own_mounts_is_not_traced_and_owns_nothing";
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
        // Before the guard is in force, the daemon's parent may trace it, and the daemon sees the pins.
        assert!(!aside("has mounts of its own").status.success());
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
        let output = aside("has mounts of its own");
        assert!(output.status.success(), "{output:?}");
    });
}

// Threat model: A117
#[test]
fn a_traced_program_is_no_daemon() {
    process_of_its_own("a_traced_program_is_no_daemon", |pins| {
        let ownership = load(pins);
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        // A daemon's forked child is not traced until it executes another program.
        let mut child = another_keeper("adopts");
        assert_eq!(
            traced(&mut child).spawn().unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
        // A copy of this program at another path, so that the tracer is another program.
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

/// A folder with everything that this program needs, and a copy of it at its path.
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

// Threat model: A126
#[test]
fn a_program_at_the_path_under_another_root_is_no_keeper() {
    let name = "a_program_at_the_path_under_another_root_is_no_keeper";
    process_of_its_own(name, |pins| {
        let ownership = load(pins);
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        make_jail();
        finds_it_so(prepared("is refused", || change_root(c"/mnt/jail")));
        // The same file is found in another root.
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        run("mount", &["--bind", own, &format!("/mnt/jail{own}")]);
        finds_it_so(prepared("is refused", || change_root(c"/mnt/jail")));
        finds_it_so(prepared("adopts", || change_root(c"/")));
    });
}

// Threat model: A126
#[test]
fn a_program_mounted_at_the_path_is_no_keeper() {
    process_of_its_own("a_program_mounted_at_the_path_is_no_keeper", |pins| {
        let ownership = load(pins);
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        std::fs::copy(own, "/mnt/copy").unwrap();
        run("mount", &["--bind", "/mnt/copy", own]);
        finds_it_so(another_keeper("is refused"));
        // A descriptor of a detached mount does not help: its path begins where it was cut off.
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

// Threat model: A126
#[test]
fn a_keeper_reads_no_loader_settings_of_its_environment() {
    let name = "a_keeper_reads_no_loader_settings_of_its_environment";
    process_of_its_own(name, |pins| {
        let ownership = load(pins);
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
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

// Threat model: A126
#[test]
fn what_was_prepared_before_exec_makes_no_keeper() {
    process_of_its_own("what_was_prepared_before_exec_makes_no_keeper", |pins| {
        let ownership = load(pins);
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        const NEW_LISTENER: i64 = 1 << 3;
        for flags in [0, NEW_LISTENER] {
            finds_it_so(prepared("is refused", move || filter(flags)));
        }
        finds_it_so(prepared("adopts", || Ok(())));
    });
}

// Threat model: A126
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
        let error = ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap_err();
        assert!(matches!(error, OwnershipError::OpenProgram(_)), "{error}");
        mode(0o755);
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
        in_child(|| refused(&touch(pins)));
        drop(ownership);
        mode(0o775);
        finds_it_so(another_keeper("is refused"));
        mode(0o755);
        finds_it_so(another_keeper("adopts"));
    });
}
