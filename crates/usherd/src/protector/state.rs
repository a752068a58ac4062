//! The state of the protector: the tables in force, and what belongs to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use usher_base::HostName;
use usher_bpf::Objects;
use usher_bpf::guard::Claims;
use usher_ike::Notice;
use usher_ipsec::{Applied, Ipsec, IpsecError, Released, Visit};
use usher_local::configuration::Configuration;
use usher_local::paths;
use usher_policy::protection::{Class, Level, Tables};

use super::contest::Contest;
use super::last_answers::LastAnswers;
use super::negotiated::Negotiated;
use super::refusals::Refusals;

/// The present visit of all descriptors.
#[derive(Debug, Default)]
pub(super) struct Finding {
    /// The visit, and when it began.
    pub(super) visit: Option<(Visit, Instant)>,
    /// Something has changed since the visit began, so another visit follows.
    pub(super) is_due: bool,
}

impl Finding {
    /// Returns whether a visit is under way or due.
    pub(super) fn goes_on(&self) -> bool {
        self.visit.is_some() || self.is_due
    }
}

/// The tables in force, and the state around them.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) configuration: Option<Arc<Configuration>>,
    pub(super) tables: Tables,
    pub(super) applied: Applied,
    /// None: nothing is protected, and nothing is loaded.
    pub(super) ipsec: Option<Ipsec>,
    /// The number of older sockets that were found, and are governed since.
    pub(super) adopted: u64,
    /// When tables, programs or held peers have changed last.
    pub(super) changed: Option<Instant>,
    pub(super) finding: Finding,
    /// The reason that older sockets cannot be found.
    pub(super) unlisted: Option<String>,
    /// Sysctls that others have changed, as last reported.
    pub(super) changed_sysctls: Vec<&'static str>,
    pub(super) refusals: Refusals,
    /// Others that keep changing the SPD.
    pub(super) contest: Contest,
    /// Peers that could not be held, because the table was full.
    pub(super) not_held: bool,
    /// The hosts that may be held, each with its addresses.
    pub(super) peers: BTreeMap<HostName, BTreeSet<IpAddr>>,
    pub(super) claims: Claims,
    /// True if the guard keeps other processes from the loaded objects.
    pub(super) is_guarded: bool,
    pub(super) answers: LastAnswers,
    pub(super) negotiated: Negotiated,
    /// True if the resolver is connected.
    pub(super) has_resolver: bool,
    /// The reason that the last answers are not in force.
    pub(super) unrenewed: Option<String>,
}

impl State {
    /// Holds a host to a class whose SAs have come, at all of its addresses: an attacker on the path who
    /// drops IKE at one of them must not get the traffic with it in the clear. Returns whether an address
    /// is held only from now on, and the first error; further addresses are held all the same.
    pub(super) fn hold(&mut self, class: Class, notice: &Notice) -> (bool, Result<(), IpsecError>) {
        if !optional(&self.tables).contains(&class) {
            return (false, Ok(()));
        }
        let addresses = self.addresses_to_hold(notice);
        let (mut is_new, mut outcome) = (false, Ok(()));
        let Some(ipsec) = self.ipsec.as_mut().filter(|_| !addresses.is_empty()) else {
            return (is_new, outcome);
        };
        self.negotiated.insert(notice.host.clone(), class);
        for address in addresses {
            match ipsec.hold(class, address) {
                Ok(is_held_now) => is_new |= is_held_now,
                Err(error) => {
                    self.not_held |= matches!(error, IpsecError::HeldFull(_));
                    outcome = outcome.and(Err(error));
                }
            }
        }
        (is_new, outcome)
    }

    /// All addresses of the host whose SAs have come; none if the host, or the address that has SAs, has left
    /// the policy meanwhile.
    fn addresses_to_hold(&self, notice: &Notice) -> Vec<IpAddr> {
        let addresses = self.peers.get(&notice.host);
        let addresses = addresses.filter(|all| all.contains(&notice.peer.to_canonical()));
        addresses.map_or_else(Vec::new, |all| all.iter().copied().collect())
    }

    /// Forgets the state of a policy after protection has ended. Hosts that have negotiated stay
    /// known: as long as their `host` blocks stay, the next policy holds them.
    pub(super) fn forget_what_was_in_force(&mut self) {
        *self = Self {
            configuration: self.configuration.take(),
            claims: std::mem::take(&mut self.claims),
            answers: std::mem::take(&mut self.answers),
            negotiated: std::mem::take(&mut self.negotiated),
            has_resolver: self.has_resolver,
            ..Self::default()
        };
    }

