//! The process in which PAM's modules run: a child of this program, which waits for it. If it takes
//! too long, this program kills it together with everything that the modules have started. A
//! module's own child (pam_exec) may have left its parent and its session; it still becomes a child
//! of this program (PR_SET_CHILD_SUBREAPER).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid,
};

use crate::fork::{Forked, fork};

/// The time that killed processes may take to end. They end at once unless the kernel holds them.
const DYING: Duration = Duration::from_secs(5);
/// The interval of checks of killed processes.
const LOOK: Duration = Duration::from_millis(1);

/// The process of the modules.
pub struct Modules {
    pid: Pid,
    process: OwnedFd,
}

/// An event of the process of the modules.
pub enum Heard {
    /// It sent a packet.
    Packet(Vec<u8>),
    /// It ended.
    Ended,
    /// Nothing happened within the limit.
    TooLong,
}

impl Modules {
    /// Starts `work` in a child, whose exit status `work` returns.
    ///
    /// # Errors
    /// When the kernel cannot make a process.
    pub fn start(work: impl FnOnce() -> u8) -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        match fork()? {
            Forked::Child => std::process::exit(work().into()),
            Forked::Parent(pid) => Ok(Self {
                pid,
                process: pidfd_open(pid, PidfdFlags::empty())?,
            }),
        }
    }

    /// Waits for its end. Returns false if it has not ended within the limit.
    ///
    /// # Errors
    /// Like poll(2).
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        let mut awaited = [PollFd::new(&self.process, PollFlags::IN)];
        wait_for(&mut awaited, limit)
    }

    /// Waits until it sends a packet or ends.
    ///
    /// # Errors
    /// Like poll(2) and recv(2).
    pub fn hear(
        &self,
        socket: &OwnedFd,
        most: usize,
        limit: Option<Duration>,
    ) -> io::Result<Heard> {
        let mut awaited = [
            PollFd::new(socket, PollFlags::IN),
            PollFd::new(&self.process, PollFlags::IN),
        ];
        if !wait_for(&mut awaited, limit)? {
            return Ok(Heard::TooLong);
        }
        let mut packet = vec![0; most];
        match rustix::net::recv(socket, packet.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::AGAIN) => Ok(Heard::Ended),
            Ok((length, _)) => {
                packet.truncate(length);
                Ok(Heard::Packet(packet))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Its exit status, once it has ended; none if a signal killed it.
    ///
    /// # Errors
    /// Like waitid(2).
    pub fn status(&self) -> io::Result<Option<u8>> {
        let ended = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED)?;
        let status = ended.and_then(|status| status.exit_status());
        Ok(status.and_then(|status| u8::try_from(status).ok()))
    }
}

/// Waits until one of the descriptors is ready. Returns false if none is within the limit.
fn wait_for(awaited: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map(Timespec::try_from).transpose();
        match poll(awaited, left.map_err(io::Error::other)?.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Kills all descendants of this process and waits for their ends. The children of a killed process
/// become children of this one, and the next round kills them.
///
/// # Errors
/// The kernel's error, or some have not ended after five seconds.
pub fn end_all() -> io::Result<()> {
    let until = Instant::now() + DYING;
    loop {
        for child in children()? {
            match kill_process(child, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        loop {
            match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(Errno::CHILD) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        if Instant::now() >= until {
            return Err(io::Error::other(
                "processes that the modules have left do not end",
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// The children of this process, which has one thread. The kernel's list may be incomplete while
/// they come and go; the next round of [`end_all`] completes it.
fn children() -> io::Result<Vec<Pid>> {
    let list = std::fs::read_to_string("/proc/thread-self/children")?;
    let numbers = list.split_ascii_whitespace();
    Ok(numbers
        .filter_map(|number| Pid::from_raw(number.parse().ok()?))
        .collect())
}

/// Sends a packet.
///
/// # Errors
/// Like send(2).
pub fn send(socket: impl AsFd, packet: &[u8]) -> io::Result<()> {
    let flags = rustix::net::SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| rustix::net::send(&socket, packet, flags))?;
    Ok(())
}
