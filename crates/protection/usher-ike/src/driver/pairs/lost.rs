//! SAs that charon has and the kernel has lost.
//!
//! charon does not notice this. The kernel asks for SAs by which it should send; it reports nothing about
//! those by which it should receive.

use std::io;

use tokio::time::Instant;

use super::Pairs;
use crate::sas::{ChildSa, KernelSas, Sas};

impl Pairs {
    /// Those of these SAs that the kernel has asked for and does not have. charon makes no others while it
    /// has these. SAs that have come since the kernel asked are not lost. `class_of` names the class of a
    /// reqid. The kernel's SAs are listed once, and only if they are needed.
    ///
    /// # Errors
    /// The kernel's SAs cannot be listed. The addresses for which the kernel asked are looked at again when
    /// the list can be read.
    pub(in super::super) fn lost<'s>(
        &mut self,
        sas: &'s Sas,
        list: &mut dyn FnMut() -> io::Result<KernelSas>,
        class_of: impl Fn(u32) -> Option<&'static str>,
        now: Instant,
    ) -> io::Result<Vec<&'s ChildSa>> {
        let mut listed = None;
        let mut lost = Vec::new();
        for (pair, state) in &mut self.0 {
            if !state.is_up && !state.asked.is_empty() {
                // charon has no SAs any more either, and the kernel asks only once.
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
                    none => none.insert(list()?),
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

    /// The SAs among these by which this host receives, and that the kernel lacks now and lacked at the last
    /// call. A host that only answers datagrams sends nothing for which its kernel would ask. One call proves
    /// nothing: for a moment, SAs that come or go are in one of the two lists only.
    pub(in super::super) fn vanished<'s>(
        &mut self,
        sas: &'s Sas,
        kernel: &KernelSas,
        class_of: impl Fn(u32) -> Option<&'static str>,
        now: Instant,
    ) -> Vec<&'s ChildSa> {
        let mut vanished = Vec::new();
        for (pair, state) in &mut self.0 {
            let before = std::mem::take(&mut state.missing);
            if !state.is_up {
                continue;
            }
            let own = sas.of(&pair.0).iter();
            let children = own.flat_map(|sa| sa.children.iter().map(move |child| (sa, child)));
            let children = children.filter(|(_, child)| {
                child.installed && class_of(pair.1) == Some(child.name.as_str())
            });
            let (there, gone): (Vec<_>, Vec<_>) =
                children.partition(|(sa, child)| child.receives(kernel, sa.local));
            let (ended, lately): (Vec<_>, Vec<_>) = gone
                .into_iter()
                .map(|(_, child)| child)
                .partition(|child| before.contains(&child.id));
            let is_left = !(there.is_empty() && lately.is_empty());
            let lately = lately.into_iter().map(|child| child.id.clone());
            state.missing = lately.collect();
            if ended.is_empty() {
                continue;
            }
            tracing::warn!(
                connection = pair.0,
                reqid = pair.1,
                "somebody has removed SAs from the kernel; charon ends them, and they are negotiated again"
            );
            vanished.extend(ended);
            if !is_left {
                state.lose(now);
            }
        }
        vanished
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use super::super::tests::{SECOND, address, pair, pairs};
    use super::super::{Begins, HURRIED, MOST_SOURCES, REPORTING};
    use super::*;
    use crate::sas::IkeSa;

    type List = Box<dyn FnMut() -> io::Result<KernelSas>>;

    const CLASS: &str = "encryption";

    /// SAs from address 1, as charon lists them.
    fn sas() -> Sas {
        let mut child = ChildSa::installed(CLASS);
        child.spi_in = Some("beef".into());
        child.spi_out = Some("c0ffee".into());
        let sa = IkeSa {
            id: String::new(),
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
        let mut fails: List = Box::new(|| Err(io::ErrorKind::OutOfMemory.into()));
        let failed = pairs.lost(&sas, &mut fails, |_| Some(CLASS), now);
        assert_eq!(failed.is_err(), source == address(1));
        let kernel = spis.iter().map(|spi| (address(9), *spi)).collect();
        let mut kernel: List = Box::new(move || Ok(KernelSas::clone(&kernel)));
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

    // Threat model: P61
    #[test]
    fn sas_end_if_the_kernel_has_lost_them() {
        let mut now = Instant::now();
        let mut pairs = pairs(true, now);
        // The SAs have come since the kernel asked.
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
        let sas = sas();
        let vanished = |pairs: &mut Pairs, spis: &[u32]| {
            let kernel = spis.iter().map(|spi| (address(1), *spi)).collect();
            pairs.vanished(&sas, &kernel, |_| Some(CLASS), now).len()
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
    // Threat model: P61
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

    /// The SAs went from charon at the same time, for another reason.
    #[test]
    fn an_acquire_for_sas_that_are_gone_from_charon_too_counts() {
        let now = Instant::now();
        let mut pairs = pairs(true, now);
        let with = BTreeMap::from([(pair(), Begins::OnDemand)]);
        pairs.retain(with, now);
        pairs.acquired(&pair(), address(1), now);
        pairs.set_up(&pair(), false);
        assert_eq!(pairs.due(now), None);
        let mut kernel: List = Box::new(|| Err(io::ErrorKind::OutOfMemory.into()));
        let none = Sas::default();
        let lost = pairs.lost(&none, &mut kernel, |_| Some(CLASS), now);
        assert!(lost.unwrap().is_empty());
        assert_eq!(pairs.due(now), Some(pair()));
        assert!(pairs.bare(&pair(), now).is_empty());
    }
}
