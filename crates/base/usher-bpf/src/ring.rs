//! Reading a ring buffer of programs.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use parking_lot::Mutex;

use crate::KernelError;
use crate::table::clone;

/// Limit of entries taken from a ring at once: the writer may be faster than the reader.
const BATCH: usize = 1024;

/// The entries taken from a ring.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch<T> {
    /// The entries, in their order of arrival.
    pub entries: Vec<T>,
    /// Whether the limit was reached: there may be more, which the descriptor does not signal again.
    pub more: bool,
}

/// The reports of programs in one ring.
pub struct Ring<T> {
    what: &'static str,
    ring: Mutex<RingBuffer<'static>>,
    arrived: Arc<Mutex<Vec<T>>>,
    map: MapHandle,
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ring").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Ring<T> {
    /// `read` decodes an entry; entries that it cannot decode are left out.
    pub(crate) fn open(
        what: &'static str,
        map: MapHandle,
        read: fn(&[u8]) -> Option<T>,
    ) -> Result<Self, KernelError> {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&arrived);
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&map, move |bytes| {
                into.lock().extend(read(bytes));
                0
            })
            .map_err(KernelError::bpf(what))?;
        let ring = builder.build().map_err(KernelError::bpf(what))?;
        Ok(Self {
            what,
            ring: Mutex::new(ring),
            arrived,
            map,
        })
    }

    /// A descriptor that is readable (epoll, poll) while [`Ring::take`] has entries.
    ///
    /// # Errors
    /// When the descriptor cannot be duplicated.
    pub fn descriptor(&self) -> Result<OwnedFd, KernelError> {
        clone(&self.map)
    }

    /// The entries since the last call, in order, up to 1,024.
    pub fn take(&self) -> Result<Batch<T>, KernelError> {
        let ring = self.ring.lock();
        let taken = ring.consume_raw_n(BATCH);
        let taken = usize::try_from(taken).map_err(|_| {
            let error = libbpf_rs::Error::from_raw_os_error(-taken);
            KernelError::bpf(self.what)(error)
        })?;
        Ok(Batch {
            entries: std::mem::take(&mut *self.arrived.lock()),
            more: taken >= BATCH,
        })
    }
}
