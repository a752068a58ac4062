//! What moves bytes from one connection to another: splice(2) through a pipe, which copies nothing,
//! or, when all pipes are in use, memory.
//!
//! A user without privileges may have pipes of 64 MiB together (fs.pipe-user-pages-soft); beyond
//! that the kernel makes them of a page or two, and slow. So there are few, and a direction has one
//! as long as it has bytes to move. What is in a pipe is on nobody's account in the kernel, so a
//! peer that does not read keeps one pipe at most.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pipes at one time: half of what one user may have.
pub const PIPES: usize = 128;
/// Bytes of a pipe. Its pages may hold more.
const PIPE: usize = 256 * 1024;
/// Bytes of memory where there is no pipe.
const MEMORY: usize = 64 * 1024;
/// Bytes that are moved at once.
const PIECE: usize = 1024 * 1024;

/// The pipes of all connections.
pub struct Carriers {
    idle: Mutex<Vec<Pipe>>,
    places: Arc<Semaphore>,
}

/// Moves the bytes of one direction.
pub enum Carrier {
    /// Through a pipe.
    Pipe(Pipe, usize),
    /// Through memory: what of it is filled.
    Memory(Vec<u8>, usize),
}

/// A pipe, with its place among those that there may be.
pub struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    _place: OwnedSemaphorePermit,
}

impl Carriers {
    /// As many pipes as this, made when they are needed.
    pub fn new(pipes: usize) -> Self {
        Self {
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(pipes)),
        }
    }

    /// One for a direction that has bytes to move.
    pub fn take(&self) -> Carrier {
        let idle = self.idle.lock().pop();
        match idle.or_else(|| self.make()) {
            Some(pipe) => Carrier::Pipe(pipe, 0),
            None => Carrier::Memory(vec![0; MEMORY], 0),
        }
    }

    /// Takes back one that is empty.
    pub fn give(&self, carrier: Option<Carrier>) {
        if let Some(Carrier::Pipe(pipe, 0)) = carrier {
            self.idle.lock().push(pipe);
        }
    }

    fn make(&self) -> Option<Pipe> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        // Out of descriptors: memory does.
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // Where the kernel grants no more it is as large as the kernel makes it.
        let _ = fcntl_setpipe_size(&into, PIPE);
        Some(Pipe {
            out,
            into,
            _place: place,
        })
    }
}

impl Carrier {
    /// Whether [`Carrier::fill`] goes past an urgent byte, as read(2) does and splice(2) does not:
    /// one that comes between looking for it and reading is a byte like any.
    pub fn passes_urgent(&self) -> bool {
        matches!(self, Self::Memory(..))
    }

    /// Takes what a connection has; how many bytes, 0 at its end. Only when it is empty: else
    /// nobody could tell which of the two has made it stop.
    ///
    /// # Errors
    /// The connection's, `WouldBlock` among them.
    pub fn fill(&mut self, from: &OwnedFd) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe, filled) => {
                *filled = splice(from, None, &pipe.into, None, PIECE, flags())?;
                Ok(*filled)
            }
            Self::Memory(bytes, filled) => {
                *filled = rustix::io::read(from, &mut bytes[..])?;
                Ok(*filled)
            }
        }
    }

    /// Writes all of it to a connection, as fast as that takes it.
    ///
    /// # Errors
    /// The connection's.
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
