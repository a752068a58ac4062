//! The pairs of a peer's address and a class: which of them have SAs, when each may be negotiated, and
//! what the kernel's acquires mean for it.
//!
//! Programs cause acquires, by the addresses that they send from and to. So no acquire may shorten the
//! waits after failures for long, or end SAs that other programs use.

mod lost;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// First and longest wait after an attempt that failed.
const RETRYING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The wait after an attempt when the kernel asks. The waits of [`RETRYING`] go on growing.
const HURRIED: Duration = Duration::from_secs(5);

/// How long the host with the greater name waits for the other to begin, so that both rarely begin
/// at once. If they do, there are two pairs of SAs, of which one is ended: see `doubles`.
const COURTESY: Duration = Duration::from_secs(2);

/// How long an address without SAs is reported after the kernel asked for it last.
const REPORTING: Duration = Duration::from_secs(600);

/// Limit of source addresses of a pair that are known. Programs choose them.
const MOST_SOURCES: usize = 8;

/// A peer's address and a class: connection and reqid.
pub(super) type Pair = (String, u32);

/// The host that begins to negotiate a pair's SAs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    /// This one, ahead of need.
    Here,
    /// The peer. If it does not, this host after a while.
    There,
    /// The peer, or this host when the kernel asks for them.
    OnDemand,
}

/// All pairs of a configuration.
#[derive(Debug, Default)]
pub(super) struct Pairs(BTreeMap<Pair, State>);

#[derive(Debug)]
struct State {
    /// Nothing is negotiated before the kernel asks.
    on_demand: bool,
    /// The kernel has asked since the pair last had SAs.
    needed: bool,
    /// An attempt is under way.
    running: bool,
    /// When the next attempt may begin.
    next: Instant,
    /// The wait after the next failure.
    wait: Duration,
    /// When the last attempt ended.
    tried: Option<Instant>,
    /// The reason that the last attempt failed.
    failed: Option<String>,
    /// SAs are known.
    is_up: bool,
    /// The source addresses for which the kernel has asked, and that have not been looked at since.
    asked: BTreeSet<IpAddr>,
    /// The source addresses that have no SAs, and when the kernel last asked for each.
    bare: BTreeMap<IpAddr, Instant>,
    /// The SAs that the kernel did not have when it was asked last, by charon's number.
    missing: BTreeSet<String>,
}

impl State {
    fn new(begins: Begins, now: Instant) -> Self {
        Self {
            on_demand: false,
            needed: false,
            running: false,
            next: match begins {
                Begins::Here | Begins::OnDemand => now,
                Begins::There => now + COURTESY,
            },
            wait: RETRYING.0,
            tried: None,
            failed: None,
            is_up: false,
            asked: BTreeSet::new(),
            bare: BTreeMap::new(),
            missing: BTreeSet::new(),
        }
    }
}

impl Pairs {
    /// Keeps these pairs with what is known of them, adds those that are new, and forgets all others.
    pub(super) fn retain(&mut self, wanted: BTreeMap<Pair, Begins>, now: Instant) {
        self.0.retain(|pair, _| wanted.contains_key(pair));
        for (pair, begins) in wanted {
            let state = self.0.entry(pair);
            let state = state.or_insert_with(|| State::new(begins, now));
            state.on_demand = begins == Begins::OnDemand;
        }
    }

    /// No attempt is under way any more: another charon is there.
    pub(super) fn begin_again(&mut self, now: Instant) {
        for state in self.0.values_mut() {
            state.running = false;
            state.missing.clear();
            state.next = now;
            state.wait = RETRYING.0;
            state.failed = None;
        }
    }

    /// Lets attempts begin that wait after a failure, because its cause is over.
    pub(super) fn hurry(&mut self, now: Instant) {
        for state in self.0.values_mut().filter(|state| state.failed.is_some()) {
            state.next = state.next.min(now);
            state.wait = RETRYING.0;
        }
    }

    /// When the next attempt may begin; none: each pair has SAs, or waits for an attempt.
    pub(super) fn next(&self) -> Option<Instant> {
        self.missing().map(|(_, state)| state.next).min()
    }

