//! The administrators' view of the peers, from charon's list of SAs.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use usher_protection::{ClassReport, PeerReport, PeerState};

use super::{Current, Driver};
use crate::configuration::Path;
use crate::configuration::{Configuration, PeerClass};
use crate::sas::{ChildSa, KernelSas, Sas, is_there};

/// Classes that need what a charon does not have, in plain words; none: it has all.
pub(super) fn lacking(current: &Configuration, charon: &str, hybrid: bool) -> Option<String> {
    let is_negotiable = |wanted: &PeerClass| current.negotiable(hybrid).any(|own| own == wanted);
    // A class that only waits for others to begin is no loss.
    let is_wanted = |wanted: &PeerClass| {
        let mut peers = current.peers.iter();
        peers.any(|peer| !current.is_on_demand(&peer.name, wanted.class))
    };
    let kept_back = current.classes.iter().filter(|class| !is_negotiable(class));
    let kept_back = kept_back.filter(|class| is_wanted(class));
    let names: Vec<&str> = kept_back.map(|class| class.class.name()).collect();
    if names.is_empty() {
        return None;
    }
    Some(format!(
        "{charon} has no ML-KEM for a hybrid key exchange, so {} cannot be negotiated: its traffic is kept \
         back where it is mandatory; install strongSwan 6.0 or later on both hosts with a plugin that has \
         ML-KEM, or take the word `strong` out of the policy",
        names.join(" and ")
    ))
}

/// Takes SAs out of the view if the kernel does not have them.
pub(super) fn take_out(peers: &mut [PeerReport], kernel: &KernelSas) {
    for peer in peers {
        let mut has_ended = false;
        for class in peer.classes.iter_mut().filter(|class| class.protected) {
            if is_there(kernel, peer.address, class.spi_out.as_deref()) {
                continue;
            }
            has_ended = true;
            class.protected = false;
            (class.since, class.algorithms) = (None, None);
            (class.spi_in, class.spi_out) = (None, None);
            class.why_not = Some(ENDED.to_owned());
        }
        if has_ended && !peer.classes.iter().any(|class| class.protected) {
            peer.state = PeerState::Unreached;
            (peer.since, peer.algorithms) = (None, None);
            peer.why_not = Some(ENDED.to_owned());
        }
    }
}

/// The reason that a peer has no SAs any more.
const ENDED: &str = "charon has ended, and its SAs with it";

impl Driver {
    /// The view of all peers.
    pub(super) fn peers(&self, current: &Current, sas: &Sas, hybrid: bool) -> Vec<PeerReport> {
        let kept = current.kept(sas);
        let peer = |path: &Path| {
            let kept = kept.get(path.connection.as_str());
            self.peer(path, kept.map_or(&[], Vec::as_slice), current, sas, hybrid)
        };
        current.paths.iter().map(peer).collect()
    }

