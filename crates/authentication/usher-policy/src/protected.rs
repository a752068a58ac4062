//! Protection of connections with services, on both sides: what `service` and `client` blocks demand
//! of IPsec, whichever program has the connection.

use std::collections::BTreeSet;

use usher_base::HostName;
use usher_protection::{Class, Destination, Kind, Profile, ProtectedService};

use crate::model::{Policy, RequiredProtection};

impl RequiredProtection {
    /// The classes whose SAs meet this demand.
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
        let blocks = self.applications.iter();
        let protected = blocks.flat_map(|block| block.classes(&self.names));
        let reached = self.client_services().filter_map(|entry| entry.protection);
        let services = self.protected_services().into_iter();
        protected
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, parse_policy};

    #[test]
    fn what_no_traffic_gets_is_not_negotiated() {
        let text = "application curl {\n\
                    network 10.0.0.1 protected E;\n\
                    protection E { localport=any remoteport=any encryption mandatory;\n\
                                   localport=any remoteport=80 authentication mandatory; }\n\
                    protection A { localport=any remoteport=any authentication mandatory; }\n}\n";
        let policy = |text: &str| {
            parse_policy(&[Source {
                name: "a.policy".into(),
                text: text.into(),
            }])
            .expect("a correct policy")
        };
        let unused = policy(text);
        assert!(unused.negotiates(Kind::Encryption));
        assert!(!unused.negotiates(Kind::Authentication));
        let used = policy(&text.replace("protected E;", "protected A;"));
        assert!(used.negotiates(Kind::Authentication));
        assert!(!used.negotiates(Kind::Encryption));
    }
}
