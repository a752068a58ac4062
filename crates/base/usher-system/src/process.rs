//! Descriptors of processes, because a process's number may be reused; the end on SIGTERM; attributes of the
//! calling process for its security modules (lsm_set_self_attr(2), kernel 6.8).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;

use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::SIGTERM;

use crate::SystemError;

/// Whether the process of a pidfd has ended, reaped or not.
///
/// # Errors
/// As poll(2).
pub fn has_ended(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut ended = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    Ok(rustix::event::poll(&mut ended, Some(&Timespec::default()))? > 0)
}

/// Makes SIGTERM end this process at once with status 0, as a service manager expects of a daemon that it
/// stops. No other code runs before the end: things that must outlive the process must also outlive its
/// sudden death. Programs that the process executes have the default action again.
///
/// # Errors
/// As sigaction(2).
pub fn end_when_asked() -> Result<(), SystemError> {
    static ALWAYS: AtomicBool = AtomicBool::new(true);
    signal_hook::flag::register_conditional_shutdown(SIGTERM, 0, &ALWAYS)
        .map(drop)
        .map_err(SystemError::call("handle SIGTERM"))
}

pub use usher_system_ffi::{LONGEST_ATTRIBUTE, set_self_attribute};

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    use nix::sys::signal::{Signal, raise};

    use super::*;

    /// Set in a process that these tests start from their own program.
    const STARTED: &str = "USHER_TEST_STARTED";

    fn is_started() -> bool {
        std::env::var_os(STARTED).is_some()
    }

    /// Starts this test once more, in a process of its own.
    fn start(test: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", test]);
        command.env(STARTED, "1").output().unwrap()
    }

    struct Cleanup;

    impl Drop for Cleanup {
        fn drop(&mut self) {
            eprintln!("cleanup has run");
        }
    }

    thread_local!(static AT_END_OF_THREAD: Cleanup = const { Cleanup });

    #[test]
    fn sigterm_ends_a_process_with_status_0_and_runs_nothing() {
        if is_started() {
            AT_END_OF_THREAD.with(|_| ());
            end_when_asked().unwrap();
            eprintln!("SIGTERM");
            raise(Signal::SIGTERM).unwrap();
            panic!("the process outlived SIGTERM");
        }
        let ended = start("process::tests::sigterm_ends_a_process_with_status_0_and_runs_nothing");
        let messages = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{messages}");
        assert_eq!(messages.trim(), "SIGTERM");
    }

    #[test]
    fn an_executed_program_has_the_default_action_of_sigterm() {
        if is_started() {
            end_when_asked().unwrap();
            let mut shell = Command::new("/bin/sh");
            let ended = shell.args(["-c", "kill -TERM $$; exit 7"]).status();
            assert_eq!(ended.unwrap().signal(), Some(SIGTERM));
            return;
        }
        let ended = start("process::tests::an_executed_program_has_the_default_action_of_sigterm");
        let messages = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{messages}");
    }
}
