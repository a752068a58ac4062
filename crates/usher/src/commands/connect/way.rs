//! How bytes get from one descriptor to another: by splice(2) where one of the two is a pipe, else
//! through memory.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::{Errno, Result};
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, splice};

use super::wait;

/// Bytes that are moved at once, and that a pipe is asked to hold.
const PIECE: usize = 1024 * 1024;
/// Bytes of memory.
const MEMORY: usize = 256 * 1024;

/// One direction's.
pub enum Way {
    /// One of the two is a pipe.
    Splice,
    /// Through here.
    Memory(Vec<u8>),
}

impl Way {
    /// That of standard input or output, to or from a connection.
    pub fn of(standard: BorrowedFd<'_>) -> Self {
        match rustix::fs::fstat(standard) {
            Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::Fifo => {
                // Whoever else has it has it larger then. Where the kernel grants no more to this
                // user, it stays as it is.
                let _ = fcntl_setpipe_size(standard, PIECE);
                Self::Splice
            }
            _ => Self::memory(),
        }
    }

    /// Through memory in any case.
    pub fn memory() -> Self {
        Self::Memory(vec![0; MEMORY])
    }

    /// Moves what there is, without waiting for more; how many bytes, 0 at the end. splice(2) must
    /// not wait: it holds the pipe's lock, and whoever has the other side of the pipe would hang.
    ///
    /// # Errors
    /// Those of either side; `EAGAIN` when one of them is not ready, and nothing was moved then.
    pub fn carry(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<usize> {
        loop {
            let carried = match self {
                Self::Splice => {
                    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                    splice(from, None, to, None, PIECE, flags)
                }
                Self::Memory(bytes) => copy(from, to, bytes),
            };
            match (carried, &self) {
                (Err(Errno::INTR), _) => {}
                // A kind of file that cannot be spliced.
                (Err(Errno::INVAL), Self::Splice) => *self = Self::memory(),
                (carried, _) => return carried,
            }
        }
    }
}

fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize> {
    let length = rustix::io::read(from, &mut *bytes)?;
    let mut written = 0;
    while written < length {
        match rustix::io::write(to, &bytes[written..length]) {
            Ok(more) => written += more,
            Err(Errno::AGAIN) => wait(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)])?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
