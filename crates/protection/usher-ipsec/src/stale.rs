//! Signatures that no rules in force have, and that open sockets may still carry in their marks.
//!
//! A datagram socket gets its new mark at its next call that names a peer, and the kernel has read the
//! former mark by then. A raw socket keeps its mark. So the entries of the SPD for a former signature
//! stay until no socket carries it. None of them refuses a packet: the monitor drops packets that the
//! policy in force does not permit, and former rules must not make the call of a permitted datagram
//! fail.

use std::collections::{BTreeMap, BTreeSet};

use usher_protection::{Class, Level};

use crate::marks::{DISCARD, MarkMask};
use crate::plan::Application;
use crate::spd::{self, Action, Entries, Entry};

/// Limit of entries of all former signatures together, a kibibyte of the kernel's memory each. Of further
/// ones only those for all addresses stay.
const MOST_ENTRIES: usize = 32_768;

/// Former signatures by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stale(BTreeMap<u16, Former>);

#[derive(Debug, Clone, Default)]
struct Former {
    entries: Entries,
    /// The last listing has found no socket that carries it. One may have been on its way between
    /// processes, or not have had its descriptor yet.
    is_missed: bool,
}

impl Stale {
    /// The signatures that an earlier process has left in the SPD, which has these entries: those of its
    /// policy and former ones. They have no entries in place of a class that refuses packets: the class is
    /// not known here.
    pub fn left(entries: Entries, mask: MarkMask) -> Self {
        let mut formers: BTreeMap<u16, Former> = BTreeMap::new();
        for (selected, entry) in entries {
            let number = mask.signature_of(selected.mark);
            if selected.mark_bits == mask.signature_bits() && number != 0 {
                let former = formers.entry(number).or_default();
                former.entries.insert(selected, passing(entry));
            }
        }
        Self(formers)
    }

    /// The former signatures once these numbers come in force: those of `before` and of the rules that
    /// are in force now, with the entries that the SPD has for them.
    pub fn after(
        before: &Self,
        applications: &[Application],
        entries: &Entries,
        next: &BTreeSet<u16>,
        mask: MarkMask,
    ) -> Self {
        let mut formers = before.0.clone();
        for application in applications {
            let number = application.signature;
            if number != 0 && !next.contains(&number) {
                let former = formers.entry(number).or_default();
                former.entries.extend(of_remaining(application, mask));
            }
        }
        formers.retain(|number, _| !next.contains(number));
        let numbers: BTreeMap<u32, u16> = formers
            .keys()
            .filter(|number| !before.0.contains_key(number))
            .map(|number| (mask.signed(*number), *number))
            .collect();
        let taken: usize = formers.values().map(|former| former.entries.len()).sum();
        let mut room = MOST_ENTRIES.saturating_sub(taken);
        let signed = entries
            .iter()
            .filter(|(selected, _)| selected.mark_bits == mask.signature_bits());
        for (selected, entry) in signed {
            let Some(former) = numbers
                .get(&selected.mark)
                .and_then(|number| formers.get_mut(number))
            else {
                continue;
            };
            if room == 0 {
                tracing::warn!(
                    "some datagram sockets that are older than this policy have to send twice, or to \
                     connect again: former rules have more than {MOST_ENTRIES} entries"
                );
                break;
            }
            room -= 1;
            former.entries.insert(*selected, passing(*entry));
        }
        Self(formers)
    }

    /// The numbers of the former signatures.
    pub fn numbers(&self) -> BTreeSet<u16> {
        self.0.keys().copied().collect()
    }

    /// The entries of the former signatures.
    pub fn entries(&self) -> Entries {
        let formers = self.0.values();
        formers.flat_map(|former| former.entries.clone()).collect()
    }

    /// Forgets the signatures that no socket has carried at two listings in a row. `carried` has the marks
    /// that this listing has found. Returns the entries of the forgotten signatures.
    pub fn listed(&mut self, carried: &BTreeSet<u32>, mask: MarkMask) -> Entries {
        let carried: BTreeSet<u32> = carried
            .iter()
            .map(|mark| mark & mask.signature_bits())
            .collect();
        let mut forgotten = Entries::new();
        self.0.retain(|number, former| {
            if carried.contains(&mask.signed(*number)) {
                former.is_missed = false;
            } else if former.is_missed {
                forgotten.append(&mut former.entries);
                return false;
            } else {
                former.is_missed = true;
            }
            true
        });
        forgotten
    }
}

