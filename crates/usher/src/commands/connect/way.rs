//! Moves bytes from one descriptor to another: by splice(2) if one of them is a pipe, else through
//! memory.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, splice};

use super::wait;

/// Bytes to move at once, and the wanted size of a pipe.
const PIECE: usize = 1024 * 1024;
/// Bytes of memory for a way without a pipe.
const MEMORY: usize = 256 * 1024;

/// The way of one direction.
pub enum Way {
    /// By splice(2): one of the two descriptors is a pipe.
    Splice,
    /// Through this memory.
    Memory(Vec<u8>),
}

impl Way {
    /// The way between a standard stream and a connection.
    pub fn of(standard: BorrowedFd<'_>) -> Self {
        match rustix::fs::fstat(standard) {
            Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::Fifo => {
                // The pipe grows for its other users too. It keeps its size if the kernel grants this
                // user no more.
                let _ = fcntl_setpipe_size(standard, PIECE);
                Self::Splice
            }
            _ => Self::memory(),
        }
    }

    /// A way through memory.
    pub fn memory() -> Self {
        Self::Memory(vec![0; MEMORY])
    }

    /// Moves the available bytes without waiting for more, and returns their number, 0 at the end.
    /// splice(2) must not wait: it holds the pipe's lock, and the process at the other side would hang.
    ///
    /// # Errors
    /// Those of either side; `EAGAIN` when a side is not ready and nothing was moved.
    pub fn carry(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let carried = retry_on_intr(|| match self {
            Self::Splice => splice(from, None, to, None, PIECE, flags),
            Self::Memory(bytes) => copy(from, to, bytes),
        });
        match (carried, &self) {
            // This kind of file cannot be spliced.
            (Err(Errno::INVAL), Self::Splice) => {
                *self = Self::memory();
                self.carry(from, to)
            }
            (carried, _) => carried,
        }
    }
}

fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize> {
    let length = rustix::io::read(from, &mut *bytes)?;
    let mut written = 0;
    while written < length {
        match retry_on_intr(|| rustix::io::write(to, &bytes[written..length])) {
            Ok(more) => written += more,
            Err(Errno::AGAIN) => wait(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)])?,
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
