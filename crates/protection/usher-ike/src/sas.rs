//! The SAs that charon lists, by the connections that they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::paths::is_ours;
use crate::vici::Section;

/// The SAs that the kernel has: the receiver's address and the SPI of each.
pub type KernelSas = BTreeSet<(IpAddr, u32)>;

/// An SA by which this host sends, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its receiver.
    pub to: IpAddr,
    /// Its SPI.
    pub spi: u32,
    /// Its protocol is AH. Else: ESP.
    pub is_ah: bool,
}

/// All SAs of Usher's connections. There may be thousands, and each path looks for its own.
#[derive(Debug, Default)]
pub(crate) struct Sas(BTreeMap<String, Vec<IkeSa>>);

/// An IKE SA of one of Usher's connections.
#[derive(Clone, Debug)]
pub(crate) struct IkeSa {
    pub(crate) id: String,
    /// This host's address; none: charon does not say it.
    pub(crate) local: Option<IpAddr>,
    /// The peer's address; none: charon does not say it.
    pub(crate) remote: Option<IpAddr>,
    pub(crate) established: bool,
    /// For how long, in seconds.
    pub(crate) age: u64,
    pub(crate) algorithms: String,
    pub(crate) children: Vec<ChildSa>,
}

/// A pair of SAs.
#[derive(Clone, Debug)]
pub(crate) struct ChildSa {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) installed: bool,
    /// It is in force, and nothing replaces it at present.
    pub(crate) is_settled: bool,
    pub(crate) is_ah: bool,
    pub(crate) age: u64,
    /// Seconds until it is to be rekeyed, negative if it is overdue. None: it is being rekeyed, or never
    /// will be.
    pub(crate) rekey_in: Option<i64>,
    pub(crate) algorithms: String,
    pub(crate) spi_in: Option<String>,
    pub(crate) spi_out: Option<String>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

#[cfg(test)]
impl ChildSa {
    /// A pair of SAs of a class that is in force, as charon lists it.
    pub(crate) fn installed(class: &str) -> Self {
        Self {
            id: "1".into(),
            name: class.into(),
            installed: true,
            is_settled: true,
            is_ah: false,
            age: 1,
            rekey_in: None,
            algorithms: String::new(),
            spi_in: None,
            spi_out: None,
            bytes_in: 0,
            bytes_out: 0,
        }
    }
}

impl Sas {
    pub(crate) fn add(&mut self, connection: &str, sa: IkeSa) {
        match self.0.get_mut(connection) {
            Some(sas) => sas.push(sa),
            None => {
                self.0.insert(connection.to_owned(), vec![sa]);
            }
        }
    }

    /// The connections that have SAs.
    pub(crate) fn connections(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The SAs of a connection.
    pub(crate) fn of(&self, connection: &str) -> &[IkeSa] {
        self.0.get(connection).map_or(&[], Vec::as_slice)
    }

    /// The youngest installed pair of SAs of a class.
    pub(crate) fn installed(&self, connection: &str, class: &str) -> Option<&ChildSa> {
        let children = self.of(connection).iter().flat_map(|sa| &sa.children);
        let installed = children.filter(|child| child.installed && child.name == class);
        installed.min_by_key(|child| child.age)
    }

    /// The SAs by which this host sends, those of each class with a peer together. Some may be gone: charon
    /// keeps replaced pairs for a while.
    pub(crate) fn placed(&self) -> Vec<Vec<Placed>> {
        let mut placed: BTreeMap<(&str, &str), Vec<Placed>> = BTreeMap::new();
        for (connection, sas) in &self.0 {
            for sa in sas {
                for child in &sa.children {
                    let own = sa.remote.and_then(|remote| child.placed(remote));
                    let class = (connection.as_str(), child.name.as_str());
                    placed.entry(class).or_default().extend(own);
                }
            }
        }
        placed.into_values().collect()
    }

    /// All SAs of both directions, whatever their state.
    pub(crate) fn spis(&self) -> KernelSas {
        let mut spis = KernelSas::new();
        for sa in self.0.values().flatten() {
            for child in &sa.children {
                let ends = [(sa.local, &child.spi_in), (sa.remote, &child.spi_out)];
                let ends = ends
                    .into_iter()
                    .filter_map(|(to, spi)| Some((to?, parse_spi(spi.as_deref())?)));
                spis.extend(ends);
            }
        }
        spis
    }

    /// All pairs of SAs, each with its connection.
    pub(crate) fn children(&self) -> impl Iterator<Item = (&str, &ChildSa)> {
        self.0.iter().flat_map(|(connection, sas)| {
            let children = sas.iter().flat_map(|sa| &sa.children);
            children.map(|child| (connection.as_str(), child))
        })
    }
}

impl IkeSa {
    pub(crate) fn read(sa: &Section) -> Self {
        let children = sa
            .inner("child-sas")
            .into_iter()
            .flat_map(Section::sections);
        let address = |name| sa.text(name).and_then(|text| text.parse().ok());
        Self {
            id: sa.text("uniqueid").unwrap_or_default(),
            local: address("local-host"),
            remote: address("remote-host"),
            established: sa.text("state").as_deref() == Some("ESTABLISHED"),
            age: sa.number("established").unwrap_or(0),
            algorithms: joined(
                sa,
                &["encr-alg", "integ-alg", "prf-alg", "dh-group", "ake1"],
            ),
            children: children.map(|(_, child)| ChildSa::read(child)).collect(),
        }
    }
}

impl ChildSa {
    /// The SA by which this host sends to the peer at this address.
    pub(crate) fn placed(&self, to: IpAddr) -> Option<Placed> {
        let spi = parse_spi(self.spi_out.as_deref())?;
        let is_ah = self.is_ah;
        Some(Placed { to, spi, is_ah })
    }

