//! Hosts whose clock differed too much from this one's when a session was requested, for `usher
//! doctor`: two hosts open no session until their clocks agree.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use usher_base::HostName;
use usher_proto::refusal::Refusal;

/// How long a refusal is reported, in seconds. Only another request can show that the clocks agree.
const TOLD: u64 = 3600;

/// The last observation of each host's clock. Only hosts of the policy have one, made by their own requests.
#[derive(Debug, Default)]
pub struct Clocks(Mutex<BTreeMap<HostName, Apart>>);

#[derive(Debug, Clone, Copy)]
struct Apart {
    /// The time of the observation, in seconds since 1970 by this host's clock.
    seen: u64,
    /// How far the other clock is ahead, if known.
    ahead: Option<i64>,
}

impl Clocks {
    /// Notes the outcome of a host's request for a session. A refusal because of the clocks enters the host,
    /// and an opened session removes it. Other refusals say nothing about the clocks, and change nothing.
    pub fn note(
        &self,
        host: &HostName,
        outcome: Result<(), Refusal>,
        ahead: Option<i64>,
        now: u64,
    ) {
        let mut hosts = self.0.lock();
        match outcome {
            Ok(()) => {
                hosts.remove(host);
            }
            Err(Refusal::Stale | Refusal::FutureDated) => {
                hosts.insert(host.clone(), Apart { seen: now, ahead });
            }
            Err(_) => {}
        }
    }

    /// The reasons that sessions cannot be opened, for people.
    pub fn troubles(&self, now: u64) -> Vec<String> {
        let mut hosts = self.0.lock();
        hosts.retain(|_, apart| now.saturating_sub(apart.seen) < TOLD);
        let told = hosts.iter().map(|(host, Apart { seen, ahead })| {
            let apart = match ahead {
                Some(ahead) if *ahead >= 0 => format!("{ahead} s ahead of"),
                Some(behind) => format!("{} s behind", behind.unsigned_abs()),
                None => "apart from".to_owned(),
            };
            format!(
                "the clock of {host} was {apart} this host's {} s ago, and a session was refused for \
                 it: set both clocks (timedatectl)",
                now.saturating_sub(*seen)
            )
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_told_of_until_it_agrees_or_an_hour_is_over() {
        let clocks = Clocks::default();
        let [laptop, desk]: [HostName; 2] = ["laptop", "desk"].map(|name| name.parse().unwrap());
        clocks.note(&laptop, Err(Refusal::UnknownKey), Some(0), 1000);
        assert!(clocks.troubles(1000).is_empty());
        clocks.note(&laptop, Err(Refusal::FutureDated), Some(90), 1000);
        clocks.note(&desk, Err(Refusal::Stale), Some(-90), 2000);
        // Refused for another reason, which says nothing about the clock.
        clocks.note(&laptop, Err(Refusal::UnknownKey), Some(90), 2000);
        let told = clocks.troubles(2010);
        let begun = [
            "the clock of desk was 90 s behind this host's 10 s ago",
            "the clock of laptop was 90 s ahead of this host's 1010 s ago",
        ];
        assert_eq!(told.len(), begun.len());
        assert!(
            told.iter()
                .zip(begun)
                .all(|(told, begun)| told.starts_with(begun)),
            "{told:?}"
        );
        clocks.note(&desk, Ok(()), None, 2020);
        assert_eq!(clocks.troubles(2020).len(), 1);
        assert!(clocks.troubles(1000 + TOLD).is_empty());
    }
}
