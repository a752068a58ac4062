//! The members of shared queues: users of a service with one process for all. The kernel's table of listeners
//! has an entry for each member, which leads to the queue's listener. Without an entry, none of the user's
//! connections is admitted.

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
    /// The shared queue.
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

    /// Whether a user is a member of this queue.
    fn is_of(&self, key: Key, queue: &Arc<Queue>) -> bool {
        let members = self.0.lock();
        let member = members.get(&key);
        member.is_some_and(|member| Arc::ptr_eq(&member.queue, queue))
    }

    /// Whether a queue has members.
    fn are_there(&self, queue: &Arc<Queue>) -> bool {
        let members = self.0.lock();
        members
            .values()
            .any(|member| Arc::ptr_eq(&member.queue, queue))
    }

    /// The keys of all members.
    fn keys(&self) -> Vec<Key> {
        self.0.lock().keys().copied().collect()
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
    /// The account as which one process serves all users of a service. While the name service does not
    /// answer, the account of the service's present queue.
    ///
    /// # Errors
    /// [`Refusal::ListenerFailed`], which sends the user to the server's log.
    pub(super) fn shared_account(
        &self,
        service: &Service,
        name: &UserName,
    ) -> Result<Account, Refusal> {
        let found = self.common.host.shared_account(name);
        let found = found.or_else(|refusal| match refusal {
            Refusal::KeeperUnavailable => self.present_account(service).ok_or(refusal),
            refusal => Err(refusal),
        });
        found.map_err(|refusal| {
            tracing::error!(service = %service.name, account = %name, reason = refusal.name(),
                "cannot serve anybody: the service's account is not known: {refusal}");
            Refusal::ListenerFailed
        })
    }

    fn present_account(&self, service: &Service) -> Option<Account> {
        let queues = self.list().into_iter();
        let mut of_service = queues.filter(|queue| queue.key.0 == service.id);
        let queue = of_service.find(|queue| queue.is_shared && queue.belongs_to(service))?;
        Some(queue.account.clone())
    }

    /// Makes sure that a user is a member of the shared queue of a service's account.
    ///
    /// # Errors
    /// [`Refusal::UserNotPermitted`] for the service's own account, [`Refusal::ListenerTableFull`],
    /// [`Refusal::ListenerFailed`].
    pub(super) fn ensure_member(
        &self,
        service: &Service,
        owner: &Account,
        account: &Account,
    ) -> Result<(), Refusal> {
        // The policy does not let a service's account be its user, but one user id may have several names.
        if account.uid == owner.uid {
            tracing::error!(user = %account.name, service = %service.name,
                "the user's account has the same user id as the service's own");
            return Err(Refusal::UserNotPermitted);
        }
        self.ensure_own(service, owner, None)?;
        let queue = self
            .common
            .all
            .lock()
            .get(&(service.id, owner.uid))
            .cloned();
        let queue = queue.ok_or(Refusal::ListenerFailed)?;
        let key = (service.id, account.uid);
        if self.common.members.is_of(key, &queue) {
            return Ok(());
        }
        // The user may have a queue of a former policy.
        self.remove(key);
        self.common.admit_to(key, queue.listener.as_fd())?;
        let account = account.clone();
        let member = Member { account, queue };
        self.common.members.0.lock().insert(key, member);
        Ok(())
    }

    /// Whether a user's queue is one that the service's policy demands: another style or account means other
    /// processes. True for a user without a queue.
    pub fn are_served_by(&self, service: &Service, key: Key) -> bool {
        let member = self.common.members.0.lock().get(&key).cloned();
        let queue = member.map(|member| member.queue);
        let queue = queue.or_else(|| self.common.all.lock().get(&key).cloned());
        queue.is_none_or(|queue| queue.belongs_to(service))
    }

    /// Whether a user is a member of a shared queue.
    pub fn is_member(&self, key: Key) -> bool {
        self.common.members.has(key)
    }

    /// The users of shared queues.
    pub fn members(&self) -> Vec<Key> {
        self.common.members.keys()
    }

    /// Whether a shared queue has users.
    pub fn has_members(&self, queue: &Arc<Queue>) -> bool {
        self.common.members.are_there(queue)
    }

    /// Whether an account's processes serve all users of a service.
    pub fn is_shared_by(&self, service: u32, uid: u32) -> bool {
        let queue = self.common.all.lock().get(&(service, uid)).cloned();
        queue.is_some_and(|queue| queue.is_shared)
    }
}
