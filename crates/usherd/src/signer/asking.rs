//! Decides when to request tokens: not where they failed to pass a short while ago, by one task at a
//! time for a user and an address, and with a pause between renewals.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use usher_kernel::ticket::TicketKey;

/// The time for which connections are announced without tokens before tokens are requested again. The pause
/// is quadrupled each time that tokens are refused again at once, so that a user on a path that passes no
/// tokens is seldom affected.
pub const PAUSE: Duration = Duration::from_secs(60);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(8 * 3600);
/// The pause if tokens had passed before. Then a refused token is late: it was drawn long before its SYN
/// left, for instance by a program that had to wait for a processor. The pause is longer than a program waits
/// for an answer to its token, so that other late tokens are reported within it.
pub const LATE: Duration = Duration::from_secs(5);
/// The time from one renewal to the next. Drawing faster does not make the signer sign faster.
const SPACING: Duration = Duration::from_millis(250);

/// The requests for each user and address. There are at most as many entries as pairs of a user and
/// a service that the policy permits.
#[derive(Debug, Default)]
pub struct Asking {
    tried: HashMap<TicketKey, Tried>,
    rounds: HashMap<TicketKey, Round>,
}

/// A request for tokens. The next one may come at `until`.
#[derive(Debug)]
struct Tried {
    until: Instant,
    pause: Duration,
    /// Tokens did not pass.
    refused: bool,
}

#[derive(Debug)]
struct Round {
    begun: Instant,
    under_way: bool,
}

impl Asking {
    /// Whether to request tokens now: no request is under way, and the pause after the last one is over. On
    /// true the caller must request tokens, and then call [`Asking::end`].
    pub fn claim(&mut self, key: TicketKey, now: Instant) -> bool {
        // Keep expired entries for a while, to recognise repeated refusals.
        self.tried
            .retain(|_, tried| now < tried.until + LONGEST_PAUSE);
        let waiting = self.tried.get(&key).is_some_and(|tried| now < tried.until);
        if waiting || self.begin(key, now).is_none() {
            return false;
        }
        let tried = self.tried.entry(key).or_insert(Tried {
            until: now,
            pause: PAUSE,
            refused: false,
        });
        tried.until = now + tried.pause;
        tried.refused = false;
        true
    }

    /// Begins a request, and returns the time from which it may be sent. `None`: a request is under way.
    pub fn begin(&mut self, key: TicketKey, now: Instant) -> Option<Instant> {
        self.rounds
            .retain(|_, round| round.under_way || now < round.begun + SPACING);
        let former = self.rounds.get(&key);
        if former.is_some_and(|round| round.under_way) {
            return None;
        }
        let begun = former.map_or(now, |round| round.begun + SPACING);
        let under_way = true;
        self.rounds.insert(key, Round { begun, under_way });
        Some(begun)
    }

    /// Ends a request.
    pub fn end(&mut self, key: &TicketKey) {
        if let Some(round) = self.rounds.get_mut(key) {
            round.under_way = false;
        }
    }

    /// Notes that a ticket was granted: when it is gone, another may be requested at once.
    pub fn granted(&mut self, key: &TicketKey, now: Instant) {
        if let Some(tried) = self.tried.get_mut(key) {
            tried.until = now;
        }
    }

    /// Notes that a token did not pass. `proven`: other tokens had passed.
    pub fn refused(&mut self, key: TicketKey, proven: bool, now: Instant) {
        let former = self.tried.get(&key).map(|tried| tried.pause);
        let pause = former
            .filter(|_| !proven)
            .map_or(PAUSE, |pause| (pause * 4).min(LONGEST_PAUSE));
        let tried = Tried {
            until: now + if proven { LATE } else { pause },
            pause,
            refused: true,
        };
        self.tried.insert(key, tried);
    }

    /// Whether tokens are known not to pass.
    pub fn is_suspended(&self, key: &TicketKey, now: Instant) -> bool {
        let tried = self.tried.get(key);
        tried.is_some_and(|tried| tried.refused && now < tried.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(uid: u32) -> TicketKey {
        TicketKey {
            uid,
            server: ([192, 0, 2, 1], 143).into(),
        }
    }

    #[test]
    fn one_asks_at_a_time_and_again_after_a_pause() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        assert!(asking.claim(key(1), now));
        assert!(!asking.claim(key(1), now) && asking.claim(key(2), now));
        // The first request is under way, however long it takes.
        assert!(!asking.claim(key(1), now + PAUSE));
        asking.end(&key(1));
        assert!(!asking.claim(key(1), now + PAUSE - SPACING));
        assert!(asking.claim(key(1), now + PAUSE));
    }

    #[test]
    fn after_a_ticket_another_may_be_asked_for_at_once() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        assert!(asking.claim(key(1), now));
        asking.granted(&key(1), now);
        asking.end(&key(1));
        assert!(asking.claim(key(1), now + SPACING));
    }

    #[test]
    fn renewals_keep_their_distance() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        assert_eq!(asking.begin(key(1), now), Some(now));
        assert_eq!(asking.begin(key(1), now), None);
        assert_eq!(asking.begin(key(1), now + SPACING * 2), None);
        assert_eq!(asking.begin(key(2), now), Some(now));
        asking.end(&key(1));
        assert_eq!(asking.begin(key(1), now), Some(now + SPACING));
        asking.end(&key(1));
        assert_eq!(asking.begin(key(1), now), Some(now + SPACING * 2));
        asking.end(&key(1));
        let later = now + SPACING * 3;
        assert_eq!(asking.begin(key(1), later), Some(later));
    }

    #[test]
    fn pauses_grow_while_tokens_are_refused_at_once() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        assert!(!asking.is_suspended(&key(1), now));
        assert!(asking.claim(key(1), now));
        asking.end(&key(1));
        assert!(!asking.is_suspended(&key(1), now));
        asking.refused(key(1), false, now);
        let over = now + PAUSE * 4;
        assert!(asking.is_suspended(&key(1), over - SPACING));
        assert!(!asking.claim(key(1), over - SPACING));
        assert!(!asking.is_suspended(&key(1), over) && asking.claim(key(1), over));
        asking.end(&key(1));
        asking.refused(key(1), false, over);
        assert!(!asking.claim(key(1), over + PAUSE * 16 - SPACING));
        // After tokens had passed, the pause is short, and the next one is the first long one.
        asking.refused(key(1), true, over);
        assert!(!asking.claim(key(1), over + LATE - SPACING));
        assert!(asking.claim(key(1), over + LATE));
        asking.end(&key(1));
        asking.refused(key(1), false, over + LATE);
        assert!(!asking.claim(key(1), over + LATE + PAUSE * 4 - SPACING));
        assert!(asking.claim(key(1), over + LATE + PAUSE * 4));
    }
}
