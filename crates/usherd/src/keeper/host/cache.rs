//! Answers about accounts, which take longer to look up than a process to start.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use usher_base::UserName;
use usher_proto::refusal::Refusal;

/// Cached answers. A slow look-up occupies one thread, and delays only the callers that wait for it.
pub struct Cache<T> {
    answers: Mutex<HashMap<UserName, Arc<Answer<T>>>>,
    /// Most cached accounts; beyond this, old answers are dropped, or all.
    most: usize,
    is_recent: fn(&T) -> bool,
}

/// Locked by the caller that looks it up, and by those that wait for it.
pub type Answer<T> = tokio::sync::Mutex<Option<T>>;

impl<T: Clone + Send + 'static> Cache<T> {
    /// An empty cache. An answer counts as long as it `is_recent`.
    pub fn new(most: usize, is_recent: fn(&T) -> bool) -> Self {
        Self {
            answers: Mutex::default(),
            most,
            is_recent,
        }
    }

    /// The recent answer about an account, if it `counts`, or else the result of `look_up`. That asks
    /// the name service (NSS), not on the reactor's thread, because it may ask other hosts. It continues
    /// even if no caller waits any longer: the next caller finds the answer.
    ///
    /// # Errors
    /// [`Refusal::NoLocalAccount`] when the look-up fails.
    pub async fn find(
        &self,
        name: &UserName,
        counts: impl FnOnce(&T) -> bool,
        look_up: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let mut answer = self.answer(name).lock_owned().await;
        if let Some(known) = answer.as_ref()
            && (self.is_recent)(known)
            && counts(known)
        {
            return Ok(known.clone());
        }
        let looked_up = tokio::task::spawn_blocking(move || answer.insert(look_up()).clone());
        looked_up.await.map_err(|error| {
            tracing::error!(%error, "looking up an account");
            Refusal::NoLocalAccount
        })
    }

    /// The place of an account's answer.
    pub fn answer(&self, name: &UserName) -> Arc<Answer<T>> {
        let mut all = self.answers.lock();
        if all.len() >= self.most && !all.contains_key(name) {
            all.retain(|_, answer| {
                let answer = answer.try_lock();
                answer.map_or(true, |answer| answer.as_ref().is_some_and(self.is_recent))
            });
            if all.len() >= self.most {
                all.clear();
            }
        }
        Arc::clone(all.entry(name.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_accounts_are_kept_than_there_is_room_for() {
        let cache = Cache::<()>::new(100, |()| true);
        for number in 0..=100 {
            cache.answer(&format!("user{number}").parse().unwrap());
        }
        assert!(cache.answers.lock().len() <= 100);
    }
}
