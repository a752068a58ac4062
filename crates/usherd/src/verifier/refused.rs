//! How many requests of other hosts were refused, by reason.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use usher_proto::refusal::Refusal;

/// The counts since the start, whether the verifier or the keeper has refused. No user is named: there are
/// no more entries than reasons.
#[derive(Debug, Default)]
pub struct Refused(Mutex<BTreeMap<&'static str, u64>>);

impl Refused {
    /// Counts a refusal.
    pub fn count(&self, refusal: Refusal) {
        *self.0.lock().entry(refusal.name()).or_default() += 1;
    }

    /// Names and numbers, for views.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        let counts = self.0.lock();
        let named = counts.iter();
        named
            .map(|(name, number)| (format!("refused_{name}"), *number))
            .collect()
    }
}
