//! Nothing that a service prepares in a process remains in it when it has become a user, as far as
//! the kernel shows it.

#[macro_use]
mod ownership;

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use ownership::ring::Ring;
use ownership::*;
use usher_kernel::ownership::Reason;

const SET_FILTER: i64 = 1;
const NEW_LISTENER: i64 = 1 << 3;
/// PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK
const TASK_CLOCK: (u32, u64) = (1, 1);
const PTRACE_SEIZE: i64 = 0x4206;
const ANY_TRACER: i64 = -1;
const USER_MODE_ONLY: i64 = 1;

/// Installs a seccomp filter that permits everything. Returns the kernel's result.
fn filter(flags: i64) -> io::Result<i64> {
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
    call(libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS.into(), 1])?;
    let program = std::ptr::from_ref(&program) as i64;
    call(libc::SYS_seccomp, &[SET_FILTER, flags, program])
}

fn listener() -> OwnedFd {
    let number = filter(NEW_LISTENER).unwrap();
    // SAFETY: a descriptor that the kernel has just made.
    unsafe { OwnedFd::from_raw_fd(number as RawFd) }
}

/// A performance event on a process; 0: this one.
fn sample(pid: i64) -> io::Result<OwnedFd> {
    // struct perf_event_attr, version 0: type, size, config, period, sample, format, flags.
    let mut attributes = [0_u64; 8];
    attributes[0] = u64::from(TASK_CLOCK.0) | 64 << 32;
    attributes[1] = TASK_CLOCK.1;
    // exclude_kernel and exclude_hv, which an unprivileged process must set.
    attributes[5] = 1 << 5 | 1 << 6;
    let attributes = attributes.as_ptr() as i64;
    call(libc::SYS_perf_event_open, &[attributes, pid, -1, -1, 0])
        // SAFETY: a descriptor that the kernel has just made.
        .map(|number| unsafe { OwnedFd::from_raw_fd(number as RawFd) })
}

#[track_caller]
fn does_not_settle() {
    expect_errno(setgroups(&MORE_GROUPS), libc::EBUSY);
}

fn trace(pid: i64) -> io::Result<i64> {
    call(libc::SYS_ptrace, &[PTRACE_SEIZE, pid, 0, 0])
}

/// Lets every process of the same user trace this one, if the kernel's other rules permit it.
fn allow_tracing() {
    const PR_SET_PTRACER: i64 = 0x5961_6d61;
    call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE.into(), 1]).unwrap();
    // EINVAL without Yama.
    let _ = call(libc::SYS_prctl, &[PR_SET_PTRACER, ANY_TRACER]);
}

