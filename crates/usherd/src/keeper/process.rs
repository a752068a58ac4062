//! What /proc says of a process that asks to become a user. The kernel's fence decides again, when
//! the process acts; these checks are for refusing with a reason.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use rustix::time::Timespec;
use usher_proto::refusal::Refusal;

/// A process, held so that its number cannot pass to another.
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Refers to it and to no other.
    pub pidfd: OwnedFd,
    /// Its parent.
    pub parent: i32,
    /// How many threads it has.
    pub threads: u32,
    /// Real, effective, saved and file system user.
    pub users: [u32; 4],
    /// Its permitted capabilities, a bit each.
    capabilities: u64,
}

impl Process {
    /// Looks at a process. The number is that of a peer (SO_PEERCRED), which may have ended since
    /// and left its number to another; whoever has it must then pass the same checks.
    ///
    /// # Errors
    /// [`Refusal::ReservationLapsed`] when there is no such process any more.
    pub fn open(pid: i32) -> Result<Self, Refusal> {
        let gone = |error: io::Error| {
            tracing::info!(pid, %error, "a process went while it asked");
            Refusal::ReservationLapsed
        };
        let number = Pid::from_raw(pid).ok_or(Refusal::ReservationLapsed)?;
        let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty())
            .map_err(|error| gone(error.into()))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(gone)?;
        let (parent, threads, users, capabilities) = read(&status).ok_or_else(|| {
            tracing::error!(pid, "/proc/PID/status is not as proc_pid_status(5) says");
            Refusal::KeeperUnavailable
        })?;
        // Still the one that the descriptor is for: what was read is of this process.
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        match rustix::event::poll(&mut ended, Some(&Timespec::default())) {
            Ok(0) => {}
            Ok(_) => return Err(gone(io::ErrorKind::NotFound.into())),
            Err(error) => return Err(gone(error.into())),
        }
        Ok(Self {
            pid,
            pidfd,
            parent,
            threads,
            users,
            capabilities,
        })
    }

    /// Whether it could change its user if it were let. A process that has become a user could
    /// not, and neither could a worker that Usher has started.
    pub fn can_change_user(&self) -> bool {
        self.capabilities & CHANGE_USER == CHANGE_USER
    }
}

/// CAP_SETGID and CAP_SETUID (linux/capability.h).
const CHANGE_USER: u64 = 1 << 6 | 1 << 7;

fn read(status: &str) -> Option<(i32, u32, [u32; 4], u64)> {
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
        u64::from_str_radix(field("CapPrm")?.next()?, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_what_proc_says() {
        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(own).unwrap_or_else(|refusal| panic!("{refusal}"));
        let uid = rustix::process::getuid().as_raw();
        assert_eq!((process.pid, process.users), (own, [uid; 4]));
        assert!(process.threads >= 1 && process.parent > 0);
    }

    #[test]
    fn a_status_that_lacks_something_is_none() {
        let whole =
            "Name:\tx\nPPid:\t7\nUid:\t1\t2\t3\t4\nThreads:\t1\nCapPrm:\t00000000000000c0\n";
        assert_eq!(read(whole), Some((7, 1, [1, 2, 3, 4], CHANGE_USER)));
        for line in ["PPid:\t7\n", "Threads:\t1\n", "\t4", "CapPrm"] {
            assert_eq!(read(&whole.replace(line, "")), None);
        }
    }
}
