//! The pairs of a peer's address and a class: which of them have SAs, when each may be negotiated, and
//! what the kernel's acquires mean for it.
//!
//! Programs cause acquires, by the addresses that they send from and to. So no acquire may shorten the
//! waits after failures for long, or end SAs that other programs use.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::handle::Kernel;
use crate::sas::{ChildSa, KernelSas, Sas};

/// First and longest wait after an attempt that failed.
const RETRYING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The wait after an attempt when the kernel asks. The waits of [`RETRYING`] go on growing.
const HURRIED: Duration = Duration::from_secs(5);

/// How long the host with the greater name waits for the other to begin, so that seldom both do. Two
/// pairs of SAs are no harm.
const COURTESY: Duration = Duration::from_secs(2);

/// How long an address without SAs is reported after the kernel asked for it last.
const REPORTING: Duration = Duration::from_secs(600);

/// Most source addresses of a pair that are known. Programs choose them.
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
    /// It has asked since there were SAs last.
    needed: bool,
    /// An attempt is under way.
    running: bool,
    /// When the next one may begin.
    next: Instant,
    /// The wait after the next failure.
    wait: Duration,
    /// When the last one ended.
    tried: Option<Instant>,
    /// The reason of its failure.
    failed: Option<String>,
    /// SAs are known.
    is_up: bool,
    /// The source addresses for which the kernel has asked since.
    asked: BTreeSet<IpAddr>,
    /// The source addresses that have no SAs, and when the kernel last asked for each.
    bare: BTreeMap<IpAddr, Instant>,
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
            state.next = now;
            state.wait = RETRYING.0;
            state.failed = None;
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
        // Other attempts with their connections wait: one of these may make the IKE SA.
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

    /// It has ended, with this failure. Returns whether the reason is a new one.
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

    /// The pair has SAs, or has none. Returns whether they have come only now.
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

    /// The kernel asks for SAs of the pair from this source address. Makes an attempt due where there are
    /// none. Returns whether there are some: then they must be looked at.
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

    /// The SAs among these that the kernel has asked for and does not have. charon makes no others while
    /// it has them. Where SAs have come since the kernel asked, it has them. `class_of` names the class of
    /// a reqid. The kernel's SAs are listed once, and only if they are needed.
    ///
    /// # Errors
    /// When they cannot be listed. What the kernel has asked for is looked at again the next time.
    pub(super) fn lost<'s>(
        &mut self,
        sas: &'s Sas,
        kernel: &mut Kernel,
        class_of: impl Fn(u32) -> Option<&'static str>,
        now: Instant,
    ) -> io::Result<Vec<&'s ChildSa>> {
        let mut listed = None;
        let mut lost = Vec::new();
        for (pair, state) in &mut self.0 {
            if !state.is_up && !state.asked.is_empty() {
                // charon has none any more either. The kernel asks once, and waits then.
                state.asked.clear();
                state.need_now(now);
            }
            for source in state.asked.clone() {
                let own = sas.of(&pair.0).iter();
                let own = own.filter(|sa| sa.local == Some(source));
                let children = own.flat_map(|sa| sa.children.iter().map(move |child| (sa, child)));
                let mut children = children
                    .filter(|(_, child)| class_of(pair.1) == Some(child.name.as_str()))
                    .peekable();
                if children.peek().is_none() {
                    state.miss(pair, source, now);
                    continue;
                }
                let kernel = match &mut listed {
                    Some(listed) => listed,
                    none => none.insert(kernel()?),
                };
                let (there, gone): (Vec<_>, Vec<_>) = children
                    .filter(|(_, child)| child.installed)
                    .partition(|(sa, child)| child.sends(kernel, sa.remote));
                if there.is_empty() && !gone.is_empty() {
                    tracing::warn!(
                        connection = pair.0,
                        reqid = pair.1,
                        "the kernel has lost SAs that charon has; they are negotiated again"
                    );
                    lost.extend(gone.into_iter().map(|(_, child)| child));
                    state.lose(now);
                }
            }
            state.asked.clear();
        }
        Ok(lost)
    }

    /// The SAs among these by which the kernel has not received for a while, because it does not have them:
    /// a host that only answers, over UDP, sends nothing for which the kernel would ask. `missing` has those
    /// that it did not have the last time, by charon's number, and gets those that it does not have now. Only
    /// those that it lacks twice have ended: SAs that come or go are in one of the lists alone for a moment.
    pub(super) fn vanished<'s>(
        &mut self,
        sas: &'s Sas,
        kernel: &KernelSas,
        missing: &mut BTreeSet<String>,
        class_of: impl Fn(u32) -> Option<&'static str>,
        now: Instant,
    ) -> Vec<&'s ChildSa> {
        let mut vanished = Vec::new();
        let before = std::mem::take(missing);
        let up = self.0.iter_mut().filter(|(_, state)| state.is_up);
        for (pair, state) in up {
            let own = sas.of(&pair.0).iter();
            let children = own.flat_map(|sa| sa.children.iter().map(move |child| (sa, child)));
            let children = children.filter(|(_, child)| {
                child.installed && class_of(pair.1) == Some(child.name.as_str())
            });
            let (there, gone): (Vec<_>, Vec<_>) =
                children.partition(|(sa, child)| child.receives(kernel, sa.local));
            missing.extend(gone.iter().map(|(_, child)| child.id.clone()));
            let (ended, lately): (Vec<_>, Vec<_>) = gone
                .into_iter()
                .partition(|(_, child)| before.contains(&child.id));
            if ended.is_empty() {
                continue;
            }
            tracing::warn!(
                connection = pair.0,
                reqid = pair.1,
                "somebody has removed SAs from the kernel; charon ends them, and they are negotiated again"
            );
            vanished.extend(ended.into_iter().map(|(_, child)| child));
            if there.is_empty() && lately.is_empty() {
                state.lose(now);
            }
        }
        vanished
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
    use crate::sas::IkeSa;

    const CLASS: &str = "encryption";
    const REQID: u32 = 0x7500;

    fn pair() -> Pair {
        ("usher-mailhost".to_owned(), REQID)
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// The only pair, which has SAs or not.
    fn pairs(is_up: bool, now: Instant) -> Pairs {
        let mut pairs = Pairs::default();
        pairs.retain(BTreeMap::from([(pair(), Begins::Here)]), now);
        pairs.set_up(&pair(), is_up);
        pairs
    }

    /// SAs from address 1, as charon lists them.
    fn sas() -> Sas {
        let mut child = ChildSa::installed(CLASS);
        child.spi_in = Some("beef".into());
        child.spi_out = Some("c0ffee".into());
        let sa = IkeSa {
            local: Some(address(1)),
            remote: Some(address(9)),
            established: true,
            age: 1,
            algorithms: String::new(),
            children: vec![child],
        };
        let mut sas = Sas::default();
        sas.add(&pair().0, sa);
        sas
    }

    /// How many SAs end after a kernel that has these SPIs has asked for this source.
    fn ends(pairs: &mut Pairs, source: IpAddr, spis: &[u32], now: Instant) -> usize {
        pairs.acquired(&pair(), source, now);
        let sas = sas();
        let mut fails: Kernel = Box::new(|| Err(io::ErrorKind::OutOfMemory.into()));
        let failed = pairs.lost(&sas, &mut fails, |_| Some(CLASS), now);
        assert_eq!(failed.is_err(), source == address(1));
        let kernel = spis.iter().map(|spi| (address(9), *spi)).collect();
        let mut kernel: Kernel = Box::new(move || Ok(KernelSas::clone(&kernel)));
        let mut ended = || {
            pairs
                .lost(&sas, &mut kernel, |_| Some(CLASS), now)
                .unwrap()
                .len()
        };
        let count = ended();
        assert_eq!(ended(), 0, "the kernel asks no more");
        count
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn sas_end_if_the_kernel_has_lost_them() {
        let mut now = Instant::now();
        let mut pairs = pairs(true, now);
        // They have come since it asked.
        assert_eq!(ends(&mut pairs, address(1), &[1, 0x00c0_ffee], now), 0);
        assert_eq!(pairs.due(now), None);
        for _ in 0..2 {
            assert_eq!(ends(&mut pairs, address(1), &[1], now), 1);
            assert_eq!(pairs.due(now), Some(pair()), "negotiated again at once");
            pairs.begin(&pair());
            pairs.end(&pair(), None, now);
            pairs.set_up(&pair(), true);
            // Something removes them again and again.
            assert_eq!(ends(&mut pairs, address(1), &[], now), 1);
            assert_eq!(pairs.due(now), None);
            now += HURRIED;
            assert_eq!(pairs.due(now), Some(pair()));
            pairs.set_up(&pair(), true);
        }
    }

    #[test]
    fn sas_that_the_kernel_lacks_twice_are_negotiated_again() {
        let now = Instant::now();
        let mut pairs = pairs(true, now);
        let (sas, mut missing) = (sas(), BTreeSet::new());
        let mut vanished = |pairs: &mut Pairs, spis: &[u32]| {
            let kernel = spis.iter().map(|spi| (address(1), *spi)).collect();
            pairs
                .vanished(&sas, &kernel, &mut missing, |_| Some(CLASS), now)
                .len()
        };
        // They come and go.
        for spis in [&[0xbeef][..], &[1], &[1, 0xbeef], &[], &[0xbeef]] {
            assert_eq!(vanished(&mut pairs, spis), 0);
            assert_eq!(pairs.due(now), None);
        }
        assert_eq!(vanished(&mut pairs, &[1]), 0);
        assert_eq!(vanished(&mut pairs, &[1]), 1);
        assert_eq!(pairs.due(now), Some(pair()));
        assert_eq!(vanished(&mut pairs, &[1]), 0, "known already");
        // A class that waits for the kernel to ask was in use.
        let with = BTreeMap::from([(pair(), Begins::OnDemand)]);
        pairs.retain(with, now);
        assert_eq!(pairs.due(now), Some(pair()));
    }

    /// A program chooses its source address.
    #[test]
    fn another_source_address_ends_no_sas() {
        let mut now = Instant::now();
        let mut pairs = pairs(true, now);
        now += SECOND;
        for last in 2..=255 {
            assert_eq!(ends(&mut pairs, address(last), &[], now), 0);
        }
        let bare = pairs.bare(&pair(), now);
        assert_eq!(bare.len(), MOST_SOURCES, "{bare:?}");
        assert!(bare.contains(&address(2)), "{bare:?}");
        now += REPORTING;
        assert!(pairs.bare(&pair(), now).is_empty(), "nothing asks any more");
        assert_eq!(ends(&mut pairs, address(1), &[], now), 1, "the twin");
    }

    /// They went at the same time, for another reason.
    #[test]
    fn an_acquire_for_sas_that_are_gone_from_charon_too_counts() {
        let now = Instant::now();
        let mut pairs = pairs(true, now);
        let with = BTreeMap::from([(pair(), Begins::OnDemand)]);
        pairs.retain(with, now);
        pairs.acquired(&pair(), address(1), now);
        pairs.set_up(&pair(), false);
        assert_eq!(pairs.due(now), None);
        let mut kernel: Kernel = Box::new(|| Err(io::ErrorKind::OutOfMemory.into()));
        let none = Sas::default();
        let lost = pairs.lost(&none, &mut kernel, |_| Some(CLASS), now);
        assert!(lost.unwrap().is_empty());
        assert_eq!(pairs.due(now), Some(pair()));
        assert!(pairs.bare(&pair(), now).is_empty());
    }

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
