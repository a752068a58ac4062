//! Places that all users share, of which one user has a part at most: nobody keeps the others out.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// So many places.
pub struct Places {
    all: usize,
    of_user: usize,
    taken: Mutex<HashMap<u32, usize>>,
}

/// One of them, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    uid: u32,
}

/// Why there is no place.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Full {
    /// This user has as many as one may.
    #[error("you have too many connections ({0})")]
    User(usize),
    /// All are taken.
    #[error("all users together have too many connections ({0})")]
    All(usize),
}

impl Places {
    /// `all` places, of which one user may have `of_user`.
    pub fn new(all: usize, of_user: usize) -> Arc<Self> {
        Arc::new(Self {
            all,
            of_user,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for this user.
    ///
    /// # Errors
    /// [`Full`].
    pub fn take(self: &Arc<Self>, uid: u32) -> Result<Place, Full> {
        let mut taken = self.taken.lock();
        let all: usize = taken.values().sum();
        let of_user = taken.get(&uid).copied().unwrap_or_default();
        if of_user >= self.of_user {
            return Err(Full::User(of_user));
        }
        if all >= self.all {
            return Err(Full::All(all));
        }
        taken.insert(uid, of_user + 1);
        Ok(Place {
            places: Arc::clone(self),
            uid,
        })
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.lock().values().sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(count) = taken.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_takes_no_more_than_a_part() {
        let places = Places::new(3, 2);
        let first = places.take(1).unwrap();
        let _second = places.take(1).unwrap();
        assert_eq!(places.take(1).err(), Some(Full::User(2)));
        let _other = places.take(2).unwrap();
        assert_eq!(places.take(2).err(), Some(Full::All(3)));
        drop(first);
        let _again = places.take(2).unwrap();
        assert_eq!(places.taken(), 3);
    }
}
