//! How queues are made: for a session that is opened, and again after an earlier keeper, whose listeners the
//! service manager has kept.

use std::os::fd::{AsFd, OwnedFd};

use usher_base::{HostName, UserName};
use usher_kernel::cgroup::Group;
use usher_local::checked::Checked;
use usher_policy::{ServedBy, Service};
use usher_proto::refusal::Refusal;

use super::queue::Queue;
use super::stored::{self, Stored};
use super::{BACKLOG, Common, Queues};
use crate::keeper::host::accounts::Account;

impl Queues {
    /// Makes sure that the user's connections from a host to the service have a queue.
    ///
    /// # Errors
    /// [`Refusal::ListenerFailed`] when the port is taken, the worker's group cannot be made, or the account
    /// of a shared queue is not known; [`Refusal::ListenerTableFull`].
    pub fn ensure(
        &self,
        service: &Service,
        account: &Account,
        host: &HostName,
    ) -> Result<(), Refusal> {
        let Some(name) = service.shared_account() else {
            return self.ensure_own(service, account, Some(host));
        };
        let owner = self.shared_account(service, name)?;
        self.ensure_member(service, &owner, account)
    }

    /// Makes sure that a user, or the account of a shared queue, has a queue of its own. Replaces a queue of
    /// a former policy.
    pub(super) fn ensure_own(
        &self,
        service: &Service,
        account: &Account,
        host: Option<&HostName>,
    ) -> Result<(), Refusal> {
        let key = (service.id, account.uid);
        let present = self.common.all.lock().get(&key).cloned();
        match present.filter(|queue| queue.belongs_to(service)) {
            Some(queue) => {
                host.into_iter().for_each(|host| queue.note_host(host));
                Ok(())
            }
            None => {
                self.remove(key);
                self.make(service, account, host)
            }
        }
    }

    /// Makes a queue.
    fn make(
        &self,
        service: &Service,
        account: &Account,
        host: Option<&HostName>,
    ) -> Result<(), Refusal> {
        let listener =
            usher_kernel::listener::create(service.id, account.uid, port(service), BACKLOG)
                .map_err(|error| {
                    tracing::error!(service = %service.name, user = %account.name, %error,
                        "cannot make a listener");
                    Refusal::ListenerFailed
                })?;
        stored::store(&listener, (service.id, account.uid));
        self.adopt(service, account, host, listener)
    }

    /// Takes up a user's queue of an earlier keeper, with its listener if that was stored.
    ///
    /// # Errors
    /// As [`Queues::ensure`].
    pub fn restore(
        &self,
        service: &Service,
        account: &Account,
        host: &HostName,
        stored: &mut Stored,
    ) -> Result<(), Refusal> {
        let Some(name) = service.shared_account() else {
            return self.restore_own(service, account, Some(host), stored);
        };
        let owner = self.owner_at_restart(service, name, stored)?;
        self.restore_own(service, &owner, None, stored)?;
        self.ensure_member(service, &owner, account)
    }

    /// Takes up an earlier keeper's shared queues for which no user has a session: their processes continue.
    pub fn restore_shared(&self, policy: &Checked, stored: &mut Stored) {
        for service in policy.policy.services.values() {
            let Some(name) = service.shared_account() else {
                continue;
            };
            let restored = self.owner_at_restart(service, name, stored);
            let restored = restored.and_then(|owner| {
                if stored.has((service.id, owner.uid)) {
                    self.restore_own(service, &owner, None, stored)?;
                }
                Ok(())
            });
            if let Err(refusal) = restored {
                tracing::warn!(service = %service.name, reason = refusal.name(),
                    "a shared service is not taken up again: {refusal}");
            }
        }
    }

    /// The account of a shared service. If the look-up fails, its user id is that of the stored listener.
    fn owner_at_restart(
        &self,
        service: &Service,
        name: &UserName,
        stored: &Stored,
    ) -> Result<Account, Refusal> {
        let found = self.shared_account(service, name);
        found.or_else(|refusal| {
            let uid = stored.uid_at(service.id).ok_or(refusal)?;
            let name = name.clone();
            Ok(Account { name, uid })
        })
    }

    fn restore_own(
        &self,
        service: &Service,
        account: &Account,
        host: Option<&HostName>,
        stored: &mut Stored,
    ) -> Result<(), Refusal> {
        let key = (service.id, account.uid);
        if self.common.all.lock().contains_key(&key) {
            return self.ensure_own(service, account, host);
        }
        let Some(listener) = stored.take(key) else {
            self.end_unreachable(service, account);
            return self.ensure_own(service, account, host);
        };
        // The former keeper may have ended while it was refusing waiting connections.
        if let Err(error) = usher_kernel::listener::reopen(listener.as_fd(), BACKLOG) {
            tracing::error!(%error, "cannot listen again on a stored listener");
        }
        self.adopt(service, account, host, listener)
    }

    /// Makes a queue with this listener.
    fn adopt(
        &self,
        service: &Service,
        account: &Account,
        host: Option<&HostName>,
        listener: OwnedFd,
    ) -> Result<(), Refusal> {
        let key = (service.id, account.uid);
        keep_alive(&listener, service);
        let group = self
            .equip(service, account, &listener)
            .inspect_err(|_| stored::forget(key))?;
        let left = self.common.leaving.queues.lock().contains_key(&key);
        let queue = Queue::start(
            &self.common,
            service,
            account.clone(),
            host,
            listener,
            group,
            left,
        );
        self.common.all.lock().insert(key, queue);
        Ok(())
    }

    /// Makes the group of the user's processes, and lets the kernel admit connections to the listener.
    fn equip(
        &self,
        service: &Service,
        account: &Account,
        listener: &OwnedFd,
    ) -> Result<Group, Refusal> {
        let failed = |error: &dyn std::error::Error, what: &str| {
            tracing::error!(%error, user = %account.name, "{what}");
            Refusal::ListenerFailed
        };
        let Common { host, groups, .. } = &*self.common;
        let group = groups
            .at(service, account.uid)
            .map_err(|error| failed(&error, "cannot make a worker's cgroup"))?;
        host.destinations.govern(&group, service.id)?;
        host.fence
            .own_listener(listener.as_fd(), account.uid)
            .map_err(|error| failed(&error, "cannot make a listener its user's own"))?;
        // The account of a shared queue has no session: the users of the queue have entries of their own.
        if service.shared_account().is_none() {
            self.common
                .admit_to((service.id, account.uid), listener.as_fd())?;
        }
        Ok(group)
    }
}

/// The port to bind a service's listeners to. A service's own process binds the service's port itself, for
/// all addresses, so the users' listeners get any free port (0).
fn port(service: &Service) -> u16 {
    match service.served_by {
        ServedBy::Program(_) | ServedBy::Backend(_) => service.listen,
        ServedBy::Account(_) => 0,
    }
}

/// Sets keepalive: connections accepted from now on end when their client host is silent for as long as the
/// policy says.
pub(super) fn keep_alive(listener: &OwnedFd, service: &Service) {
    if let Err(error) = usher_kernel::listener::keep_alive(listener.as_fd(), service.keepalive) {
        tracing::error!(%error, service = %service.name,
            "cannot set keepalive: connections of hosts that have vanished do not end");
    }
}