    /// The view of a peer at one of its addresses. The SAs of the connections `kept` serve it as well.
    fn peer(
        &self,
        path: &Path,
        kept: &[&str],
        current: &Current,
        sas: &Sas,
        hybrid: bool,
    ) -> PeerReport {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let own = || {
            let connections = [path.connection.as_str()].into_iter();
            let connections = connections.chain(kept.iter().copied());
            connections.flat_map(|connection| sas.of(connection))
        };
        let established = own().filter(|sa| sa.established).max_by_key(|sa| sa.age);
        let refused = self.refused.get(&path.connection).cloned();
        // On demand, and nothing has needed it.
        let is_idle = |wanted: &PeerClass| {
            let mut negotiable = current.negotiable_with(path.unlabelled, hybrid);
            let pair = (path.connection.clone(), wanted.reqid);
            if negotiable.any(|own| own == wanted) {
                self.pairs.is_idle(&pair)
            } else {
                current.is_on_demand(&path.peer, wanted.class)
            }
        };
        let class = |wanted: &PeerClass| {
            let name = wanted.class.name();
            let of_kept = || kept.iter().find_map(|kept| sas.installed(kept, name));
            let present = sas.installed(&path.connection, name);
            let child = present.or_else(of_kept);
            // Both hosts may have begun: then there are two pairs, and each may carry one direction.
            let pairs = own().flat_map(|sa| &sa.children);
            let pairs = pairs.filter(|child| child.installed && child.name == name);
            let sum = |bytes: fn(&ChildSa) -> u64| {
                let bytes = pairs.clone().map(bytes);
                bytes.fold(0, u64::saturating_add)
            };
            let pair = (path.connection.clone(), wanted.reqid);
            let why_not = match path.unlabelled.filter(|only| *only != wanted.class) {
                Some(only) => Some(format!(
                    "its `host` block says `unlabelled {}`, so it has SAs of that class alone",
                    only.name()
                )),
                None if current.negotiable(hybrid).any(|own| own == wanted) => {
                    refused.clone().or_else(|| self.pairs.failed(&pair))
                }
                None => Some(
                    "this host's charon has no ML-KEM for the hybrid key exchange of `strong`: it \
                     needs strongSwan 6.0 or later"
                        .to_owned(),
                ),
            };
            ClassReport {
                class: name.to_owned(),
                protected: child.is_some(),
                since: child.map(|child| now.saturating_sub(child.age)),
                algorithms: child.map(|child| child.algorithms.clone()),
                spi_in: child.and_then(|child| child.spi_in.clone()),
                spi_out: child.and_then(|child| child.spi_out.clone()),
                bytes_in: sum(|child| child.bytes_in),
                bytes_out: sum(|child| child.bytes_out),
                why_not: why_not.filter(|_| present.is_none()),
                held_since: None,
                sources_without: self.pairs.bare(&pair, Instant::now()),
            }
        };
        let shown = current.classes.iter().filter(|wanted| !is_idle(wanted));
        let classes: Vec<ClassReport> = shown.map(class).collect();
        PeerReport {
            name: path.peer.clone(),
            address: path.address,
            state: match established {
                Some(_) => PeerState::Established,
                None if own().next().is_some() => PeerState::Negotiating,
                None => PeerState::Unreached,
            },
            since: established.map(|sa| now.saturating_sub(sa.age)),
            algorithms: established.map(|sa| sa.algorithms.clone()),
            why_not: refused.or_else(|| classes.iter().find_map(|class| class.why_not.clone())),
            classes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn only_sas_that_the_kernel_has_are_shown_when_charon_has_ended() {
        let class = |class: &str, spi: &str| ClassReport {
            class: class.into(),
            protected: true,
            since: Some(1),
            algorithms: Some("ESP".into()),
            spi_in: Some("1".into()),
            spi_out: Some(spi.into()),
            bytes_in: 0,
            bytes_out: 7,
            why_not: None,
            held_since: None,
            sources_without: Vec::new(),
        };
        let peer = |last: u8, classes| PeerReport {
            name: "mailhost".parse().expect("a name"),
            address: IpAddr::from([192, 0, 2, last]),
            state: PeerState::Established,
            since: Some(1),
            algorithms: Some("AES".into()),
            why_not: None,
            classes,
        };
        let before = [
            peer(
                1,
                vec![class("encryption", "a1"), class("authentication", "a2")],
            ),
            peer(2, vec![class("encryption", "a1")]),
        ];
        let mut peers = before.clone();
        let kernel = KernelSas::from([
            (peers[0].address, 0xa1),
            (peers[0].address, 0xa2),
            (peers[1].address, 0xa1),
        ]);
        take_out(&mut peers, &kernel);
        assert_eq!(peers, before, "charon was killed");
        let kernel = KernelSas::from([(peers[0].address, 0xa1)]);
        take_out(&mut peers, &kernel);
        assert_eq!(peers[0].state, PeerState::Established);
        assert_eq!(peers[0].classes[0], before[0].classes[0]);
        assert!(!peers[0].classes[1].protected && peers[0].classes[1].spi_out.is_none());
        assert_eq!(peers[1].state, PeerState::Unreached);
        assert_eq!(peers[1].why_not.as_deref(), Some(ENDED));
    }
}
