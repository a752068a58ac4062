//! Listeners in the service manager's file descriptor store (sd_pid_notify_with_fds(3)): queues, with
//! the connections that wait in them, outlive the keeper there.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sd_notify::NotifyState;

use super::Key;

/// The listeners that an earlier keeper has left.
pub struct Stored(HashMap<Key, OwnedFd>);

impl Stored {
    /// Takes the listeners over from the service manager. Call this before anything opens a descriptor.
    ///
    /// # Errors
    /// When the service manager's data is malformed.
    pub fn take_over() -> io::Result<Self> {
        let stored = usher_kernel::descriptor_store::take_descriptors()?;
        let listeners = stored.into_iter().filter_map(|(name, descriptor)| {
            let (service, uid) = name.strip_prefix("queue-")?.split_once('-')?;
            Some(((service.parse().ok()?, uid.parse().ok()?), descriptor))
        });
        Ok(Self(listeners.collect()))
    }

    /// Takes the listener of a queue.
    pub fn take(&mut self, key: Key) -> Option<OwnedFd> {
        self.0.remove(&key)
    }

    /// Whether a queue's listener is here.
    pub fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// The user id of a service's only listener; none if the service has several.
    pub fn uid_at(&self, service: u32) -> Option<u32> {
        let mut of_service = self.0.keys().filter(|(id, _)| *id == service);
        let (_, uid) = of_service.next()?;
        of_service.next().is_none().then_some(*uid)
    }

    /// Closes the remaining listeners, also in the store.
    pub fn forget_rest(self) {
        self.0.into_keys().for_each(forget);
    }
}

fn descriptor_name((service, uid): Key) -> String {
    format!("queue-{service}-{uid}")
}

/// Stores a duplicate with the service manager, so that the queue outlives the keeper. Without a service
/// manager the waiting connections are lost with the keeper.
pub(super) fn store(listener: &OwnedFd, key: Key) {
    let name = descriptor_name(key);
    // A listener that is closed to refuse waiting connections hangs up for a moment, but must stay
    // stored.
    let state = [
        NotifyState::FdStore,
        NotifyState::FdName(&name),
        NotifyState::Custom("FDPOLL=0"),
    ];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[listener.as_fd()]) {
        tracing::warn!(%error, "cannot store a listener with the service manager");
    }
}

/// Takes a listener out of the store.
pub(super) fn forget(key: Key) {
    let name = descriptor_name(key);
    let state = [NotifyState::FdStoreRemove, NotifyState::FdName(&name)];
    if let Err(error) = sd_notify::notify(&state) {
        tracing::warn!(%error, "cannot take a listener back from the service manager");
    }
}
