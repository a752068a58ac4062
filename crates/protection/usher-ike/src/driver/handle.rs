//! The owner's side of the task: orders to it, notices from it, and its report.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use usher_base::HostName;
use usher_protection::Report;

use super::{Driver, Shared, Wanted};
use crate::configuration::Configuration;
use crate::sas::{KernelSas, Placed};

/// The kernel asks for SAs: XFRM_MSG_ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// This host's address, from which the packet goes.
    pub source: IpAddr,
    /// The address of the packet's other host.
    pub peer: IpAddr,
    /// The `reqid` of the SPD entry's template.
    pub reqid: u32,
}

/// SAs with a peer have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The peer's name in the policy.
    pub host: HostName,
    /// Its address.
    pub peer: IpAddr,
    /// The `reqid` of the SAs.
    pub reqid: u32,
}

/// The kernel whose SAs charon makes.
pub trait KernelSad: Send + 'static {
    /// Lists the kernel's SAs.
    ///
    /// # Errors
    /// The kernel's error.
    fn list(&mut self) -> io::Result<KernelSas>;

    /// Returns whether the kernel has this SA.
    ///
    /// # Errors
    /// The kernel's error.
    fn has(&mut self, sa: Placed) -> io::Result<bool>;

    /// Places an SA: the kernel must then send by this SA as long as it has it. Does nothing if another SA of
    /// its class with the same peer has a place.
    ///
    /// # Errors
    /// The kernel's error.
    fn place(&mut self, sa: Placed) -> io::Result<()>;

    /// Places an SA behind all others of its class with the same peer, unless it has a place.
    ///
    /// # Errors
    /// The kernel's error.
    fn place_last(&mut self, sa: Placed) -> io::Result<()>;

    /// Places an SA before all others of its class with the same peer.
    ///
    /// # Errors
    /// The kernel's error.
    fn place_first(&mut self, sa: Placed) -> io::Result<()>;

    /// Takes the places away from all SAs but these.
    ///
    /// # Errors
    /// The kernel's error.
    fn keep_places(&mut self, known: &KernelSas) -> io::Result<()>;
}

/// The task that drives charon. It ends when this is dropped; SAs and connections in charon stay.
#[derive(Debug)]
pub struct Ike {
    orders: mpsc::Sender<Acquire>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Ike {
    /// Starts the task, for the charon at this socket. `kernel` is the one that this charon serves; its SAs
    /// are listed when the kernel asks for SAs that charon has, and every ten seconds. The notices say which
    /// SAs have come, or are to be used in place of others. The owner must take them: the task waits while
    /// 1,024 notices wait.
    #[must_use]
    pub fn start(socket: PathBuf, kernel: impl KernelSad) -> (Self, mpsc::Receiver<Notice>) {
        let shared = Arc::new(Shared::default());
        let (driver, orders, noticed) = Driver::new(socket, Box::new(kernel), Arc::clone(&shared));
        let task = tokio::spawn(driver.run());
        let ike = Self {
            orders,
            shared,
            task,
        };
        (ike, noticed)
    }

    /// Sets the configuration that charon is to have. None: nothing of Usher's. From the first call on,
    /// the task also removes connections, SAs and keys of Usher's that an earlier process left in
    /// charon. A call with None ends all SAs, even if the next call follows at once. Returns at once.
    pub fn configure(&self, configuration: impl Into<Option<Configuration>>) {
        let wanted = match configuration.into() {
            Some(configuration) => Wanted::This(Arc::new(configuration)),
            None => {
                self.shared.must_leave.store(true, Ordering::SeqCst);
                Wanted::Nothing
            }
        };
        *self.shared.wanted.lock() = wanted;
        self.shared.changed.notify_one();
    }

    /// Negotiates the SAs for which the kernel asks: at once, or five seconds after the last attempt. Returns
    /// at once. If too many acquires wait, this one is dropped.
    pub fn acquire(&self, acquire: Acquire) {
        if self.orders.try_send(acquire).is_err() {
            tracing::warn!(?acquire, "too many acquires wait; this one is dropped");
        }
    }

    /// The present state of charon and the peers.
    #[must_use]
    pub fn report(&self) -> Report {
        self.shared.report.lock().clone()
    }
}

impl Drop for Ike {
    fn drop(&mut self) {
        self.task.abort();
    }
}