    /// Returns whether the kernel has the SA by which this host sends to the peer at this address.
    pub(crate) fn sends(&self, kernel: &KernelSas, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| is_there(kernel, peer, self.spi_out.as_deref()))
    }

    /// Returns whether the kernel has the SA by which this host receives at this address of its own.
    pub(crate) fn receives(&self, kernel: &KernelSas, own: Option<IpAddr>) -> bool {
        own.is_some_and(|own| is_there(kernel, own, self.spi_in.as_deref()))
    }

    fn read(child: &Section) -> Self {
        let state = child.text("state").unwrap_or_default();
        let number = |name| child.number(name).unwrap_or(0);
        let rekey_in = child.text("rekey-time").filter(|_| state == "INSTALLED");
        Self {
            id: child.text("uniqueid").unwrap_or_default(),
            name: child.text("name").unwrap_or_default(),
            installed: ["INSTALLED", "UPDATING", "REKEYING"].contains(&state.as_str()),
            is_settled: state == "INSTALLED",
            is_ah: child.text("protocol").as_deref() == Some("AH"),
            age: number("install-time"),
            rekey_in: rekey_in.and_then(|text| text.parse().ok()),
            algorithms: format!(
                "{} {}",
                child.text("protocol").unwrap_or_default(),
                joined(child, &["encr-alg", "integ-alg", "dh-group", "ake1"])
            ),
            spi_in: child.text("spi-in"),
            spi_out: child.text("spi-out"),
            bytes_in: number("bytes-in"),
            bytes_out: number("bytes-out"),
        }
    }
}

/// Returns whether the kernel has the SA with this SPI, as charon writes it, for this receiver.
pub(crate) fn is_there(kernel: &KernelSas, receiver: IpAddr, spi: Option<&str>) -> bool {
    parse_spi(spi).is_some_and(|spi| kernel.contains(&(receiver, spi)))
}

/// An SPI as charon writes it.
pub(crate) fn parse_spi(spi: Option<&str>) -> Option<u32> {
    spi.and_then(|spi| u32::from_str_radix(spi, 16).ok())
}

/// A new outbound SA, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Come {
    /// It replaces no other SA.
    First(Placed),
    /// This host has begun the rekeying. The other host has the new SA.
    Asked { former: Placed, new: Placed },
    /// The other host has begun the rekeying, and may not have the new SA yet.
    Granted { former: Placed, new: Placed },
    /// Both hosts have begun a rekeying, perhaps of the same former SA. The new SA is the other host's, which
    /// may not have it yet.
    Contested { former: Placed, new: Placed },
}

/// The new outbound SAs that an event of charon reports.
pub(crate) fn come(event: &Section) -> Vec<Come> {
    let ours = event.sections().filter(|(name, _)| is_ours(name));
    let come = ours.flat_map(|(_, sa)| {
        let to: Option<IpAddr> = sa.text("remote-host").and_then(|text| text.parse().ok());
        // The tasks of charon while it sends the event: those of the other host, and those of this one.
        let [granting, asking] = ["tasks-passive", "tasks-active"].map(|name| {
            let tasks = sa.texts(name);
            tasks.iter().any(|task| task == "CHILD_REKEY")
        });
        let children = sa.inner("child-sas").into_iter();
        let children = children.flat_map(Section::sections);
        children.filter_map(move |(_, child)| {
            let placed = |child| ChildSa::read(child).placed(to?);
            let (Some(former), Some(new)) = (child.inner("old"), child.inner("new")) else {
                return placed(child).map(Come::First);
            };
            let (former, new) = (placed(former)?, placed(new)?);
            Some(match (granting, asking) {
                (true, true) => Come::Contested { former, new },
                (true, false) => Come::Granted { former, new },
                (false, _) => Come::Asked { former, new },
            })
        })
    });
    come.collect()
}

