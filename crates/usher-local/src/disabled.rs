//! Users whom a daemon refuses though the configuration that is stored does not say so (yet): a full
//! disk must not keep a user from being disabled.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use usher_proto::name::UserName;

use crate::applied::Applied;
use crate::checked::Checked;

/// In a daemon's memory only. As many as an administrator has disabled without a configuration's
/// saying so.
#[derive(Debug, Default)]
pub struct Disabled(Mutex<BTreeSet<UserName>>);

impl Disabled {
    /// Disables a user: the configuration that says so beside what is in force.
    pub fn disable(&self, user: UserName, in_force: &(Applied, Checked)) -> (Applied, Checked) {
        let mut fresh = in_force.clone();
        fresh.1.disabled.insert(user.clone());
        self.lock().insert(user);
        fresh
    }

    /// Takes that back: the configuration in force without it.
    pub fn enable(&self, user: &UserName, in_force: &(Applied, Checked)) -> (Applied, Checked) {
        let mut fresh = in_force.clone();
        let stored = fresh.0.users.get(user);
        if self.lock().remove(user) && stored.is_none_or(|user| user.disabled.is_none()) {
            fresh.1.disabled.remove(user);
        }
        fresh
    }

    /// Keeps the users disabled in a configuration that comes in force.
    pub fn keep(&self, fresh: &mut Checked) {
        fresh.disabled.extend(self.lock().iter().cloned());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<UserName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::applied::UserEntry;

    fn configuration(disabled: &[&str]) -> (Applied, Checked) {
        let mut applied = Applied::default();
        for user in disabled {
            let entry = UserEntry {
                disabled: Some("left".into()),
                ..UserEntry::default()
            };
            applied.users.insert(user.parse().unwrap(), entry);
        }
        let checked = applied.check().unwrap();
        (applied, checked)
    }

    #[test]
    fn a_disabled_user_stays_so_until_that_is_taken_back() {
        let alice: UserName = "alice".parse().unwrap();
        let is_disabled =
            |configuration: &(Applied, Checked)| configuration.1.disabled.contains(&alice);
        let disabled = Disabled::default();
        let in_force = disabled.disable(alice.clone(), &configuration(&[]));
        assert!(is_disabled(&in_force));
        // Something else is applied, and says nothing of her.
        let mut next = configuration(&["bob"]);
        disabled.keep(&mut next.1);
        assert!(is_disabled(&next));
        assert!(!is_disabled(&disabled.enable(&alice, &next)));
        let mut next = configuration(&[]);
        disabled.keep(&mut next.1);
        assert!(!is_disabled(&next));

        // Once it is taken back, what is stored counts.
        let in_force = disabled.disable(alice.clone(), &next);
        let mut stored = configuration(&["alice"]);
        disabled.keep(&mut stored.1);
        assert!(is_disabled(&stored) && is_disabled(&disabled.enable(&alice, &stored)));
        let mut enabled = configuration(&[]);
        disabled.keep(&mut enabled.1);
        assert!(!is_disabled(&enabled) && is_disabled(&in_force));
    }
}