    /// The pair whose attempt is due for the longest time.
    pub(super) fn due(&self, now: Instant) -> Option<Pair> {
        let due = self.missing().filter(|(_, state)| state.next <= now);
        let first = due.min_by_key(|(_, state)| state.next);
        first.map(|(pair, _)| pair.clone())
    }

    fn missing(&self) -> impl Iterator<Item = (&Pair, &State)> {
        let states = self.0.iter();
        let running = states.clone().filter(|(_, state)| state.running);
        // Other attempts of a busy connection wait: the one under way may make the IKE SA.
        let busy: BTreeSet<&str> = running.map(|(pair, _)| pair.0.as_str()).collect();
        let wanted = states.filter(|(_, state)| !state.on_demand || state.needed);
        wanted.filter(move |(pair, state)| !state.is_up && !busy.contains(pair.0.as_str()))
    }

    /// An attempt begins.
    pub(super) fn begin(&mut self, pair: &Pair) {
        if let Some(state) = self.0.get_mut(pair) {
            state.running = true;
        }
    }

    /// The attempt has ended, with this failure. Returns whether the reason is a new one.
    pub(super) fn end(&mut self, pair: &Pair, failed: Option<String>, now: Instant) -> bool {
        let Some(state) = self.0.get_mut(pair) else {
            return false;
        };
        state.running = false;
        state.tried = Some(now);
        state.next = now + state.wait;
        state.wait = RETRYING.1.min(state.wait * 2);
        let is_new = failed.is_some() && failed != state.failed;
        state.failed = failed;
        is_new
    }

    /// Returns whether the pair waits for the kernel to ask.
    pub(super) fn is_idle(&self, pair: &Pair) -> bool {
        let state = self.0.get(pair);
        state.is_some_and(|state| state.on_demand && !state.needed && !state.is_up)
    }

    /// The reason of the last attempt's failure.
    pub(super) fn failed(&self, pair: &Pair) -> Option<String> {
        self.0.get(pair)?.failed.clone()
    }

    /// Notes whether the pair has SAs. Returns whether they have come only now.
    pub(super) fn set_up(&mut self, pair: &Pair, is_up: bool) -> bool {
        let Some(state) = self.0.get_mut(pair) else {
            return false;
        };
        let is_new = is_up && !state.is_up;
        state.is_up = is_up;
        if is_new {
            state.needed = false;
            state.wait = RETRYING.0;
            state.failed = None;
        }
        is_new
    }

    /// Marks that the pair needs SAs, although the kernel does not ask for them.
    pub(super) fn need(&mut self, pair: &Pair) {
        if let Some(state) = self.0.get_mut(pair) {
            state.needed = true;
        }
    }

    /// Notes that the kernel asks for SAs of the pair from this source address. Without SAs, makes an attempt
    /// due. Returns whether there are SAs, which must be looked at then.
    pub(super) fn acquired(&mut self, pair: &Pair, source: IpAddr, now: Instant) -> bool {
        let Some(state) = self.0.get_mut(pair) else {
            return false;
        };
        if !state.is_up {
            state.need_now(now);
        } else if state.asked.len() < MOST_SOURCES {
            state.asked.insert(source);
        }
        state.is_up
    }

    /// This host's addresses that programs of the pair send from and that have no SAs.
    pub(super) fn bare(&self, pair: &Pair, now: Instant) -> Vec<IpAddr> {
        let state = self.0.get(pair);
        let bare = state.into_iter().flat_map(|state| &state.bare);
        let recent = bare.filter(|(_, asked)| now < **asked + REPORTING);
        recent.map(|(source, _)| *source).collect()
    }
}

impl State {
    /// When the next attempt may begin if the kernel asks.
    fn earliest(&self, now: Instant) -> Instant {
        self.tried.map_or(now, |tried| now.max(tried + HURRIED))
    }

    /// The SAs are gone, and are negotiated again.
    fn lose(&mut self, now: Instant) {
        self.is_up = false;
        self.needed = true;
        self.next = self.earliest(now);
    }

