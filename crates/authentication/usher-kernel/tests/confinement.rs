//! Giving up privileges, Landlock and seccomp, each in its own process.

#[macro_use]
mod world;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use usher_daemon::role::HasRole;
use usher_kernel::probe;
use usher_kernel::protected::{Demand, Protected};
use usher_local::roles;
use usher_system::connections;
use usher_system::privileges::{self, Capabilities};
use usher_system::sandbox::{self, Ability, LandlockStatus, NETLINK_ROUTE};
use world::*;

/// A folder that vanishes with the world, because a confined process cannot remove it.
fn folder() -> PathBuf {
    let folder = PathBuf::from("/mnt/folder");
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn status(name: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The acts of an asynchronous daemon under the filter: threads, timers, signals, files, sockets.
fn an_asynchronous_program_works(listener: TcpListener) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut hangup =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP)
            .unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let _ = tokio::time::timeout(Duration::from_millis(1), hangup.recv()).await;
        let (mut one, mut two) = tokio::net::UnixStream::pair().unwrap();
        let writing = tokio::spawn(async move { one.write_all(b"hello").await.unwrap() });
        let mut text = String::new();
        two.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
        writing.await.unwrap();
        let length = tokio::task::spawn_blocking(|| {
            std::fs::read_to_string("/proc/self/status").unwrap().len()
        });
        assert!(length.await.unwrap() > 0);
        // A listener made before keeps accepting.
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let _ = tokio::time::timeout(Duration::from_millis(5), listener.accept()).await;
    });
}

fn denied<T: std::fmt::Debug>(what: &str, outcome: std::io::Result<T>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}");
}

fn call(what: &str, number: i64, arguments: [i64; 4]) {
    // SAFETY: the filter refuses these calls before the kernel examines the arguments. If it
    // permitted one, the null pointers would cause another error, which the test distinguishes.
    let code = unsafe {
        libc::syscall(
            number,
            arguments[0],
            arguments[1],
            arguments[2],
            arguments[3],
        )
    };
    assert_eq!(code, -1, "{what}");
    let error = std::io::Error::last_os_error();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
}

fn socket(family: i32, kind: i32, protocol: i32) -> std::io::Result<()> {
    // SAFETY: makes a descriptor, which is closed at once.
    unsafe {
        let socket = libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol);
        if socket < 0 {
            return Err(std::io::Error::last_os_error());
        }
        libc::close(socket);
    }
    Ok(())
}

fn limit_to<R: HasRole>() {
    sandbox::seccomp(R::ROLE.sandbox.unwrap().abilities).unwrap();
}

fn dangerous_calls_are_refused() {
    denied(
        "a process",
        std::process::Command::new("/bin/true").status(),
    );
    call("execve", libc::SYS_execve, [0; 4]);
    call("execveat", libc::SYS_execveat, [0; 4]);
    call(
        "ptrace",
        libc::SYS_ptrace,
        [libc::PTRACE_TRACEME.into(), 0, 0, 0],
    );
    call("process_vm_readv", libc::SYS_process_vm_readv, [1, 0, 0, 0]);
    // BPF_PROG_GET_FD_BY_ID and BPF_RAW_TRACEPOINT_OPEN.
    call("another's program", libc::SYS_bpf, [13, 0, 0, 0]);
    call("a tracepoint", libc::SYS_bpf, [17, 0, 0, 0]);
    call("mount", libc::SYS_mount, [0; 4]);
    call("umount", libc::SYS_umount2, [0; 4]);
    call(
        "unshare",
        libc::SYS_unshare,
        [libc::CLONE_NEWUSER.into(), 0, 0, 0],
    );
    call("setns", libc::SYS_setns, [0, 0, 0, 0]);
    call("clone", libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0]);
    let spaced = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_NEWNET;
    call(
        "clone with a namespace",
        libc::SYS_clone,
        [spaced.into(), 0, 0, 0],
    );
    call("keyctl", libc::SYS_keyctl, [0; 4]);
    call("add_key", libc::SYS_add_key, [0; 4]);
    call("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0]);
    call("perf_event_open", libc::SYS_perf_event_open, [0; 4]);
    call("userfaultfd", libc::SYS_userfaultfd, [0; 4]);
    call("open_by_handle_at", libc::SYS_open_by_handle_at, [0; 4]);
    call("init_module", libc::SYS_init_module, [0; 4]);
    call("setuid", libc::SYS_setuid, [0; 4]);
    call("chroot", libc::SYS_chroot, [0; 4]);
    call("pidfd_getfd", libc::SYS_pidfd_getfd, [0; 4]);
    call("seccomp", libc::SYS_seccomp, [0; 4]);
    // clone3 seems not to exist, so the C library uses clone.
    // SAFETY: refused before the kernel examines its argument.
    assert_eq!(unsafe { libc::syscall(libc::SYS_clone3, 0, 0) }, -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOSYS)
    );
}

