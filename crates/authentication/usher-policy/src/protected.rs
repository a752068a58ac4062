//! Protection of connections with services, on both sides: what `service` and `client` blocks demand
//! of IPsec, whichever program has the connection.

use std::collections::BTreeSet;

use usher_base::HostName;
use usher_protection::{Class, Destination, Kind, Profile, ProtectedService};

use crate::model::{Policy, RequiredProtection};

impl RequiredProtection {
    /// The classes whose SAs meet it.
    pub fn classes(&self) -> impl Iterator<Item = Class> + use<> {
        let demanded = self.kind;
        let all = Class::ALL.into_iter();
        all.filter(move |class| class.kind.includes(demanded))
    }
}

/// The class of the SAs by which a client host protects its connections.
fn class(kind: Kind) -> Class {
    Class::new(kind, Profile::Standard)
}

impl Policy {
    /// The services that demand protection, with the classes by which other hosts may reach them.
    pub fn protected_services(&self) -> Vec<ProtectedService> {
        let services = self.services.values();
        let demanding = services.filter_map(|service| {
            let demand = service.protection.as_ref()?;
            Some(ProtectedService {
                port: service.listen,
                classes: demand.classes().collect(),
            })
        });
        demanding.collect()
    }

    /// The destinations that programs of the host `own` reach over protected connections only. Traffic
    /// within a host is never protected. None: the policy does not know this host, so it counts every
    /// host as another one.
    pub fn protected_destinations(&self, own: Option<&HostName>) -> Vec<Destination> {
        let entries = self.client_services();
        let entries = entries.filter(|entry| own != Some(&entry.host));
        let destinations = entries.flat_map(|entry| {
            let host = self.hosts.get(&entry.host);
            let addresses = host.map_or(&[][..], |host| host.addresses.as_slice());
            entry.protection.into_iter().flat_map(move |kind| {
                addresses.iter().map(move |peer| Destination {
                    peer: peer.to_canonical(),
                    port: entry.port,
                    class: class(kind),
                })
            })
        });
        destinations.collect()
    }

    /// The classes of which this host negotiates SAs with others.
    pub fn classes(&self) -> BTreeSet<Class> {
        let protections = self.applications.iter();
        let protections = protections.flat_map(|block| block.protections.values());
        let items = protections.flat_map(|protection| &protection.items);
        let reached = self.client_services().filter_map(|entry| entry.protection);
        let services = self.protected_services().into_iter();
        items
            .map(|item| item.class())
            .chain(reached.map(class))
            .chain(services.flat_map(|service| service.classes))
            .collect()
    }

    /// Whether this host negotiates SAs of the class by which a `client` block with this demand
    /// protects its connections.
    pub fn negotiates(&self, kind: Kind) -> bool {
        self.classes().contains(&class(kind))
    }

    /// Whether there is something for the protector to enforce.
    pub fn has_protection(&self) -> bool {
        !self.applications.is_empty() || !self.classes().is_empty()
    }
}
