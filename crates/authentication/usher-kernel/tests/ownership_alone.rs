//! No other task acts inside a process that becomes a user: no thread, no process in its memory,
//! its files or its directory, no tracer.

#[macro_use]
mod ownership;

use std::io;

use ownership::*;
use usher_kernel::ownership::Reason;

extern "C" fn wait_for_the_end(_: *mut libc::c_void) -> libc::c_int {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

/// Ends the thread's process, or the child that its maker waits for.
extern "C" fn end_as_a_failure(_: *mut libc::c_void) -> libc::c_int {
    // SAFETY: runs nothing of the test.
    unsafe { libc::_exit(1) };
}

/// Whether the kernel refuses to make a child with these flags.
fn is_refused(flags: libc::c_int) -> bool {
    let mut stack = vec![0_u64; 8192];
    // SAFETY: a child would have its own stack, which is left to it. None is made if the test passes.
    let pid = unsafe {
        libc::clone(
            end_as_a_failure,
            stack.as_mut_ptr_range().end.cast(),
            flags,
            std::ptr::null_mut(),
        )
    };
    let refused = pid == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    if pid > 0 {
        std::mem::forget(stack);
    }
    refused
}

/// The attempts of a vfork child, whose parent waits for it. Its exit status is 0 if all were
/// refused.
extern "C" fn leave_somebody_behind(_: *mut libc::c_void) -> libc::c_int {
    let thread = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD;
    let another = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let refused = is_refused(thread) && is_refused(another);
    // SAFETY: ends this process only.
    unsafe { libc::_exit(i32::from(!refused)) };
}

ownership_tests! {
    // Threat model: A102
    fn a_process_of_two_threads_does_not_settle(world) {
        let before_threads = world.count(Reason::IdentityThreads);
        with_a_grant(world, || {
            setgroups(&MORE_GROUPS).unwrap();
            setgid(ALICE).unwrap();
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            let thread = thread(move || {
                let _ = stopped.recv();
                // Another thread, which holds no grant, is refused too.
                expect_refused(setuid(ALICE));
            });
            // The first step refuses early; the last one decides.
            expect_refused(setgroups(&MORE_GROUPS));
            expect_refused(setuid(ALICE));
            drop(stop);
            thread.join();
            // The thread is joined before the kernel has removed it from the process.
            while std::fs::read_dir("/proc/self/task").unwrap().count() > 1 {}
            setuid(ALICE).unwrap();
        });
        assert_eq!(world.count(Reason::IdentityThreads) - before_threads, 2);
    }

    // Threat model: A102
    fn a_service_may_vfork_only_to_execute_a_program(world) {
        let before_shared_memory = world.count(Reason::IdentitySharedMemory);
        with_a_grant(world, || {
            assert!(is_refused(libc::CLONE_VM | libc::SIGCHLD));
            // The standard library starts a program by vfork.
            assert!(execute("/usr/bin/true").unwrap());
            become_alice().unwrap();
        });
        assert_eq!(world.count(Reason::IdentitySharedMemory) - before_shared_memory, 1);
    }

    // Threat model: A102
    fn a_child_by_vfork_leaves_nobody_behind_in_the_services_memory(world) {
        let before_shared_memory = world.count(Reason::IdentitySharedMemory);
        with_a_grant(world, || {
            let mut stack = vec![0_u64; 65536];
            // SAFETY: the child has a stack of its own, and has ended when this returns.
            let pid = unsafe {
                libc::clone(
                    leave_somebody_behind,
                    stack.as_mut_ptr_range().end.cast(),
                    libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                    std::ptr::null_mut(),
                )
            };
            assert!(pid > 0, "{}", io::Error::last_os_error());
            let mut status = -1_i32;
            let status_at = std::ptr::from_mut(&mut status) as i64;
            call(libc::SYS_wait4, &[pid.into(), status_at]).unwrap();
            assert_eq!(status, 0);
            become_alice().unwrap();
        });
        assert_eq!(world.count(Reason::IdentitySharedMemory) - before_shared_memory, 2);
    }

    // Threat model: A102
    fn a_process_that_shares_its_files_or_directory_does_not_settle(world) {
        let before_shared_memory = world.count(Reason::IdentitySharedMemory);
        with_a_grant(world, || {
            setgroups(&MORE_GROUPS).unwrap();
            setgid(ALICE).unwrap();
            for shared in [libc::CLONE_FILES, libc::CLONE_FS] {
                let mut stack = vec![0_u64; 8192];
                // SAFETY: the child has its own stack, waits, and is killed before the stack is
                // freed.
                let pid = unsafe {
                    libc::clone(
                        wait_for_the_end,
                        stack.as_mut_ptr_range().end.cast(),
                        shared | libc::SIGCHLD,
                        std::ptr::null_mut(),
                    )
                };
                assert!(pid > 0);
                expect_errno(setgroups(&MORE_GROUPS), libc::EAGAIN);
                expect_errno(setuid(ALICE), libc::EAGAIN);
                call(libc::SYS_kill, &[pid.into(), libc::SIGKILL.into()]).unwrap();
                call(libc::SYS_wait4, &[pid.into()]).unwrap();
            }
            setuid(ALICE).unwrap();
        });
        assert_eq!(world.count(Reason::IdentitySharedMemory) - before_shared_memory, 4);
    }

    // Threat model: A105
    fn a_traced_process_does_not_settle(world) {
        let before_traced = world.count(Reason::IdentityTraced);
        with_a_grant(world, || {
            setgroups(&MORE_GROUPS).unwrap();
            call(libc::SYS_ptrace, &[libc::PTRACE_TRACEME.into()]).unwrap();
            expect_refused(setgroups(&MORE_GROUPS));
            setgid(ALICE).unwrap();
            expect_refused(setuid(ALICE));
        });
        assert_eq!(world.count(Reason::IdentityTraced) - before_traced, 2);
    }
}
