//! Finds the sockets that are older than the policy, or that another program made and passed on.
//!
//! Each visit looks at all descriptors of the host. Users choose how many there are: hundreds of processes
//! with half a million descriptors each take half a minute of work. So a visit is made in parts. Between them
//! the daemon does its other work, or rests as long as it has worked.

use std::time::{Duration, Instant};

use usher_ipsec::IpsecError;

use super::state::{Finding, State};

/// For how long after a change each visit marks connections again. Connections whose handshake was under way
/// at the change may have the former mark, and their handshakes have ended by then.
const SETTLING: Duration = Duration::from_secs(120);

/// How long a change of the policy waits for the sockets that it governs. If it takes longer, they are
/// found after the change is in force.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The longest time for a visit; new processes prolong it. The next visit begins with the oldest ones again.
const LONGEST: Duration = Duration::from_secs(120);

/// The part of a visit during which the daemon does nothing else.
pub(super) const PART: Duration = Duration::from_millis(100);

/// How long the daemon does other work, or nothing, before the next part.
pub(super) const REST: Duration = Duration::from_millis(100);

impl State {
    /// Follows a change of tables, programs or held peers: adopts sockets, and gives connections their
    /// marks; at once, unless there are very many descriptors.
    pub(super) fn settle(&mut self) {
        self.changed = Some(Instant::now());
        // A visit that is under way is a long one, and is not waited for.
        let was_going_on = self.finding.goes_on();
        self.finding.is_due = true;
        let is_complete = !was_going_on && self.adopt(AT_ONCE);
        // Mark connections now: they need no visit, and would be marked only at its end.
        if let Some(ipsec) = self.ipsec.as_ref().filter(|_| !is_complete) {
            ipsec.mark_connections();
        }
    }

    /// Governs the sockets that are older than the policy, or that another program made and passed on:
    /// continues or begins a visit, for at most `limit`. Returns whether nothing is left to do. A failure
    /// does not end what is in force; it is reported once, and in `usher protection show`.
    pub(super) fn adopt(&mut self, limit: Duration) -> bool {
        let begun = Instant::now();
        loop {
            match self.adopt_for(limit.saturating_sub(begun.elapsed())) {
                Ok(true) if !self.finding.is_due => break,
                Ok(true) if begun.elapsed() < limit => {}
                Ok(_) => return false,
                Err(error) => {
                    self.finding = Finding::default();
                    self.note_unlisted(error.to_string());
                    return true;
                }
            }
        }
        self.unlisted = None;
        true
    }

    /// Returns whether the visit is complete.
    fn adopt_for(&mut self, limit: Duration) -> Result<bool, IpsecError> {
        let is_settled = self.changed.is_none_or(|since| since.elapsed() > SETTLING);
        let Some(ipsec) = &mut self.ipsec else {
            self.finding = Finding::default();
            return Ok(true);
        };
        let finding = &mut self.finding;
        let (visit, begun) = match &mut finding.visit {
            Some(visit) => visit,
            none => {
                let marks_always = finding.is_due || !is_settled;
                finding.is_due = false;
                none.insert((ipsec.begin_adopting(marks_always)?, Instant::now()))
            }
        };
        let (adopted, is_complete) = ipsec.go_on(visit, limit)?;
        let is_late = begun.elapsed() > LONGEST;
        if is_complete || is_late {
            finding.visit = None;
        }
        if is_late && !is_complete {
            finding.is_due = true;
            self.note_unlisted(format!(
                "looking through all descriptors of this host takes longer than {} s: some user has \
                 very many descriptors or processes; limit them (LimitNOFILE=, TasksMax=)",
                LONGEST.as_secs()
            ));
        }
        self.note_adopted(adopted);
        Ok(is_complete)
    }

    /// Reports why older sockets cannot be found, once.
    fn note_unlisted(&mut self, error: String) {
        if self.unlisted.as_ref() != Some(&error) {
            tracing::error!(error, "cannot find sockets that are older than the policy");
        }
        self.unlisted = Some(error);
    }

    /// Counts sockets that are governed from now on.
    pub(super) fn note_adopted(&mut self, adopted: usize) {
        if adopted > 0 {
            tracing::info!(
                sockets = adopted,
                "sockets that are older than the policy are governed now"
            );
        }
        self.adopted += adopted as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_protection_nothing_is_left_to_find() {
        let mut state = State::default();
        state.settle();
        assert!(!state.finding.goes_on());
        assert!(state.adopt(Duration::ZERO));
        assert_eq!((state.adopted, state.unlisted), (0, None));
    }
}
