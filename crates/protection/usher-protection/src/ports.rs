//! Exact sets of pairs of ports: what earlier items of a protection cover.

use std::collections::BTreeSet;

/// How many ports there are: 1 to 65,535.
const PORTS: usize = 65_535;

/// A set of pairs of a local and a remote port, made of single ports and `any`.
#[derive(Default)]
pub struct PortPairs {
    all: bool,
    /// Local ports with every remote port.
    rows: BTreeSet<u16>,
    /// Remote ports with every local port.
    columns: BTreeSet<u16>,
    points: BTreeSet<(u16, u16)>,
    /// `points`, remote port first.
    turned: BTreeSet<(u16, u16)>,
}

impl PortPairs {
    pub fn add(&mut self, local: Option<u16>, remote: Option<u16>) {
        match (local, remote) {
            (None, None) => self.all = true,
            (Some(local), None) => drop(self.rows.insert(local)),
            (None, Some(remote)) => drop(self.columns.insert(remote)),
            (Some(local), Some(remote)) => {
                self.points.insert((local, remote));
                self.turned.insert((remote, local));
            }
        }
    }

    pub fn covers(&self, local: Option<u16>, remote: Option<u16>) -> bool {
        self.all
            || match (local, remote) {
                (None, None) => self.covers_all(),
                (Some(local), None) => line(local, &self.rows, &self.columns, &self.points),
                (None, Some(remote)) => line(remote, &self.columns, &self.rows, &self.turned),
                (Some(local), Some(remote)) => {
                    self.rows.contains(&local)
                        || self.columns.contains(&remote)
                        || self.points.contains(&(local, remote))
                }
            }
    }

    /// Returns whether rows, columns and points together are all pairs.
    fn covers_all(&self) -> bool {
        let missing = (PORTS - self.rows.len()) * (PORTS - self.columns.len());
        if self.points.len() < missing {
            return false;
        }
        let outside = |&&(local, remote): &&(u16, u16)| {
            !self.rows.contains(&local) && !self.columns.contains(&remote)
        };
        self.points.iter().filter(outside).count() == missing
    }
}

/// Returns whether all pairs with this port on one side are covered: as a line of its own, or by the
/// lines across it and single points.
fn line(
    port: u16,
    along: &BTreeSet<u16>,
    across: &BTreeSet<u16>,
    points: &BTreeSet<(u16, u16)>,
) -> bool {
    if along.contains(&port) {
        return true;
    }
    let on_line = points.range((port, 0)..=(port, u16::MAX));
    let outside = on_line.filter(|(_, other)| !across.contains(other));
    outside.count() == PORTS - across.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_port_together_is_any() {
        let mut pairs = PortPairs::default();
        for port in 1..u16::MAX {
            pairs.add(Some(22), Some(port));
        }
        assert!(!pairs.covers(Some(22), None));
        pairs.add(None, Some(u16::MAX));
        assert!(pairs.covers(Some(22), None));
        assert!(!pairs.covers(Some(23), None) && !pairs.covers(None, None));
        for port in 1..=u16::MAX {
            if port != 22 {
                pairs.add(Some(port), None);
            }
        }
        assert!(pairs.covers(None, None) && pairs.covers(None, Some(7)));
    }
}
