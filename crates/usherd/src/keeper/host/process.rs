//! The state in /proc of a process that asks to become a user, or that an earlier keeper or starter has left.
//! When a process becomes a user, the kernel's fence decides again; these checks only refuse early, with a
//! reason.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use usher_daemon::packet_async::register;
use usher_system::process::has_ended;

/// A process, held so that its number cannot pass to another.
pub struct Process {
    pub pid: i32,
    /// A descriptor that refers to it and to no other.
    pub pidfd: OwnedFd,
    pub parent: i32,
    pub threads: u32,
    /// Real, effective, saved and file system user.
    pub users: [u32; 4],
    /// Whether it leads its session (setsid(2)).
    pub leads_session: bool,
    /// Its permitted capabilities, one bit each.
    capabilities: u64,
}

impl Process {
    /// Reads the state of the process that has this id now. The id may have passed to another process, which
    /// must then pass the same checks.
    ///
    /// # Errors
    /// `NotFound` when there is no such process any more; other errors of the kernel.
    pub fn open(pid: i32) -> io::Result<Self> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let number = Pid::from_raw(pid).ok_or_else(gone)?;
        let pidfd = match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Err(gone()),
            opened => opened?,
        };
        let status = match std::fs::read_to_string(format!("/proc/{pid}/status")) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                return Err(gone());
            }
            read => read?,
        };
        let (parent, threads, users, session, capabilities) = parse_status(&status)
            .ok_or_else(|| io::Error::other("/proc/PID/status is not as in proc_pid_status(5)"))?;
        // The descriptor's process is still alive, so the state read is its own.
        if has_ended(pidfd.as_fd())? {
            return Err(gone());
        }
        Ok(Self {
            pid,
            pidfd,
            parent,
            threads,
            users,
            leads_session: session == pid,
            capabilities,
        })
    }

    /// The time at which the process started, or now if /proc does not have it.
    pub fn since(&self) -> Instant {
        let now = Instant::now();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let age = started(&stat).and_then(|ticks| {
            let begun = Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?);
            let booted = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            Duration::try_from(booted).ok()?.checked_sub(begun)
        });
        age.and_then(|age| now.checked_sub(age)).unwrap_or(now)
    }

    /// Its descriptor in the reactor: readable when it has ended.
    ///
    /// # Errors
    /// When no descriptor is available.
    pub fn end(&self) -> io::Result<AsyncFd<OwnedFd>> {
        register(self.pidfd.try_clone()?, Interest::READABLE)
    }

    /// Sends it a signal. Ignores a process that has ended.
    pub fn signal(&self, signal: Signal) {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => tracing::error!(%error, pid = self.pid, "cannot signal a process"),
        }
    }

    /// Whether it has the capabilities to change its user. A process that has become a user does not, and
    /// neither does a worker that Usher has started.
    pub fn can_change_user(&self) -> bool {
        self.capabilities & CHANGE_USER == CHANGE_USER
    }
}

/// CAP_SETGID and CAP_SETUID (linux/capability.h).
const CHANGE_USER: u64 = 1 << 6 | 1 << 7;

/// Parent, threads, users, session and capabilities.
fn parse_status(status: &str) -> Option<(i32, u32, [u32; 4], i32, u64)> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::split_whitespace)
    };
    let mut users = field("Uid")?.map(str::parse);
    let mut user = || users.next()?.ok();
    Some((
        field("PPid")?.next()?.parse().ok()?,
        field("Threads")?.next()?.parse().ok()?,
        [user()?, user()?, user()?, user()?],
        // The first number is that of this process's namespace.
        field("NSsid")?.next()?.parse().ok()?,
        u64::from_str_radix(field("CapPrm")?.next()?, 16).ok()?,
    ))
}

/// Clock ticks per second in the kernel's interface: USER_HZ of include/asm-generic/param.h, 100 on
/// every architecture of Debian.
const TICKS_PER_SECOND: u64 = 100;

/// The start of a process, in clock ticks since boot: field 22 of proc_pid_stat(5).
/// The name, field 2, may have blanks and parentheses.
fn started(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_what_proc_says() {
        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(own).unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!((process.pid, process.users), (own, [uid; 4]));
        assert!(process.threads >= 1 && process.parent > 0);
    }

    #[test]
    fn a_process_leads_its_session_or_belongs_to_anothers() {
        let starts = |program: &str| {
            let mut command = std::process::Command::new(program);
            let command = command.args(["sleep", "1000"]);
            // A leader of a process group may not make a session: setsid(1) would fork.
            command.spawn().unwrap()
        };
        for (program, leads) in [("setsid", true), ("env", false)] {
            let mut child = starts(program);
            let number = child.id().cast_signed();
            let name = || std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap();
            while name() != "sleep\n" {
                std::thread::yield_now();
            }
            assert_eq!(
                Process::open(number).unwrap().leads_session,
                leads,
                "{program}"
            );
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_runs_since_it_was_started() {
        let fields = "S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9";
        assert_eq!(started(&format!("7 (a) b (c) {fields}")), Some(4711));
        assert_eq!(started("7 (a) S 1"), None);
        let own = i32::try_from(std::process::id()).unwrap();
        let (process, now) = (Process::open(own).unwrap(), Instant::now());
        // Not before the machine, and not after now.
        assert!(process.since() < now);
        let init = Process::open(1).unwrap().since();
        assert!(init <= process.since());
    }

    #[test]
    fn a_status_that_lacks_something_is_none() {
        let whole = "Name:\tx\nPPid:\t7\nUid:\t1\t2\t3\t4\nNSsid:\t9\t1\nThreads:\t1\nCapPrm:\t00000000000000c0\n";
        assert_eq!(
            parse_status(whole),
            Some((7, 1, [1, 2, 3, 4], 9, CHANGE_USER))
        );
        for line in ["PPid:\t7\n", "Threads:\t1\n", "\t4", "NSsid", "CapPrm"] {
            assert_eq!(parse_status(&whole.replace(line, "")), None);
        }
    }
}