/// Confines this process as the table of roles says, and tries what every role is refused.
fn confine<R: HasRole>(_: R) {
    let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
    std::process::Command::new("/bin/true").status().unwrap();
    limit_to::<R>();
    an_asynchronous_program_works(listener);
    UnixStream::pair().unwrap();
    dangerous_calls_are_refused();
    if !R::ROLE
        .sandbox
        .unwrap()
        .abilities
        .contains(&Ability::LoadBpf)
    {
        // BPF_MAP_CREATE and BPF_PROG_LOAD.
        call("a map", libc::SYS_bpf, [0; 4]);
        call("a program", libc::SYS_bpf, [5, 0, 0, 0]);
    }
    denied("packet socket", socket(libc::AF_PACKET, libc::SOCK_RAW, 0));
    denied(
        "raw socket",
        socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP),
    );
    denied(
        "route netlink",
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE),
    );
    denied("vsock", socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0));
}

tests! {
    // Threat model: A132
    fn the_verifier_is_confined(world) {
        let _ = world;
        confine(roles::Verifier);
        denied("TCP", socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        denied("UDP", socket(libc::AF_INET6, libc::SOCK_DGRAM, 0));
        denied("diagnosis", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG));
    }

    // Threat model: A137
    fn the_signer_is_confined(world) {
        let _ = world;
        let server = TcpListener::bind("10.9.0.1:8026").unwrap();
        let client = std::net::TcpStream::connect("10.9.0.1:8026").unwrap();
        let (theirs, ours) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        confine(roles::Signer);
        denied("TCP", socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        denied("TCP", socket(libc::AF_INET6, libc::SOCK_STREAM, 0));
        // Asking for the route to a host, and for the owner of a connection.
        let asking = UdpSocket::bind("10.9.0.1:0").unwrap();
        asking.connect("10.9.0.1:9").unwrap();
        assert_eq!(asking.local_addr().unwrap().ip(), SocketAddr::from(([10, 9, 0, 1], 9)).ip());
        assert_eq!(connections::owner(theirs, ours).unwrap().unwrap().uid, 0);
        drop(server);
    }

    // Threat model: A139
    fn the_protector_is_confined(world) {
        let _ = world;
        confine(roles::Protector);
        denied("TCP", socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        denied("UDP", socket(libc::AF_INET6, libc::SOCK_DGRAM, 0));
        denied("diagnosis", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG));
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM).unwrap();
        // The protector loads and attaches programs.
        probe::ALL.iter().find(|probe| probe.name == "destinations").unwrap().run().unwrap();
    }

    fn a_confined_protector_replaces_netfilter_programs(world) {
        if !has_netfilter_programs() {
            println!("skipped: this kernel has no netfilter programs");
            return;
        }
        limit_to::<roles::Protector>();
        let pins = world.pins.with_file_name("protected");
        let demands = [(8025, Demand { shift: 20, classes: 8 })].into();
        for _ in 0..3 {
            Protected::open(&pins).unwrap().add(&demands).unwrap();
        }
        Protected::open(&pins).unwrap().apply(&BTreeMap::new()).unwrap();
        let left = std::fs::read_dir(&pins).unwrap().map(|pin| pin.unwrap().file_name());
        assert!(!left.into_iter().any(|name| name.to_string_lossy().contains("require")));
    }

    // Threat model: A139
    fn the_protector_reads_its_own_files_only(world) {
        let _ = world;
        let sandbox = roles::Protector::ROLE.sandbox.unwrap();
        let [reads, writes] = [sandbox.reads, sandbox.writes]
            .map(|paths| paths.iter().map(Path::new).collect::<Vec<_>>());
        let forwards = "/proc/sys/net/ipv4/ip_forward";
        let former = std::fs::read_to_string(forwards).unwrap();
        if sandbox::landlock(&reads, &writes).unwrap() == LandlockStatus::Absent {
            eprintln!("skipped: this kernel has no Landlock");
            return;
        }
        std::fs::write(forwards, former).unwrap();
        std::fs::read_dir("/sys/fs/cgroup").unwrap();
        // The protector reads programs to see whether they are scripts.
        std::fs::File::open("/usr/bin/env").unwrap();
        denied("a program", std::fs::File::options().append(true).open("/usr/bin/env"));
        denied("a sysctl of the kernel", std::fs::File::options().write(true).open("/proc/sys/kernel/core_pattern"));
        denied("accounts", std::fs::read_to_string("/etc/passwd"));
        denied("a control group", std::fs::create_dir("/sys/fs/cgroup/usher-test"));
    }

    // Threat model: A135
    fn the_courier_is_confined(world) {
        let _ = world;
        let server = TcpListener::bind("10.9.0.1:8026").unwrap();
        confine(roles::Courier);
        std::net::TcpStream::connect("10.9.0.1:8026").unwrap();
        server.accept().unwrap();
        denied("UDP", socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
        denied("diagnosis", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG));
    }

    // Threat model: A136
    fn the_proxy_is_confined(world) {
        let _ = world;
        confine(roles::Proxy);
        // The proxy listens at new addresses, and asks for the owner of a connection.
        let server = TcpListener::bind("10.9.0.1:8026").unwrap();
        let client = std::net::TcpStream::connect("10.9.0.1:8026").unwrap();
        let (theirs, ours) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let _accepted = server.accept().unwrap();
        assert_eq!(connections::owner(theirs, ours).unwrap().unwrap().uid, 0);
        denied("UDP", socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    }

    // Threat model: A141
    fn the_resolver_is_confined(world) {
        let _ = world;
        // As `confine`, but with route netlink, which the C library asks.
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        limit_to::<roles::Resolver>();
        an_asynchronous_program_works(listener);
        dangerous_calls_are_refused();
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE).unwrap();
        denied("diagnosis", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG));
        denied("packet socket", socket(libc::AF_PACKET, libc::SOCK_RAW, 0));
        denied("raw socket", socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP));
        denied("listening", TcpListener::bind("10.9.0.1:8026"));
        let local = std::net::ToSocketAddrs::to_socket_addrs(&("localhost", 0)).unwrap();
        assert!(local.count() > 0);
    }

    // Threat model: A170
    fn the_exporter_is_confined(world) {
        let _ = world;
        let listener = TcpListener::bind("10.9.0.1:8025").unwrap();
        limit_to::<roles::Exporter>();
        an_asynchronous_program_works(listener);
        dangerous_calls_are_refused();
        denied("listening", TcpListener::bind("10.9.0.1:8026"));
        denied("connecting", std::net::TcpStream::connect("10.9.0.1:8025"));
        denied("UDP", socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
        denied("diagnosis", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG));
        socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).unwrap();
    }

    fn the_courier_may_not_listen(world) {
        let _ = world;
        limit_to::<roles::Courier>();
        denied("listening", TcpListener::bind("10.9.0.1:8026"));
    }

    fn an_ability_to_make_netlink_sockets_is_for_one_protocol(world) {
        let _ = world;
        sandbox::seccomp(&[Ability::Netlink(NETLINK_ROUTE)]).unwrap();
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE).unwrap();
        denied("diagnosis", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG));
        denied("IPsec", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_XFRM));
    }

    fn showing_sets_one_mode_and_no_other(world) {
        let _ = world;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("shown", flags).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        sandbox::seccomp(&[Ability::Show]).unwrap();
        let set = |mode| {
            let mode = rustix::fs::Mode::from_raw_mode(mode);
            let flags = rustix::fs::AtFlags::empty();
            Ok(rustix::fs::chmodat(rustix::fs::CWD, &path, mode, flags)?)
        };
        set(0o444).unwrap();
        denied("a mode for writing", set(0o644));
        denied("a set-user-ID program", set(0o4444));
    }

    fn a_thread_that_lists_opens_no_file(world) {
        let _ = world;
        let folder = folder();
        let file = folder.join("file");
        std::fs::write(&file, "text").unwrap();
        if !sandbox::confines_files() {
            eprintln!("skipped: this kernel has no Landlock");
            return;
        }
        sandbox::landlock_lists(&[Path::new("/")]).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        denied("reading", std::fs::read(&file));
        denied("writing", std::fs::write(&file, "other"));
        denied("making", std::fs::write(folder.join("new"), "text"));
        let flags = rustix::fs::OFlags::PATH;
        rustix::fs::open(&file, flags, rustix::fs::Mode::empty()).unwrap();
    }

    fn landlock_leaves_the_files_that_were_named(world) {
        let _ = world;
        let folder = folder();
        let (read, write, other) = (folder.join("read"), folder.join("write"), folder.join("other"));
        for path in [&read, &write, &other] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), "text").unwrap();
        }
        let missing = Path::new("/no/such/folder");
        let status = sandbox::landlock(&[&read, missing], &[&write]).unwrap();
        if status == LandlockStatus::Absent {
            eprintln!("skipped: this kernel has no Landlock");
            return;
        }
        assert_eq!(std::fs::read_to_string(read.join("file")).unwrap(), "text");
        denied("writing", std::fs::write(read.join("file"), "other"));
        std::fs::write(write.join("new"), "text").unwrap();
        assert_eq!(std::fs::read_to_string(write.join("new")).unwrap(), "text");
        denied("reading", std::fs::read_to_string(other.join("file")));
        denied("reading", std::fs::read_to_string("/etc/passwd"));
    }

    fn becoming_a_user_is_for_good(world) {
        let _ = world;
        // The test's thread is the only one that matters here.
        privileges::become_user(ALICE, 61_100, &[61_101]).unwrap();
        assert_eq!(status("Uid:"), [ALICE; 4].map(|uid| uid.to_string()).join(" "));
        assert_eq!(status("Gid:"), ["61100"; 4].join(" "));
        assert_eq!(status("Groups:"), "61101");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(status(set), "0000000000000000", "{set}");
        }
        // SAFETY: a system call with numbers.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 0, 0, 0) }, -1);
        std::fs::read("/etc/shadow").unwrap_err();
        std::fs::read("/etc/passwd").unwrap();
    }

    fn kept_capabilities_are_all_there_is(world) {
        let _ = world;
        privileges::keep_only(Capabilities::NET_ADMIN | Capabilities::KILL).unwrap();
        let kept = format!("{:016x}", 1_u64 << 12 | 1 << 5);
        for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(status(set), kept, "{set}");
        }
        assert_eq!(status("CapInh:"), "0000000000000000");
        assert_eq!(status("CapAmb:"), "0000000000000000");
        // The process cannot gain any more capabilities.
        privileges::keep_only(Capabilities::SETUID).unwrap_err();
    }

    fn no_core_dumps_and_no_new_privileges(world) {
        let _ = world;
        privileges::no_core_dumps().unwrap();
        privileges::no_new_privileges().unwrap();
        assert_eq!(status("NoNewPrivs:"), "1");
        // SAFETY: a system call with numbers.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }, 0);
    }

    fn the_descriptor_limit_is_raised_to_the_maximum(world) {
        let _ = world;
        use rustix::process::{Resource, getrlimit};
        privileges::raise_descriptor_limit().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    fn every_probe_says_something_and_what_the_tests_use_works(world) {
        let _ = world;
        for probe in probe::ALL {
            let outcome = probe.run();
            println!("{}: {outcome:?}", probe.name);
            assert!(!probe.needed_for.is_empty());
            assert!(!outcome.unwrap_or_else(|lack| lack.to_string()).is_empty());
        }
        for name in ["privileges", "admission", "cutting connections", "IPv6", "process descriptors", "seccomp"] {
            let probe = probe::ALL.iter().find(|probe| probe.name == name).unwrap();
            probe.run().unwrap();
        }
    }
}
