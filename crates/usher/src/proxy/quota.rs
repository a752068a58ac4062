//! A quota of connections for all users together, and a smaller one for each user: one user cannot
//! keep the others out.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Limits, and the permits that are held.
pub struct Quota {
    all: usize,
    of_user: usize,
    held: Mutex<HashMap<u32, usize>>,
}

/// Counts against a quota until it is dropped.
pub struct Permit {
    quota: Arc<Quota>,
    uid: u32,
}

/// Why there is no permit.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Exhausted {
    /// This user holds as many as one user may.
    #[error("you have too many connections ({0})")]
    User(usize),
    /// All users together hold as many as there are.
    #[error("all users together have too many connections ({0})")]
    All(usize),
}

impl Quota {
    /// `all` permits, of which one user may hold `of_user`.
    pub fn new(all: usize, of_user: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            of_user,
            held: Mutex::default(),
        })
    }

    /// Takes a permit for this user.
    pub fn acquire(self: &Arc<Self>, uid: u32) -> Result<Permit, Exhausted> {
        let mut held = self.held.lock();
        let all: usize = held.values().sum();
        let of_user = held.get(&uid).copied().unwrap_or_default();
        if of_user >= self.of_user {
            return Err(Exhausted::User(of_user));
        }
        if all >= self.all {
            return Err(Exhausted::All(all));
        }
        held.insert(uid, of_user + 1);
        Ok(Permit {
            quota: Arc::clone(self),
            uid,
        })
    }

    /// How many permits are held.
    pub fn held(&self) -> usize {
        self.held.lock().values().sum()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = self.quota.held.lock();
        if let Some(count) = held.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_holds_no_more_than_a_part() {
        let quota = Quota::new(3, 2);
        let first = quota.acquire(1).unwrap();
        let _second = quota.acquire(1).unwrap();
        assert_eq!(quota.acquire(1).err(), Some(Exhausted::User(2)));
        let _other = quota.acquire(2).unwrap();
        assert_eq!(quota.acquire(2).err(), Some(Exhausted::All(3)));
        drop(first);
        let _again = quota.acquire(2).unwrap();
        assert_eq!(quota.held(), 3);
    }
}