/// The algorithms of an SA: `AES_GCM_16-256/CURVE_25519`.
fn joined(sa: &Section, names: &[&str]) -> String {
    let algorithms = names.iter().filter_map(|name| {
        let algorithm = sa.text(name)?;
        let size = sa.text(&name.replace("-alg", "-keysize"));
        Some(match size.filter(|_| *name == "encr-alg") {
            Some(size) => format!("{algorithm}-{size}"),
            None => algorithm,
        })
    });
    algorithms.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sa() -> Section {
        let child = Section::new()
            .value("name", "encryption")
            .value("uniqueid", "4")
            .value("state", "INSTALLED")
            .value("protocol", "ESP")
            .value("encr-alg", "AES_GCM_16")
            .value("encr-keysize", "256")
            .value("bytes-in", "170")
            .value("spi-in", "c227e54a")
            .value("spi-out", "c227e54c")
            .value("install-time", "5")
            .value("rekey-time", "-7");
        Section::new()
            .value("state", "ESTABLISHED")
            .value("established", "4")
            .value("local-host", "192.0.2.1")
            .value("remote-host", "192.0.2.2")
            .section("child-sas", Section::new().section("encryption-4", child))
    }

    #[test]
    fn a_listed_sa_is_read() {
        let sa = IkeSa::read(&sa());
        assert!(sa.established);
        let child = &sa.children[0];
        assert!(child.installed);
        assert_eq!(child.algorithms, "ESP AES_GCM_16-256");
        assert_eq!((child.age, child.bytes_in), (5, 170));
        assert_eq!(child.rekey_in, Some(-7));
        let (own, peer) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let with = |receiver: IpAddr, spi| {
            let kernel = KernelSas::from([(receiver, spi)]);
            let receives = child.receives(&kernel, sa.local);
            (child.sends(&kernel, sa.remote), receives)
        };
        assert_eq!(with(peer, 0xc227_e54c), (true, false));
        assert_eq!(with(own, 0xc227_e54a), (false, true));
        for (receiver, spi) in [(peer, 0xc227_e54a), (own, 0xc227_e54c), (peer, 0xc227_e54d)] {
            assert_eq!(with(receiver, spi), (false, false));
        }
    }

    #[test]
    fn a_pair_that_is_being_rekeyed_is_not_due() {
        let child = |state| {
            let child = Section::new().value("state", state);
            ChildSa::read(&child.value("rekey-time", "-7")).rekey_in
        };
        assert_eq!(child("REKEYING"), None);
        assert_eq!(child("INSTALLED"), Some(-7));
    }

    #[test]
    fn what_has_come_by_an_event_is_read() {
        let child = |spi| Section::new().value("spi-out", spi).value("protocol", "AH");
        let rekeyed = Section::new()
            .section("old", child("1"))
            .section("new", child("a"));
        let rekeyed = Section::new().section("encryption", rekeyed);
        let event = |name, active: &[&str], passive: &[&str], children: &Section| {
            let sa = Section::new().value("remote-host", "192.0.2.2");
            let sa = sa
                .list("tasks-active", active)
                .list("tasks-passive", passive);
            Section::new().section(name, sa.section("child-sas", children.clone()))
        };
        let placed = |spi| Placed {
            to: [192, 0, 2, 2].into(),
            spi,
            is_ah: true,
        };
        let (former, new) = (placed(1), placed(10));
        let here = ["CHILD_REKEY"];
        let rekeying = |active, passive| come(&event("usher-x", active, passive, &rekeyed));
        assert_eq!(rekeying(&here, &[]), [Come::Asked { former, new }]);
        assert_eq!(rekeying(&[], &here), [Come::Granted { former, new }]);
        assert_eq!(rekeying(&here, &here), [Come::Contested { former, new }]);
        // Later versions of charon report this when the former SA is deleted.
        assert_eq!(
            rekeying(&[], &["CHILD_DELETE"]),
            [Come::Asked { former, new }]
        );
        let first = Section::new().section("encryption-1", child("b"));
        let first = come(&event("usher-x", &[], &["CHILD_CREATE"], &first));
        assert_eq!(first, [Come::First(placed(11))]);
        assert!(
            come(&event("home", &[], &[], &rekeyed)).is_empty(),
            "not Usher's"
        );
        assert!(come(&Section::new().value("usher-x", "1")).is_empty());
    }

    #[test]
    fn an_sa_of_nonsense_is_an_sa_that_protects_nothing() {
        let nonsense = Section::new()
            .value("established", "-1")
            .value("child-sas", "none")
            .list("state", ["ESTABLISHED"]);
        let sa = IkeSa::read(&nonsense);
        assert!(!sa.established && sa.children.is_empty());
    }
}
