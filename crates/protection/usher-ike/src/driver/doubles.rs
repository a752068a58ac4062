//! Pairs of SAs beside others of the same class with the same peer.
//!
//! Where both hosts have begun at once there are two pairs. Each host sends by the one that it knew first,
//! so nothing is lost, but each is rekeyed for ever. So both hosts choose the same one, by what both know
//! of them, and end the other when nothing uses it any more.

use std::collections::{BTreeMap, BTreeSet};

use super::{Current, Driver, by_list};
use crate::sas::{ChildSa, IkeSa, Sas, parse_spi};

/// The age, in seconds, from which on pairs are compared: both hosts have them by then, and have noticed what
/// has come by the younger one.
const SETTLED: u64 = 5;

/// The largest difference, in seconds, between the ages of pairs that both hosts began at once. Of others the
/// younger one counts: the peer may have lost the older.
const TOGETHER: u64 = 30;

/// The age, in seconds, from which on an IKE SA without SAs counts as left over.
const LEFT_OVER: u64 = 30;

/// The pairs that are to end, by charon's numbers, with the bytes that they had carried when they were looked
/// at last.
pub(super) type Doubles = BTreeMap<String, (u64, u64)>;

impl Driver {
    /// Makes this host send by one pair where there are two. Returns the other pairs that nothing has used
    /// since the last call.
    pub(super) async fn doubles<'s>(
        &mut self,
        current: &Current,
        sas: &'s Sas,
        hybrid: bool,
    ) -> Vec<&'s ChildSa> {
        let before = std::mem::take(&mut self.doubles);
        let mut unused = Vec::new();
        for path in current.paths.iter() {
            for class in current.negotiable_with(path.unlabelled, hybrid) {
                let Some((chosen, others)) = choose(sas, &path.connection, class.class.name())
                else {
                    continue;
                };
                let placed = chosen.placed(path.address);
                let moved = placed.map(|placed| self.kernel.lock().place_first(placed));
                by_list(moved.transpose().map(drop));
                let mut is_new = false;
                for other in others {
                    let bytes = (other.bytes_in, other.bytes_out);
                    match before.get(&other.id) {
                        Some(former) if *former == bytes => unused.push(other),
                        Some(_) => {}
                        None => is_new = true,
                    }
                    self.doubles.insert(other.id.clone(), bytes);
                }
                if is_new {
                    tracing::info!(
                        host = %path.peer,
                        peer = %path.address,
                        class = class.class.name(),
                        "there are two pairs of SAs; one ends when nothing uses it"
                    );
                    self.notify(path, class.reqid).await;
                }
            }
        }
        unused
    }

    /// Makes this host send by the new SAs in place of those of the connections `replaced`, which are to end.
    /// Returns the connections that were among these at the last call.
    pub(super) async fn prefer_new(
        &mut self,
        current: &Current,
        sas: &Sas,
        replaced: Vec<&str>,
    ) -> Vec<String> {
        let replaced: BTreeSet<String> = replaced.into_iter().map(str::to_owned).collect();
        let before = std::mem::replace(&mut self.replaced, replaced);
        let (ending, fresh): (Vec<String>, Vec<String>) = self
            .replaced
            .iter()
            .cloned()
            .partition(|connection| before.contains(connection));
        for connection in fresh {
            let Some(path) = current.paths.kept_for(&connection) else {
                continue;
            };
            for class in &current.classes {
                let installed = sas.installed(&path.connection, class.class.name());
                let placed = installed.and_then(|child| child.placed(path.address));
                let Some(placed) = placed else {
                    continue;
                };
                by_list(self.kernel.lock().place_first(placed));
                self.notify(path, class.reqid).await;
            }
        }
        ending
    }
}

/// The pair of a class by which both hosts are to send, and the others; none: there is one pair at most, or
/// one of them is young, or is being replaced.
fn choose<'s>(
    sas: &'s Sas,
    connection: &str,
    class: &str,
) -> Option<(&'s ChildSa, Vec<&'s ChildSa>)> {
    let children = sas.of(connection).iter().flat_map(|sa| &sa.children);
    let installed = children.filter(|child| child.installed && child.name == class);
    let installed: Vec<&ChildSa> = installed.collect();
    let is_settled = |child: &&ChildSa| child.is_settled && child.age >= SETTLED;
    if installed.len() < 2 || !installed.iter().all(is_settled) {
        return None;
    }
    let youngest = installed.iter().map(|child| child.age).min()?;
    let lower = |child: &&ChildSa| {
        let spis = [&child.spi_in, &child.spi_out];
        spis.into_iter()
            .filter_map(|spi| parse_spi(spi.as_deref()))
            .min()
    };
    let together = installed
        .iter()
        .copied()
        .filter(|child| child.age <= youngest + TOGETHER);
    let chosen = together.min_by_key(lower)?;
    let others = installed.into_iter();
    let others = others.filter(|child| child.id != chosen.id).collect();
    Some((chosen, others))
}

