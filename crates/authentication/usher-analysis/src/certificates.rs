//! Users by a certificate: whoever has one that names a principal of a service's users. Whether
//! somebody has such a certificate no policy says, so they are told apart from users by name.

use std::collections::BTreeSet;

use usher_policy::{Principal, ServedBy, Service, may_be_user};
use usher_proto::UserName;

use crate::network::{Holders, HostPolicy, Network};
use crate::rights::Right;
use crate::sets::{SetId, Universe};

/// Who may use a service with a certificate that names a principal, and not otherwise.
#[derive(Clone, Copy, Debug)]
pub struct ByCertificate<'n> {
    /// What the certificate names.
    pub principal: &'n Principal,
    /// Those of the universe who may.
    pub users: SetId,
    /// Everybody may whom no policy names. Where the client's policy is known it names all.
    pub anybody: bool,
}

impl HostPolicy {
    /// The principals of a service's users of which one makes the user one: where the service would
    /// admit the certificate, if there is one.
    pub(crate) fn certifiable<'n>(
        &'n self,
        service: &'n Service,
        user: &UserName,
    ) -> Vec<&'n Principal> {
        if !service.may_certify(user) {
            return Vec::new();
        }
        let principals = service.users.principals().iter();
        principals
            .filter(|principal| self.users.certified(service, principal).has(user))
            .collect()
    }
}

impl<'n> Right<'n> {
    /// The principals of which a user's certificate must name one; none for a user who may without,
    /// or may not at all.
    pub fn principals_for(&self, universe: &Universe<'n>, user: &UserName) -> Vec<&'n Principal> {
        let may = |by: &&ByCertificate<'_>| match universe.knows(user) {
            true => universe.contains(by.users, user),
            false => {
                by.anybody
                    && self
                        .offered
                        .is_some_and(|service| service.may_certify(user))
            }
        };
        let by_certificate = self.by_certificate.iter().filter(may);
        by_certificate.map(|by| by.principal).collect()
    }
}

impl<'n> Universe<'n> {
    /// Who may use a service by a certificate, for each principal for which there is somebody: among
    /// those whom the client permits, where that is known, and besides those who may anyway.
    pub(crate) fn by_certificate(
        &mut self,
        (server, service): (&'n HostPolicy, &'n Service),
        permitted: Option<SetId>,
        by_name: SetId,
    ) -> Vec<ByCertificate<'n>> {
        let mut found = Vec::new();
        if service.users.principals().is_empty() {
            return found;
        }
        let barred = self.not_certifiable(service);
        for principal in service.users.principals() {
            let holders = server.users.certified(service, principal);
            let users = match &holders {
                Holders::Everybody => self.everybody(),
                Holders::These(users) => self.of(users),
                Holders::Nobody => continue,
            };
            let users = match permitted {
                Some(permitted) => self.both(users, permitted),
                None => users,
            };
            let users = self.at(server, users);
            let users = self.without(users, by_name);
            let users = self.without(users, barred);
            let anybody = permitted.is_none() && matches!(holders, Holders::Everybody);
            if anybody || users != SetId::NOBODY {
                found.push(ByCertificate {
                    principal,
                    users,
                    anybody,
                });
            }
        }
        found
    }

    /// Those whom no certificate makes users of a service.
    pub(crate) fn not_certifiable(&mut self, service: &'n Service) -> SetId {
        let address = std::ptr::from_ref(service).addr();
        if let Some(known) = self.barred.get(&address) {
            return *known;
        }
        let mut barred = SetId::NOBODY;
        for user in self.set_apart() {
            if !service.may_certify(user) {
                let single = self.single(user);
                barred = self.either(barred, single);
            }
        }
        self.barred.insert(address, barred);
        barred
    }
}

/// Whom a certificate does not make a user of every service, as far as these networks know them:
/// those who can be nobody's user, and accounts of services.
pub(crate) fn not_certifiable_everywhere<'n>(
    networks: &[&'n Network],
    users: impl Iterator<Item = &'n UserName>,
) -> BTreeSet<&'n UserName> {
    let hosts = networks.iter().flat_map(|network| network.hosts());
    let services = hosts.flat_map(|host| host.policy.services.values());
    let mut services = services
        .filter(|service| !service.users.principals().is_empty())
        .peekable();
    if services.peek().is_none() {
        return BTreeSet::new();
    }
    let accounts = services.filter_map(|service| match &service.served_by {
        ServedBy::Account(account) => Some(account),
        ServedBy::Program(_) => None,
    });
    users
        .filter(|user| !may_be_user(user))
        .chain(accounts)
        .collect()
}
