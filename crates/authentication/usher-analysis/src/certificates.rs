//! Users by certificate: users whose certificate names a principal of a service's users. No policy
//! says which users have such certificates, so they are kept apart from users by name.

use usher_base::UserName;
use usher_policy::{Principal, Service};

use crate::network::{Holders, HostPolicy};
use crate::sets::{SetId, Universe};

/// The users who may use a service only with a certificate that names a principal.
#[derive(Clone, Copy, Debug)]
pub struct ByCertificate<'n> {
    /// The principal that the certificate names.
    pub principal: &'n Principal,
    /// The users of the universe who may use the service with such a certificate.
    pub users: SetId,
    /// Whether users whom no policy names also may. If the client's policy is known, it names all users.
    pub anybody: bool,
}

impl HostPolicy {
    /// The principals of a service's users by which a certificate makes the user one: those for
    /// which the service would admit the certificate, if it exists.
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

impl<'n> Universe<'n> {
    /// The users who may use a service only by a certificate, for each principal with such users.
    /// If the client's policy is known, only those whom it permits.
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

    /// The users whom no certificate makes users of a service.
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
