//! Moves bytes from one connection to another: by splice(2) through a pipe, which copies nothing, or
//! through memory when all pipes are in use.
//!
//! A user without privileges may have pipes of 64 MiB together (fs.pipe-user-pages-soft); further pipes have
//! a page or two, and are slow. So the relay has few pipes, and a direction holds one only while it has bytes
//! to move. The kernel does not account the contents of a pipe, so the relay leaves at most one to a peer
//! that does not read.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit of pipes: half of what one user may have.
pub const PIPES: usize = 128;
/// Bytes of a pipe. Its pages may hold more.
const PIPE: usize = 256 * 1024;
/// Bytes of memory that replace a pipe.
const MEMORY: usize = 64 * 1024;
/// Bytes to move at once.
const PIECE: usize = 1024 * 1024;

/// The pipes of all connections.
pub struct Carriers {
    idle: Mutex<Vec<Pipe>>,
    permits: Arc<Semaphore>,
}

/// Moves the bytes of one direction.
pub enum Carrier {
    /// Through a pipe.
    Pipe(Pipe, usize),
    /// Through memory, of which so many bytes are filled.
    Memory(Vec<u8>, usize),
}

/// A pipe, with its permit.
pub struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    _permit: OwnedSemaphorePermit,
}

impl Carriers {
    /// At most this many pipes, made on demand.
    pub fn new(pipes: usize) -> Self {
        Self {
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(pipes)),
        }
    }

    /// A carrier for a direction that has bytes to move.
    pub fn take(&self) -> Carrier {
        let idle = self.idle.lock().pop();
        match idle.or_else(|| self.make()) {
            Some(pipe) => Carrier::Pipe(pipe, 0),
            None => Carrier::Memory(vec![0; MEMORY], 0),
        }
    }

    /// Takes back a carrier, and keeps its pipe if it is empty.
    pub fn give(&self, carrier: Option<Carrier>) {
        if let Some(Carrier::Pipe(pipe, 0)) = carrier {
            self.idle.lock().push(pipe);
        }
    }

    fn make(&self) -> Option<Pipe> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        // Without descriptors memory is used.
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A pipe that the kernel refuses to enlarge keeps its size.
        let _ = fcntl_setpipe_size(&into, PIPE);
        Some(Pipe {
            out,
            into,
            _permit: permit,
        })
    }
}

impl Carrier {
    /// Whether [`Carrier::fill`] reads past an urgent byte, as read(2) does and splice(2) does not. An urgent
    /// byte that comes between the check and the reading then counts as an ordinary byte.
    pub fn passes_urgent(&self) -> bool {
        matches!(self, Self::Memory(..))
    }

    /// Takes the bytes that a connection has, and returns their number, 0 at its end. Only for an empty
    /// carrier: else `WouldBlock` could come from either side.
    ///
    /// # Errors
    /// The connection's errors, including `WouldBlock`.
    pub fn fill(&mut self, from: &OwnedFd) -> io::Result<usize> {
        let (filled, taken) = match self {
            Self::Pipe(pipe, filled) => (
                filled,
                splice(from, None, &pipe.into, None, PIECE, flags())?,
            ),
            Self::Memory(bytes, filled) => (filled, rustix::io::read(from, &mut bytes[..])?),
        };
        *filled = taken;
        Ok(taken)
    }

    /// Writes all bytes of the carrier to a connection.
    pub async fn empty(&mut self, to: &AsyncFd<OwnedFd>) -> io::Result<()> {
        match self {
            Self::Pipe(pipe, filled) => {
                while *filled > 0 {
                    let moved = to.async_io(Interest::WRITABLE, |to| {
                        Ok(splice(&pipe.out, None, to, None, *filled, flags())?)
                    });
                    *filled -= uninterrupted(moved.await)?;
                }
            }
            Self::Memory(bytes, filled) => {
                let mut written = 0;
                while written < *filled {
                    let moved = to.async_io(Interest::WRITABLE, |to| {
                        Ok(rustix::io::write(to, &bytes[written..*filled])?)
                    });
                    written += uninterrupted(moved.await)?;
                }
                *filled = 0;
            }
        }
        Ok(())
    }
}

fn flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}

fn uninterrupted(moved: io::Result<usize>) -> io::Result<usize> {
    match moved {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}