/// The entry of a former signature, made from one that was in force: it allows what that one blocked.
fn passing(mut entry: Entry) -> Entry {
    if entry.action == Some(Action::Block) {
        entry.action = Some(Action::Allow);
    }
    entry
}

/// Entries for the packets about which no other network or port decides, if the application's rules refuse
/// them. A mandatory class does so where there is no peer; the entries of its peers come before these.
fn of_remaining(application: &Application, mask: MarkMask) -> Entries {
    let mut entries = Entries::new();
    let of_family = |ipv4| {
        let number = application.remaining(ipv4);
        let level = Class::of_mark(number).map(|(_, level)| level);
        number == DISCARD || level == Some(Level::Mandatory)
    };
    for everywhere in spd::everywhere() {
        // An IPv6 socket sends to IPv4 addresses, too.
        if of_family(false) || (everywhere.addr().is_ipv4() && of_family(true)) {
            let (selected, entry) = spd::of_former(everywhere, application.signature, mask);
            entries.insert(selected, entry);
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Line;

    const LINE: Line = Line {
        local: None,
        remote: None,
        class: DISCARD,
    };

    fn application(signature: u16) -> Application {
        let all = ["0.0.0.0/0", "::/0"].map(|all| (all.parse().expect("a network"), vec![LINE]));
        let networks = all.to_vec();
        Application {
            networks,
            signature,
        }
    }

    #[test]
    fn a_former_signature_stays_while_a_socket_carries_it() {
        let mask = MarkMask::default();
        let mut stale = Stale::after(
            &Stale::default(),
            &[application(1), application(2)],
            &Entries::new(),
            &BTreeSet::from([2, 3]),
            mask,
        );
        assert_eq!(stale.numbers(), BTreeSet::from([1]));
        let entries = stale.entries();
        assert_eq!(entries.len(), 2);
        let passes = |entry: &Entry| entry.action == Some(Action::Allow);
        assert!(entries.values().all(passes));
        let carried = BTreeSet::from([mask.signed(1) | mask.numbered(DISCARD)]);
        for marks in [&BTreeSet::new(), &carried, &BTreeSet::new()] {
            assert!(stale.listed(marks, mask).is_empty());
        }
        assert_eq!(stale.listed(&BTreeSet::new(), mask), entries);
        assert_eq!(stale.numbers().len(), 0);
    }

    #[test]
    fn what_an_earlier_process_left_stays_until_no_socket_carries_it() {
        let mask = MarkMask::default();
        let [everywhere, _] = spd::everywhere();
        let signed = |signature| spd::of_former(everywhere, signature, mask);
        let mut blocks = signed(2);
        blocks.1.action = Some(Action::Block);
        let left = Stale::left(Entries::from([signed(1), blocks]), mask);
        assert_eq!(left.numbers(), BTreeSet::from([1, 2]));
        let entries = left.entries();
        assert!(
            entries
                .values()
                .all(|entry| entry.action == Some(Action::Allow))
        );
        let (none, next) = (Entries::new(), BTreeSet::from([1]));
        let mut stale = Stale::after(&left, &[], &none, &next, mask);
        assert_eq!(stale.numbers(), BTreeSet::from([2]));
        assert_eq!(stale.entries(), Entries::from([signed(2)]));
        for removed in [0, 1] {
            assert_eq!(stale.listed(&BTreeSet::new(), mask).len(), removed);
        }
    }

    #[test]
    fn a_number_in_force_is_not_stale() {
        let mask = MarkMask::default();
        let (none, entries) = (Stale::default(), Entries::new());
        let after = |before: &Stale, next: &[u16]| {
            let next = next.iter().copied().collect();
            Stale::after(before, &[application(1)], &entries, &next, mask)
        };
        assert_eq!(after(&none, &[1]).numbers().len(), 0);
        let stale = after(&none, &[2]);
        assert_eq!(after(&stale, &[1]).numbers().len(), 0);
        assert_eq!(after(&stale, &[2]).numbers().len(), 1);
    }
}