/// The IKE SAs whose SAs have ended, beside one of the same connection that has some.
pub(super) fn left_over(sas: &Sas) -> Vec<&IkeSa> {
    let mut left_over = Vec::new();
    for connection in sas.connections() {
        let established = || sas.of(connection).iter().filter(|sa| sa.established);
        if established().any(|sa| sa.children.iter().any(|child| child.installed)) {
            let empty = established().filter(|sa| sa.children.is_empty());
            left_over.extend(empty.filter(|sa| sa.age >= LEFT_OVER));
        }
    }
    left_over
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTION: &str = "usher-mailhost";

    fn pair(id: &str, age: u64, spi_in: &str, spi_out: &str) -> ChildSa {
        let mut pair = ChildSa::installed("encryption");
        (pair.id, pair.age) = (id.into(), age);
        pair.spi_in = Some(spi_in.into());
        pair.spi_out = Some(spi_out.into());
        pair
    }

    fn listed(children: Vec<ChildSa>) -> Sas {
        let mut sas = Sas::default();
        for child in children {
            sas.add(CONNECTION, ike_sa(40, vec![child]));
        }
        sas
    }

    fn ike_sa(age: u64, children: Vec<ChildSa>) -> IkeSa {
        IkeSa {
            id: age.to_string(),
            local: None,
            remote: None,
            established: true,
            age,
            algorithms: String::new(),
            children,
        }
    }

    fn chosen(children: Vec<ChildSa>) -> Option<String> {
        let sas = listed(children);
        let (chosen, others) = choose(&sas, CONNECTION, "encryption")?;
        assert_eq!(others.len(), 1);
        assert_ne!(others[0].id, chosen.id);
        Some(chosen.id.clone())
    }

    // Threat model: P77
    #[test]
    fn both_hosts_choose_the_same_pair() {
        // As one host lists them, and as the other does.
        let here = [pair("1", 9, "c3", "c1"), pair("2", 8, "c2", "c4")];
        let there = [pair("7", 9, "c4", "c2"), pair("8", 8, "c1", "c3")];
        assert_eq!(chosen(here.to_vec()).as_deref(), Some("1"));
        assert_eq!(chosen(there.to_vec()).as_deref(), Some("8"));
    }

    // Threat model: P77
    #[test]
    fn of_pairs_far_apart_the_younger_counts() {
        let pairs = vec![pair("1", 100, "1", "2"), pair("2", 8, "3", "4")];
        assert_eq!(chosen(pairs).as_deref(), Some("2"));
    }

    #[test]
    fn pairs_that_come_or_go_are_left_alone() {
        let old = || pair("1", 100, "1", "2");
        assert_eq!(chosen(vec![old()]), None);
        assert_eq!(chosen(vec![old(), pair("2", 4, "3", "4")]), None);
        let mut rekeying = pair("2", 8, "3", "4");
        rekeying.is_settled = false;
        assert_eq!(chosen(vec![old(), rekeying.clone()]), None);
        rekeying.installed = false;
        assert_eq!(chosen(vec![old(), rekeying]), None);
    }

    #[test]
    fn an_ike_sa_without_sas_is_left_over_beside_another() {
        let with = |ages: &[(u64, bool)]| {
            let mut sas = Sas::default();
            for (age, has_sas) in ages {
                let children = vec![pair("1", 9, "1", "2"); usize::from(*has_sas)];
                sas.add(CONNECTION, ike_sa(*age, children));
            }
            let left_over = left_over(&sas).into_iter();
            left_over.map(|sa| sa.age).collect::<Vec<_>>()
        };
        assert_eq!(with(&[(40, true), (50, false)]), [50]);
        assert!(with(&[(40, true), (29, false)]).is_empty());
        assert!(
            with(&[(40, false), (50, false)]).is_empty(),
            "nothing is there yet"
        );
    }
}