    /// The kernel asks, and charon has no SAs.
    fn need_now(&mut self, now: Instant) {
        self.next = self.next.min(self.earliest(now));
        self.needed = true;
    }

    /// The kernel asked for a source address that has no SAs.
    fn miss(&mut self, pair: &Pair, source: IpAddr, now: Instant) {
        self.bare.retain(|_, asked| *asked + REPORTING > now);
        if self.bare.len() == MOST_SOURCES && !self.bare.contains_key(&source) {
            return;
        }
        if self.bare.insert(source, now).is_none() {
            tracing::warn!(
                connection = pair.0,
                reqid = pair.1,
                %source,
                "a program sends from an address of this host that has no SAs: have it send from the \
                 address that routing chooses for the peer, or name this address in the `host` block of \
                 this host in the peer's policy"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQID: u32 = 0x7500;

    pub(super) fn pair() -> Pair {
        ("usher-mailhost".to_owned(), REQID)
    }

    pub(super) fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// The only pair, which has SAs or not.
    pub(super) fn pairs(is_up: bool, now: Instant) -> Pairs {
        let mut pairs = Pairs::default();
        pairs.retain(BTreeMap::from([(pair(), Begins::Here)]), now);
        pairs.set_up(&pair(), is_up);
        pairs
    }

    pub(super) const SECOND: Duration = Duration::from_secs(1);

    // Threat model: P61
    #[test]
    fn acquires_do_not_keep_the_waits_short() {
        let began = Instant::now();
        let mut now = began;
        let mut pairs = pairs(false, now);
        let refused = || Some("it does not answer".to_owned());
        let limit = Duration::from_secs(600);
        let mut attempts = 0;
        while now < began + limit {
            // A program that asks all the time.
            pairs.acquired(&pair(), address(1), now);
            if pairs.due(now).is_some() {
                pairs.begin(&pair());
                pairs.end(&pair(), refused(), now);
                attempts += 1;
            }
            now += Duration::from_millis(100);
        }
        assert!(attempts <= 125, "{attempts} in {limit:?}");
        // Without an acquire the wait has grown all the same.
        pairs.end(&pair(), refused(), now);
        now += RETRYING.1 - SECOND;
        assert_eq!(pairs.due(now), None);
        now += SECOND;
        assert_eq!(pairs.due(now), Some(pair()));
        // The first acquire after a quiet while is heeded at once.
        pairs.end(&pair(), refused(), now);
        now += HURRIED;
        assert_eq!(pairs.due(now), None);
        pairs.acquired(&pair(), address(1), now);
        assert_eq!(pairs.due(now), Some(pair()));
    }

    #[test]
    fn what_is_on_demand_waits_for_the_kernel_to_ask() {
        let now = Instant::now();
        let mut pairs = Pairs::default();
        let with = |begins| BTreeMap::from([(pair(), begins)]);
        pairs.retain(with(Begins::OnDemand), now);
        pairs.begin_again(now);
        assert_eq!(pairs.due(now + COURTESY), None);
        assert!(pairs.is_idle(&pair()));
        pairs.acquired(&pair(), address(1), now);
        assert_eq!(pairs.due(now), Some(pair()));
        // The peer's SAs serve it as well, and when they are gone it waits again.
        pairs.set_up(&pair(), true);
        pairs.set_up(&pair(), false);
        assert_eq!(pairs.due(now), None);
        pairs.retain(with(Begins::Here), now);
        assert_eq!(pairs.due(now), Some(pair()));
    }

    #[test]
    fn one_attempt_at_a_time_uses_a_connection() {
        let now = Instant::now();
        let mut pairs = Pairs::default();
        let second = (pair().0, REQID + 1);
        pairs.retain(
            BTreeMap::from([(pair(), Begins::Here), (second.clone(), Begins::Here)]),
            now,
        );
        pairs.begin(&pair());
        assert_eq!(pairs.due(now), None, "it may make the IKE SA");
        pairs.end(&pair(), None, now);
        assert_eq!(pairs.due(now), Some(second));
    }
}