    /// Claims the loaded objects for the guard. Protection is in force without it.
    pub(super) fn guard(&mut self) {
        let objects = self
            .ipsec
            .as_ref()
            .map_or(Ok(Objects::default()), Ipsec::objects);
        let claimed = objects.and_then(|objects| Ok(self.claims.renew(&objects)?));
        self.is_guarded = claimed.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot guard the tables of protection: root's processes can \
                change them");
            false
        });
    }

    /// Ends protection, including that which an earlier protector has left.
    pub(super) fn end(&mut self) -> Result<Applied, IpsecError> {
        if let Some(ipsec) = self.ipsec.take() {
            ipsec.close()?;
        } else {
            release()?;
        }
        self.forget_what_was_in_force();
        Ok(Applied::default())
    }
}

/// The classes that the tables have as optional. A host's SAs of mandatory classes, whose plaintext never
/// passes, do not show what the host can do once these classes are optional.
pub(super) fn optional(tables: &Tables) -> Vec<Class> {
    let classes = tables.classes.iter();
    let optional = classes.filter(|(_, level)| *level == Level::Optional);
    let mut optional: Vec<Class> = optional.map(|(class, _)| *class).collect();
    optional.sort_unstable();
    optional.dedup();
    optional
}

/// Removes everything that a protector that has ended left in force.
///
/// # Errors
/// As [`usher_ipsec::release`].
pub fn release() -> Result<Released, IpsecError> {
    let pins = Path::new(paths::PROTECTOR_PIN_DIRECTORY);
    // A pinned monitor knows its mask; the policy's mask is for entries that are left without a
    // monitor.
    let configuration = Configuration::load().ok();
    let marks = configuration.map(|configuration| configuration.checked.policy.marks);
    let mask = marks.unwrap_or_default();
    usher_ipsec::release(pins, Path::new(paths::FORMER_SYSCTLS), mask)
}

#[cfg(test)]
mod tests {
    use usher_ike::{IkePublicKey, Peer};
    use usher_policy::protection::{Class, Kind, Profile};

    use super::*;

    const ENCRYPTION: Class = Class::new(Kind::Encryption, Profile::Standard);

    // Threat model: P60
    #[test]
    fn hosts_that_negotiated_outlast_a_policy_without_protection() {
        let peer = Peer {
            name: "a".parse().expect("a name"),
            addresses: vec![IpAddr::from([192, 0, 2, 1])],
            keys: vec![IkePublicKey::ed25519([1; 32])],
            unlabelled: None,
        };
        let mut state = State::default();
        state.negotiated.insert(peer.name.clone(), ENCRYPTION);
        let addresses = peer.addresses.iter().copied().collect();
        state.peers.insert(peer.name.clone(), addresses);
        state.forget_what_was_in_force();
        assert!(state.peers.is_empty());
        let held = [(ENCRYPTION, peer.addresses[0])];
        let negotiated = &mut state.negotiated;
        assert_eq!(
            negotiated.held(std::slice::from_ref(&peer), &[ENCRYPTION]),
            held
        );
        // The twin: its `host` block has left the policy.
        negotiated.keep_only(&BTreeSet::new());
        assert_eq!(negotiated.held(&[peer], &[ENCRYPTION]), []);
    }

    // Threat model: P60
    #[test]
    fn only_optional_classes_are_held() {
        let authentication = Class::new(Kind::Authentication, Profile::Standard);
        let tables = Tables {
            classes: vec![
                (ENCRYPTION, Level::Mandatory),
                (authentication, Level::Optional),
                (authentication, Level::Mandatory),
            ],
            ..Tables::default()
        };
        assert_eq!(optional(&tables), [authentication]);
        assert!(optional(&Tables::default()).is_empty());
    }

    // Threat model: P60
    #[test]
    fn a_host_is_held_at_all_of_its_addresses() {
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|one| one.parse().expect("an address"));
        let host: HostName = "a".parse().expect("a name");
        let mut state = State::default();
        state.peers.insert(host.clone(), addresses.into());
        let of = |host: &HostName, peer| {
            state.addresses_to_hold(&Notice {
                host: host.clone(),
                peer,
                reqid: 0x7500,
            })
        };
        for negotiated in addresses {
            assert_eq!(of(&host, negotiated), addresses);
        }
        // After the next start, the same addresses are held.
        let peer = Peer {
            name: host.clone(),
            addresses: addresses.to_vec(),
            keys: vec![IkePublicKey::ed25519([1; 32])],
            unlabelled: None,
        };
        let mut negotiated = Negotiated::default();
        negotiated.insert(host.clone(), ENCRYPTION);
        let next = negotiated.held(&[peer], &[ENCRYPTION]);
        assert_eq!(next, addresses.map(|address| (ENCRYPTION, address)));
        // The twins: an address, and a host, that have left the policy.
        assert!(of(&host, IpAddr::from([192, 0, 2, 9])).is_empty());
        assert!(of(&"b".parse().expect("a name"), addresses[0]).is_empty());
    }
}
