//! A child that is becoming a worker, as its starter sees it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use usher_base::codec::socket_address;

use super::Stage;
use super::child::{ACCEPTED, ALIVE, ENDPOINT};

/// A child that has not executed its program.
#[derive(Debug)]
pub struct Newborn {
    /// The child's process id, which is not reused until its parent has waited for it.
    pub pid: u32,
    report: OwnedFd,
    said: Vec<u8>,
}

/// The report of a child that has accepted its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The number of connections that wait besides, at most 255.
    pub waiting: u8,
    /// The client's endpoint of the connection that the child has accepted; none if its family is neither
    /// IPv6 nor IPv4. The child is already the user then, so its report is trusted about this user only.
    pub client: Option<SocketAddr>,
}

/// The progress of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The child is alive.
    Made,
    /// The child is the user and has accepted its connection.
    Accepted,
    /// The child has executed its program, or was killed before.
    Executed,
    /// The child was killed before it had done anything irrevocable; see [`super::Entry`].
    Stillborn,
    /// The child failed with this errno and is ending.
    Failed(Stage, i32),
}

impl Newborn {
    pub(super) fn new(pid: u32, report: OwnedFd) -> Self {
        Self {
            pid,
            report,
            said: Vec::new(),
        }
    }

    /// Readable when the child has made progress.
    #[must_use]
    pub fn report(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// The child's progress. Does not wait.
    ///
    /// # Errors
    /// Like read(2); `InvalidData` when the report is invalid.
    pub fn progress(&mut self) -> io::Result<Progress> {
        let mut part = [0; 32];
        let over = loop {
            match rustix::io::read(&self.report, &mut part) {
                Ok(0) => break true,
                Ok(count) => self.said.extend_from_slice(&part[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Err(error) => return Err(error.into()),
            }
        };
        let rest = match self.said.as_slice() {
            [ACCEPTED, rest @ ..] => rest.get(1 + ENDPOINT..).ok_or(io::ErrorKind::InvalidData)?,
            [ALIVE, rest @ ..] => rest,
            rest => rest,
        };
        Ok(match (rest.split_first(), over) {
            (None, true) if self.said.is_empty() => Progress::Stillborn,
            (None, true) => Progress::Executed,
            (None, false) if self.accepted().is_some() => Progress::Accepted,
            (None, false) => Progress::Made,
            (Some((stage, errno)), _) => {
                let errno = errno.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
                Progress::Failed(Stage::from_number(*stage), i32::from_ne_bytes(errno))
            }
        })
    }

    /// The child's report that it has accepted its connection; none if [`Newborn::progress`] has not read
    /// that report.
    #[must_use]
    pub fn accepted(&self) -> Option<Accepted> {
        let [ACCEPTED, waiting, rest @ ..] = self.said.as_slice() else {
            return None;
        };
        let (address, rest) = rest.split_first_chunk()?;
        let client = socket_address(*address, u16::from_be_bytes(*rest.first_chunk()?));
        Some(Accepted {
            waiting: *waiting,
            client,
        })
    }

    /// Kills a child that takes too long, for example because its user has stopped it, or because
    /// it waits for the user's home.
    pub fn kill(&self) -> io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else {
            return Ok(());
        };
        match kill_process(pid, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
