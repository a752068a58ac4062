//! Log lines about refused calls and dropped packets, from the programs' counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use usher_daemon::events;

/// The shortest time between two lines about the same reason. The later line counts everything
/// since the earlier one.
const QUIET: Duration = Duration::from_secs(60);

/// Counters of refusals, each with what has happened and what may be done about it.
const REASONS: [(&str, &str); 17] = [
    (
        "refused_plain",
        "packets arrived in the clear and were dropped: the sender's policy protects no traffic of its \
         program with this host",
    ),
    (
        "refused_class",
        "packets arrived with other protection than the policy demands and were dropped: the two hosts' \
         policies demand different classes",
    ),
    (
        "refused_discard",
        "packets arrived from untrusted peers and were dropped, as the policy says",
    ),
    (
        "refused_unreadable",
        "packets arrived with headers that cannot be read, fragments for instance, and were dropped",
    ),
    (
        "kept_plain",
        "packets would have left in the clear and were dropped: `usher protection peers` says why there \
         are no SAs; where there are, the policy, the SPD or the socket's peer had just changed",
    ),
    (
        "kept_class",
        "packets would have left with other protection than the policy demands and were dropped",
    ),
    (
        "kept_discard",
        "packets to untrusted peers were dropped, as the policy says",
    ),
    (
        "kept_unreadable",
        "packets would have left with headers that cannot be read, and were dropped",
    ),
    (
        "discarded",
        "calls to untrusted peers were refused, as the policy says",
    ),
    (
        "unmarked",
        "the kernel did not take the marks of sockets: calls were refused, or packets are dropped",
    ),
    (
        "sockets_refused",
        "sockets that cannot be protected were refused: MPTCP, SCTP or SMC, or there was no memory; a \
         program that takes TCP in place of MPTCP, as servers in Go do, goes on",
    ),
    (
        "options_refused",
        "changes of a socket's mark, or of its own IPsec policy, were refused",
    ),
    (
        "calls_refused",
        "calls were refused on sockets that cannot be protected, or that another program connected \
         without the protection that the policy demands",
    ),
    (
        "scripts_refused",
        "scripts of the policy were not executed, or could not make threads or children, because the table \
         of processes of scripts is full",
    ),
    (
        "service_kept",
        "packets of services with protection would have left in the clear and were dropped: see \
         `usher protection peers` for the reason that there are no SAs",
    ),
    (
        "service_refused",
        "packets from services of other hosts arrived in the clear and were dropped: the policy there lacks \
         `protection`, or its protector does not run",
    ),
    (
        "service_unreadable",
        "TCP packets with headers that cannot be read were dropped",
    ),
];

/// The numbers in the last lines.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// None before the first look: an earlier process has logged the present numbers.
    told: Option<BTreeMap<&'static str, Told>>,
}

#[derive(Debug, Default)]
struct Told {
    number: u64,
    at: Option<Instant>,
}

impl Refusals {
    /// Forgets the numbers, because nothing is loaded: counters of programs that are loaded later begin at 0.
    pub(super) fn begin_again(&mut self) {
        self.told = Some(BTreeMap::new());
    }

    /// Writes a line for each reason whose counter has grown.
    pub(super) fn tell(&mut self, counters: &[(String, u64)], now: Instant) {
        for (name, more, reason) in self.news(counters, now) {
            tracing::warn!(name: events::PROTECTION_REFUSED, counter = name, count = more, "{reason}");
        }
    }

    /// Returns, for each line to write, the counter, by how much it has grown, and the reason.
    fn news(
        &mut self,
        counters: &[(String, u64)],
        now: Instant,
    ) -> Vec<(&'static str, u64, &'static str)> {
        let is_first = self.told.is_none();
        let told = self.told.get_or_insert_default();
        let mut news = Vec::new();
        for (name, reason) in REASONS {
            let counted = counters.iter().find(|(own, _)| own == name);
            let number = counted.map_or(0, |(_, number)| *number);
            let last = told.entry(name).or_default();
            let is_quiet = last.at.is_some_and(|at| now < at + QUIET);
            // Tables of another layout count from 0.
            let more = number.checked_sub(last.number).unwrap_or(number);
            if is_first {
                last.number = number;
            } else if more > 0 && !is_quiet {
                *last = Told {
                    number,
                    at: Some(now),
                };
                news.push((name, more, reason));
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_bpf::Counted;
    use usher_ipsec::{Counters, ServiceCounters};

    fn counted(name: &str, number: u64) -> [(String, u64); 1] {
        [(name.to_owned(), number)]
    }

    #[test]
    fn each_reason_has_a_line_a_minute_that_counts_all() {
        let mut refusals = Refusals::default();
        refusals.begin_again();
        let mut now = Instant::now();
        let mut news = |number, now| {
            let news = refusals.news(&counted("refused_plain", number), now);
            let more: Vec<u64> = news.iter().map(|(_, more, _)| *more).collect();
            more
        };
        assert!(news(0, now).is_empty());
        assert_eq!(news(3, now), [3]);
        assert!(news(9, now).is_empty(), "too soon");
        now += QUIET;
        assert_eq!(news(10, now), [7]);
        now += QUIET;
        assert!(news(10, now).is_empty(), "no more");
        assert_eq!(news(2, now), [2], "other tables");
    }

    #[test]
    fn an_earlier_protectors_refusals_are_not_told_again() {
        let mut refusals = Refusals::default();
        let now = Instant::now();
        assert!(refusals.news(&counted("kept_plain", 5), now).is_empty());
        let news = refusals.news(&counted("kept_plain", 6), now);
        assert_eq!(news.len(), 1);
        assert_eq!((news[0].0, news[0].1), ("kept_plain", 1));
    }

    /// A new counter needs a reason, or a place in `OF_NO_REFUSAL`.
    #[test]
    fn every_counter_of_a_refusal_has_a_reason() {
        const OF_NO_REFUSAL: [&str; 10] = [
            "sockets",
            "adopted",
            "corrected",
            "remarked",
            "listeners_marked",
            "arrived_protected",
            "arrived_plain",
            "left_protected",
            "left_plain",
            "service_protected",
        ];
        let names = || Counters::NAMES.iter().chain(ServiceCounters::NAMES);
        for name in names() {
            let has_reason = REASONS.iter().any(|(own, _)| own == name);
            assert_ne!(has_reason, OF_NO_REFUSAL.contains(name), "{name}");
        }
        assert_eq!(names().count(), REASONS.len() + OF_NO_REFUSAL.len());
    }
}