ownership_tests! {
    // Threat model: A105
    fn a_process_with_a_seccomp_listener_does_not_settle(world) {
        let before = world.count(Reason::IdentityWatchedCalls);
        with_a_grant(world, || {
            let own = listener();
            does_not_settle();
            // Another filter does not hide the listener.
            filter(0).unwrap();
            does_not_settle();
            setgid(ALICE).unwrap();
            let mut holder = process(|line| hear(line));
            drop(own);
            // The child still has the listener.
            does_not_settle();
            say(&mut holder.line);
            holder.done();
            // No process holds the listener any more.
            become_alice().unwrap();
        });
        assert_eq!(world.count(Reason::IdentityWatchedCalls) - before, 3);
    }

    // Threat model: A105
    fn a_listener_made_between_the_steps_is_seen_at_the_last_one(world) {
        with_a_grant(world, || {
            setgroups(&MORE_GROUPS).unwrap();
            setgid(ALICE).unwrap();
            let own = listener();
            expect_errno(setuid(ALICE), libc::EBUSY);
            drop(own);
            setuid(ALICE).unwrap();
        });
    }

    // Threat model: A105
    fn filters_without_a_listener_settle(world) {
        with_a_grant(world, || {
            for _ in 0..40 {
                filter(0).unwrap();
            }
            become_alice().unwrap();
            // A user's own listener is permitted.
            drop(listener());
        });
    }

    // Threat model: A105
    fn a_sampled_process_does_not_settle(world) {
        let before = world.count(Reason::PerformanceEvents);
        let mut service = process(|line| {
            become_service(SERVICE);
            say(line);
            hear(line);
            does_not_settle();
            say(line);
            hear(line);
            become_alice().unwrap();
        });
        hear(&mut service.line);
        world.ownership.grant(service.fd(), &alice()).unwrap();
        // Opened by root, because a service's process cannot open one.
        let event = sample(service.pid.as_raw_nonzero().get().into()).unwrap();
        say(&mut service.line);
        hear(&mut service.line);
        let obstacle = || world.ownership.take_obstacle(service.fd()).unwrap();
        assert_eq!(obstacle(), Some(Reason::PerformanceEvents));
        assert_eq!(obstacle(), None);
        drop(event);
        say(&mut service.line);
        service.done();
        assert_eq!(world.count(Reason::PerformanceEvents) - before, 1);
    }

    // Threat model: A107
    fn a_services_process_samples_nobody(world) {
        let before = world.count(Reason::PerformanceEvents);
        // By default Debian does not let unprivileged processes sample at all.
        std::fs::write("/proc/sys/kernel/perf_event_paranoid", "2").unwrap();
        in_child(|| {
            become_service(SERVICE);
            expect_refused(sample(0));
        });
        assert_eq!(world.count(Reason::PerformanceEvents) - before, 1);
        in_child(|| {
            become_service(FREE);
            sample(0).unwrap();
        });
        with_a_grant(world, || {
            become_alice().unwrap();
            sample(0).unwrap();
        });
    }

    // Threat model: A105
    fn a_process_with_an_io_uring_does_not_settle(world) {
        let before = world.count(Reason::IdentityPinnedMemory);
        with_a_grant(world, || {
            drop(Ring::new(0).unwrap());
            does_not_settle();
        });
        assert_eq!(world.count(Reason::IdentityPinnedMemory) - before, 1);
        let inherited = Ring::new(0).unwrap();
        with_a_grant(world, || {
            become_alice().unwrap();
            drop(inherited);
            Ring::new(0).unwrap();
        });
    }

    // Threat model: A105
    fn a_buffer_registered_with_anothers_ring_does_not_settle(world) {
        let before = world.count(Reason::IdentityPinnedMemory);
        let anothers = Ring::new(0).unwrap();
        with_a_grant(world, || {
            let mut buffer = vec![0; 8192];
            anothers.register_buffer(&mut buffer).unwrap();
            does_not_settle();
        });
        assert_eq!(world.count(Reason::IdentityPinnedMemory) - before, 1);
        // A forked process has its own memory.
        let mut service = process(|line| {
            become_service(SERVICE);
            let mut buffer = vec![0; 8192];
            let ring = Ring::new(0).unwrap();
            ring.register_buffer(&mut buffer).unwrap();
            let mut child = process(|line| {
                hear(line);
                become_alice().unwrap();
            });
            io::Write::write_all(line, &child.pid.as_raw_nonzero().get().to_ne_bytes()).unwrap();
            hear(line);
            say(&mut child.line);
            child.done();
        });
        let mut number = [0; 4];
        io::Read::read_exact(&mut service.line, &mut number).unwrap();
        let number = call(libc::SYS_pidfd_open, &[i32::from_ne_bytes(number).into(), 0]).unwrap();
        // SAFETY: a descriptor that the kernel has just made.
        let child = unsafe { OwnedFd::from_raw_fd(number as RawFd) };
        world.ownership.grant(std::os::fd::AsFd::as_fd(&child), &alice()).unwrap();
        say(&mut service.line);
        service.done();
    }

    // Threat model: A107
    fn a_services_process_opens_no_memory(world) {
        let before = world.count(Reason::MemoryAccess);
        let open = |name: &str| File::open(format!("/proc/self/{name}"));
        in_child(|| {
            become_service(SERVICE);
            call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE.into(), 1]).unwrap();
            expect_refused(open("mem"));
            expect_refused(open(&format!("task/{}/mem", std::process::id())));
            open("maps").unwrap();
            File::open("/proc/meminfo").unwrap();
        });
        assert_eq!(world.count(Reason::MemoryAccess) - before, 2);
        in_child(|| {
            become_service(FREE);
            call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE.into(), 1]).unwrap();
            open("mem").unwrap();
        });
        with_a_grant(world, || {
            become_alice().unwrap();
            call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE.into(), 1]).unwrap();
            open("mem").unwrap();
        });
    }

    // Threat model: A107
    fn a_services_process_makes_no_userfaultfd(world) {
        let before = world.count(Reason::MemoryAccess);
        let make = || call(libc::SYS_userfaultfd, &[USER_MODE_ONLY]);
        in_child(|| {
            become_service(SERVICE);
            expect_refused(make());
            // An io_uring is a file of the same kind, and is permitted.
            Ring::new(0).unwrap();
        });
        assert_eq!(world.count(Reason::MemoryAccess) - before, 1);
        in_child(|| {
            become_service(FREE);
            make().unwrap();
        });
    }

    // Threat model: A107
    fn nobody_of_the_service_attaches_to_a_process_with_a_grant(world) {
        let before = world.count(Reason::IdentityTraced);
        let attempt = || {
            allow_tracing();
            let own = std::process::id().into();
            let mut child = process(|line| {
                let attached = trace(own);
                io::Write::write_all(line, &[u8::from(attached.is_ok())]).unwrap();
            });
            let mut attached = [2];
            io::Read::read_exact(&mut child.line, &mut attached).unwrap();
            child.done();
            attached == [1]
        };
        with_a_grant(world, || assert!(!attempt()));
        assert_eq!(world.count(Reason::IdentityTraced) - before, 1);
        for uid in [SERVICE, FREE] {
            in_child(|| {
                become_service(uid);
                assert!(attempt());
            });
        }
    }
}
