//! `host` blocks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use usher_proto::{HostName, HostPublicKey};

use super::fields::{Field, Fields};
use super::unique::Unique;
use super::values;
use crate::error::{AddressFault, PolicyErrorKind};
use crate::model::{DEFAULT_CONTROL_PORT, Host, MAXIMUM_HOST_ADDRESSES};
use crate::report::Reporter;
use crate::source::Location;
use crate::tree::{Block, Item};

/// Remembers what no two hosts may share.
#[derive(Default)]
pub(super) struct HostChecker {
    /// Loopback addresses stand here too: a proxy cannot stand where a host is.
    addresses: Unique<IpAddr>,
    keys: Unique<HostPublicKey>,
    controls: BTreeMap<u16, ControlPort>,
}

/// A port that services must leave to the control channel.
pub(super) enum ControlPort {
    /// Where it is written.
    Written(Location),
    /// The host that leaves it at the default.
    Default(HostName),
}

impl HostChecker {
    pub(super) fn check(
        &mut self,
        name: Option<HostName>,
        block: &Block,
        reporter: &mut Reporter<'_>,
    ) -> Option<Host> {
        let fields = Fields::read(block, reporter);
        let addresses = fields
            .one("address")
            .and_then(|field| self.addresses(field, reporter));
        let key = fields
            .one("key")
            .and_then(|field| self.key(field, reporter));
        let control = self.control(fields.one("control"), name.as_ref(), reporter);
        let loopback = match fields.one("loopback") {
            Some(field) => self.loopback(field, reporter),
            None => Some(Vec::new()),
        };
        Some(Host {
            name: name?,
            addresses: addresses?,
            key: key?,
            control: control?,
            loopback: loopback?,
        })
    }

    /// The control ports of all hosts checked so far.
    pub(super) fn controls(self) -> BTreeMap<u16, ControlPort> {
        self.controls
    }

    fn addresses(&mut self, field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Vec<IpAddr>> {
        let items = field.list(reporter)?;
        if let Some(item) = items.get(MAXIMUM_HOST_ADDRESSES) {
            reporter.report(item.location, PolicyErrorKind::TooManyAddresses);
            return None;
        }
        items
            .into_iter()
            .map(|item| {
                let found = values::word(item, reporter)?;
                let Ok(address) = found.parse::<IpAddr>() else {
                    let found = found.to_owned();
                    reporter.report(item.location, PolicyErrorKind::InvalidAddress { found });
                    return None;
                };
                if let Some(fault) = fault(address) {
                    let error = PolicyErrorKind::UnusableAddress { address, fault };
                    reporter.report(item.location, error);
                    return None;
                }
                self.claim(address, item, reporter)
            })
            // Every address is looked at before the list is given up.
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    }

    fn loopback(&mut self, field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<Vec<Ipv4Addr>> {
        field
            .list(reporter)?
            .into_iter()
            .map(|item| {
                let found = values::word(item, reporter)?;
                let address = found.parse::<Ipv4Addr>().ok().filter(|address| {
                    address.is_loopback()
                        && ![[127, 0, 0, 0], [127, 0, 0, 1], [127, 255, 255, 255]]
                            .contains(&address.octets())
                });
                let Some(address) = address else {
                    let found = found.to_owned();
                    reporter.report(item.location, PolicyErrorKind::InvalidLoopback { found });
                    return None;
                };
                self.claim(IpAddr::V4(address), item, reporter)?;
                Some(address)
            })
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    }

    fn claim(
        &mut self,
        address: IpAddr,
        item: &Item,
        reporter: &mut Reporter<'_>,
    ) -> Option<IpAddr> {
        if let Some(first) = self.addresses.claim(address, item.location) {
            reporter.report_repeated(item.location, first, |first| {
                PolicyErrorKind::DuplicateAddress { address, first }
            });
            return None;
        }
        Some(address)
    }

    fn key(&mut self, field: Field<'_>, reporter: &mut Reporter<'_>) -> Option<HostPublicKey> {
        let item = field.single(reporter)?;
        let Ok(key) = HostPublicKey::from_openssh(values::text(item, reporter)?) else {
            reporter.report(item.location, PolicyErrorKind::InvalidHostKey);
            return None;
        };
        if let Some(first) = self.keys.claim(key, item.location) {
            reporter.report_repeated(item.location, first, |first| {
                PolicyErrorKind::DuplicateKey { first }
            });
            return None;
        }
        Some(key)
    }

    fn control(
        &mut self,
        field: Option<Field<'_>>,
        name: Option<&HostName>,
        reporter: &mut Reporter<'_>,
    ) -> Option<u16> {
        let (port, place) = match field {
            Some(field) => {
                let item = field.single(reporter)?;
                (
                    values::port(item, reporter)?,
                    ControlPort::Written(item.location),
                )
            }
            None => (DEFAULT_CONTROL_PORT, ControlPort::Default(name?.clone())),
        };
        self.controls.entry(port).or_insert(place);
        Some(port)
    }
}

/// Why an address cannot be a host's.
fn fault(address: IpAddr) -> Option<AddressFault> {
    if address.is_unspecified() {
        return Some(AddressFault::Unspecified);
    }
    match address {
        IpAddr::V4(address) => {
            if address.is_multicast() || address.is_broadcast() {
                Some(AddressFault::NotUnicast)
            } else if address.octets()[0] >= 240 {
                Some(AddressFault::Reserved)
            } else {
                None
            }
        }
        IpAddr::V6(address) => {
            if address.is_multicast() {
                Some(AddressFault::NotUnicast)
            } else if address.to_ipv4_mapped().is_some() {
                Some(AddressFault::MappedIpv4)
            } else if address.is_unicast_link_local() {
                Some(AddressFault::LinkLocal)
            } else {
                None
            }
        }
    }
}
