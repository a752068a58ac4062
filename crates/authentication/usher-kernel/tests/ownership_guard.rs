//! The guard: only Usher's daemons touch Usher's BPF objects, pins and daemons.

mod guard;
mod ownership;

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use guard::*;
use ownership::*;
use usher_bpf::Objects;
use usher_kernel::ownership::{Ownership, OwnershipError, ProcessState, Reason};
use usher_kernel::ports::Ports;
use usher_kernel::{KernelError, cgroup};

/// This is no test: the tests start it as a second process of the daemons' program.
#[test]
fn in_the_part_of_another_keeper() {
    play();
}

#[test]
fn the_probe_finds_that_the_programs_load() {
    if in_virtual_machine("the_probe_finds_that_the_programs_load") {
        let mut probes = usher_kernel::probe::ALL.iter();
        let ownership = probes.find(|probe| probe.name == "ownership").unwrap();
        ownership.run().unwrap();
    }
}

// Threat model: A117
#[test]
fn what_is_guarded_is_the_daemons_alone() {
    process_of_its_own("what_is_guarded_is_the_daemons_alone", |pins| {
        let ownership = load(pins);
        let count = |reason| ownership.refusals().unwrap().of(reason);
        let own = std::process::id();
        assert!(matches!(
            std::thread::scope(|scope| scope
                .spawn(|| ownership.guard(Path::new(USHER), &Objects::default()))
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

        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();

        // The keeper itself, this process, is not affected.
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
        // Other BPF file systems are not Usher's.
        in_child(|| {
            std::fs::create_dir("/mnt/other").unwrap();
            run("mount", &["-t", "bpf", "bpf", "/mnt/other"]);
            unmount("/mnt/other").unwrap();
        });
        // Threads share the daemon's mark.
        let pins = pins.to_owned();
        std::thread::spawn(move || permitted(&touch(&pins)))
            .join()
            .unwrap();
    });
}

// Threat model: A124
#[test]
fn reserved_ports_are_the_daemons_alone() {
    process_of_its_own("reserved_ports_are_the_daemons_alone", |pins| {
        let ownership = load(pins);
        let ports = Ports::open(&cgroup::mount().unwrap()).unwrap();
        let objects = ports.objects();
        assert_eq!([objects.programs.len(), objects.links.len()], [4; 2]);
        assert!(objects.maps.len() >= 3, "{objects:?}");
        let opened = || {
            let of = |command: i64| move |id: &u32| bpf(command, *id).map(drop);
            let maps = objects.maps.iter().map(of(MAP_BY_ID));
            let programs = objects.programs.iter().map(of(PROGRAM_BY_ID));
            let links = objects.links.iter().map(of(LINK_BY_ID));
            maps.chain(programs).chain(links).collect::<Vec<_>>()
        };
        in_child(|| opened().into_iter().for_each(|one| one.unwrap()));
        ownership.guard(Path::new(USHER), objects).unwrap();
        in_child(|| opened().into_iter().for_each(expect_refused));
        opened().into_iter().for_each(|one| one.unwrap());
    });
}

// Threat model: A129
#[test]
fn a_later_keeper_adopts_and_nobody_else_does() {
    process_of_its_own("a_later_keeper_adopts_and_nobody_else_does", |pins| {
        // These processes are made before the keeper: otherwise they would inherit its lock of the pins.
        //
        // A settled process stays settled while no keeper runs and when another one starts.
        let mut service = process(|line| {
            become_service(SERVICE);
            say(line);
            hear(line);
            become_alice().unwrap();
            say(line);
            hear(line);
            expect_refused(setuid(SERVICE));
        });
        // This process attempts throughout, so it would notice any moment without the fence.
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
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
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
                Err(OwnershipError::Kernel(KernelError::Guarded(_)))
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
            ProcessState::Settled(ALICE)
        );
        say(&mut service.line);
        service.done();
    });
}

// Threat model: A113
#[test]
fn what_a_former_keeper_granted_counts_for_nothing() {
    process_of_its_own("what_a_former_keeper_granted_counts_for_nothing", |pins| {
        // The child is made before the keeper: otherwise it would inherit the keeper's lock.
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

/// Options that can be set on, and read from, a listener.
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

// Threat model: A117
#[test]
fn only_owner_and_keeper_may_set_a_listeners_options() {
    let name = "only_owner_and_keeper_may_set_a_listeners_options";
    process_of_its_own(name, |pins| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // Made before the keeper has its mark, because forked processes inherit a part of it.
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
            // The errors are those of any listener: some kernels let no unprivileged process attach a filter.
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
        ownership
            .guard(Path::new(USHER), &Objects::default())
            .unwrap();
        say(&mut root.line);
        root.done();
        assert_eq!(ownership.refusals().unwrap().of(Reason::Listener), 7);
        say(&mut owner.line);
        owner.done();
        permitted(&use_of(&listener));
    });
}
