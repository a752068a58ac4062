//! The members of shared queues: users of a service with one process for all. Each has an entry in the
//! kernel's table that leads to the one listener; without it, none of the user's connections is admitted.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use usher_base::UserName;
use usher_policy::Service;
use usher_proto::refusal::Refusal;

use super::queue::Queue;
use super::{Key, Queues};
use crate::keeper::host::accounts::Account;

/// The members, by service and user.
#[derive(Default)]
pub struct Members(Mutex<HashMap<Key, Member>>);

/// A user of a shared queue.
#[derive(Clone)]
pub struct Member {
    pub account: Account,
    /// The queue.
    pub queue: Arc<Queue>,
}

impl Members {
    /// The number of members of all queues.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether a user is a member.
    pub fn has(&self, key: Key) -> bool {
        self.0.lock().contains_key(&key)
    }

    /// All members, with their keys.
    pub fn list(&self) -> Vec<(Key, Member)> {
        let members = self.0.lock();
        let members = members.iter();
        members
            .map(|(key, member)| (*key, member.clone()))
            .collect()
    }

    /// Forgets a member.
    pub fn remove(&self, key: Key) {
        self.0.lock().remove(&key);
    }

    /// The members of one queue.
    pub fn of(&self, queue: &Arc<Queue>) -> Vec<Key> {
        let members = self.0.lock();
        let of_it = members
            .iter()
            .filter(|(_, member)| Arc::ptr_eq(&member.queue, queue));
        of_it.map(|(key, _)| *key).collect()
    }
}

impl Queues {
    /// The account as which one process serves all users of a service.
    ///
    /// # Errors
    /// [`Refusal::ListenerFailed`]: the user is told that the server's log says why.
    pub(super) fn shared_account(
        &self,
        service: &Service,
        name: &UserName,
    ) -> Result<Account, Refusal> {
        self.common.host.shared_account(name).map_err(|refusal| {
            tracing::error!(service = %service.name, account = %name, reason = refusal.name(),
                "cannot serve anybody: the service's account is not known: {refusal}");
            Refusal::ListenerFailed
        })
    }

    /// Makes a user a member of the shared queue of a service's account.
    ///
    /// # Errors
    /// [`Refusal::UserNotPermitted`] for the service's own account, [`Refusal::ListenerTableFull`],
    /// [`Refusal::ListenerFailed`].
    pub(super) fn enter_member(
        &self,
        service: &Service,
        owner: &Account,
        account: &Account,
    ) -> Result<(), Refusal> {
        // The policy refuses its name, but an account may have several.
        if account.uid == owner.uid {
            tracing::error!(user = %account.name, service = %service.name,
                "the user's account has the same user id as the service's own");
            return Err(Refusal::UserNotPermitted);
        }
        let queue = self
            .common
            .all
            .lock()
            .get(&(service.id, owner.uid))
            .cloned();
        // One of another policy ends in a moment.
        let queue = queue.filter(|queue| queue.belongs_to(service));
        let queue = queue.ok_or(Refusal::ListenerFailed)?;
        let key = (service.id, account.uid);
        self.common.admit_to(key, queue.listener.as_fd())?;
        let account = account.clone();
        let member = Member { account, queue };
        self.common.members.0.lock().insert(key, member);
        Ok(())
    }

    /// Whether the connections of a user who has a session go where the service's policy says: another style
    /// or account means other processes.
    pub fn are_served_by(&self, service: &Service, key: Key) -> bool {
        let member = self.common.members.0.lock().get(&key).cloned();
        let queue = member.map(|member| member.queue);
        let queue = queue.or_else(|| self.common.all.lock().get(&key).cloned());
        queue.is_none_or(|queue| queue.belongs_to(service))
    }

    /// The users of shared queues.
    pub fn members(&self) -> Vec<Key> {
        let members = self.common.members.list().into_iter();
        members.map(|(key, _)| key).collect()
    }

    /// Whether a shared queue has users.
    pub fn has_members(&self, queue: &Arc<Queue>) -> bool {
        !self.common.members.of(queue).is_empty()
    }

    /// Whether an account's processes serve all users of a service.
    pub fn is_shared_by(&self, service: u32, uid: u32) -> bool {
        let queue = self.common.all.lock().get(&(service, uid)).cloned();
        queue.is_some_and(|queue| queue.is_shared)
    }
}
