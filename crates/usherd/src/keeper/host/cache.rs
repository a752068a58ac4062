//! Cached answers about accounts: looking one up takes longer than starting a process.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use usher_proto::refusal::Refusal;

/// Cached answers. A slow look-up occupies one thread, and delays only the callers that wait for it.
pub struct Cache<K, T> {
    answers: Mutex<HashMap<K, Arc<Answer<T>>>>,
    /// Limit of cached answers. Beyond it old answers are dropped; if there are none, all are.
    most: usize,
    /// The time limit of an answer.
    limit: Duration,
    is_recent: fn(&T) -> bool,
}

/// An answer; none before the look-up. Locked by the caller that looks it up, and by those that wait for it.
pub type Answer<T> = tokio::sync::Mutex<Option<T>>;

impl<K: Clone + Debug + Eq + Hash, T: Clone + Send + 'static> Cache<K, T> {
    /// An empty cache. An answer must come within the `limit`, and counts as long as it `is_recent`.
    pub fn new(most: usize, limit: Duration, is_recent: fn(&T) -> bool) -> Self {
        Self {
            answers: Mutex::default(),
            most,
            limit,
            is_recent,
        }
    }

    /// The recent answer about an account (`key`), if it `counts`, or else the result of `look_up`. `look_up`
    /// asks the name service (NSS), not on the reactor's thread, because NSS may ask other hosts. It
    /// continues even if no caller waits any longer: the next caller finds the answer.
    ///
    /// # Errors
    /// [`Refusal::KeeperUnavailable`] when the look-up fails, or has not ended in time.
    pub async fn find(
        &self,
        key: &K,
        counts: impl FnOnce(&T) -> bool,
        look_up: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let answered = tokio::time::timeout(self.limit, self.find_in_time(key, counts, look_up));
        answered.await.unwrap_or_else(|_| {
            tracing::error!(?key, limit = ?self.limit, "the name service has not answered in time");
            Err(Refusal::KeeperUnavailable)
        })
    }

    async fn find_in_time(
        &self,
        key: &K,
        counts: impl FnOnce(&T) -> bool,
        look_up: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let mut answer = self.answer(key).lock_owned().await;
        if let Some(known) = answer.as_ref()
            && (self.is_recent)(known)
            && counts(known)
        {
            return Ok(known.clone());
        }
        let looked_up = tokio::task::spawn_blocking(move || answer.insert(look_up()).clone());
        looked_up.await.map_err(|error| {
            tracing::error!(%error, "cannot look up an account");
            Refusal::KeeperUnavailable
        })
    }

    /// The place of an answer.
    pub fn answer(&self, key: &K) -> Arc<Answer<T>> {
        let mut all = self.answers.lock();
        if all.len() >= self.most && !all.contains_key(key) {
            all.retain(|_, answer| {
                let answer = answer.try_lock();
                answer.map_or(true, |answer| answer.as_ref().is_some_and(self.is_recent))
            });
            if all.len() >= self.most {
                all.clear();
            }
        }
        Arc::clone(all.entry(key.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_up_that_hangs_has_a_limit_and_others_have_answers() {
        let cache = Cache::<String, u8>::new(100, Duration::from_millis(50), |_| true);
        let [slow, other] = ["slow", "other"].map(str::to_owned);
        let (go_on, waiting) = std::sync::mpsc::channel::<()>();
        let hangs = move || waiting.recv().map_or(1, |()| 2);
        let answer = cache.find(&slow, |_| true, hangs).await;
        assert_eq!(answer, Err(Refusal::KeeperUnavailable));
        assert_eq!(cache.find(&other, |_| true, || 3).await, Ok(3));
        go_on.send(()).unwrap();
        // The answer that came late counts.
        let cache = Cache {
            limit: Duration::from_secs(600),
            ..cache
        };
        assert_eq!(cache.find(&slow, |_| true, || 4).await, Ok(2));
    }

    #[test]
    fn no_more_accounts_are_kept_than_there_is_room_for() {
        let cache = Cache::<String, ()>::new(100, Duration::MAX, |()| true);
        for number in 0..=100 {
            cache.answer(&format!("user{number}"));
        }
        assert!(cache.answers.lock().len() <= 100);
    }
}
