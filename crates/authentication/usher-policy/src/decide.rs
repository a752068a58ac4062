//! May a user use a service? Answered here and nowhere else.
//!
//! A case is a question with the parts of the policy that bear on it. Its objections come one by one, in the
//! order in which the daemons refuse. The daemons take the first one and allocate nothing; the
//! analyser takes all, with the lines from which they come ([`Objection::clauses`]).

use usher_base::{HostName, ServiceName, UserName};
use usher_language::{Clause, Name};
use usher_proto::Refusal;

use crate::client::{Client, ClientService};
use crate::dialect::BlockKind;
use crate::members::TrustedPrincipal;
use crate::members::Users;
use crate::members::may_be_user;
use crate::model::{Policy, Service};
use crate::moment::Moment;
use crate::names::Principal;

/// A user who comes to a service of this host.
#[derive(Clone, Copy, Debug)]
pub struct ServiceUse<'a> {
    /// The service.
    pub service: &'a ServiceName,
    /// The user.
    pub user: &'a UserName,
    /// The principals of the user's certificate for which policy trusts its authority now; none for a listed
    /// key.
    pub principals: &'a [TrustedPrincipal<'a>],
    /// The host from which the user comes, by its name in this policy. None for a host that this
    /// policy does not know: no objection is made to it here, because nothing permits it.
    pub host: Option<&'a HostName>,
    /// The time in seconds since 1970.
    pub now: u64,
}

/// A local user who wants to authenticate to a service of another host.
#[derive(Clone, Copy, Debug)]
pub struct ClientUse<'a> {
    /// The user.
    pub user: &'a UserName,
    /// The host that offers the service, by its name in this policy.
    pub host: &'a HostName,
    /// The service.
    pub service: &'a ServiceName,
    /// The time in seconds since 1970.
    pub now: u64,
}

/// One reason not to permit what is asked. Each refuses by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objection<'a> {
    /// The client's policy has no such host.
    UnknownHost,
    /// No `client` block names the service at that host.
    NoClientEntry,
    /// The `client` block that names the service does not permit the user.
    NotInClient(&'a Client),
    /// This host offers no such service.
    NoService,
    /// The service does not admit the user.
    NotAdmitted(&'a Service),
    /// No policy can admit this user to this service: root, an account of Usher's daemons, or the account
    /// that serves.
    NeverAdmitted(&'a Service),
    /// The user was a guest, and the latest time of any set is over.
    GuestOver(Guest<'a>),
    /// The service admits no user from that host.
    HostNotAdmitted(&'a Service),
}

/// A user whose time as a guest is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guest<'a> {
    /// The user.
    pub user: &'a UserName,
    /// The kind and the name of the block that names the set: a `client` or a `service`.
    pub named_by: (BlockKind, &'a str),
    /// The set with the latest time.
    pub users: &'a Name,
    /// The latest time.
    pub until: Moment,
}

impl Objection<'_> {
    /// The refusal that the daemons answer with.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::UnknownHost => Refusal::UnknownHost,
            Self::NoClientEntry | Self::NotInClient(_) => Refusal::ClientPolicy,
            Self::GuestOver(guest) if guest.named_by.0 == BlockKind::Client => {
                Refusal::ClientPolicy
            }
            Self::NoService => Refusal::UnknownService,
            Self::NotAdmitted(_) | Self::NeverAdmitted(_) => Refusal::UserNotPermitted,
            Self::GuestOver(_) => Refusal::GuestOver,
            Self::HostNotAdmitted(_) => Refusal::HostNotPermitted,
        }
    }

    /// The line that would have to change. None if a line would have to be added, or if no change helps.
    pub fn clause(&self) -> Option<Clause> {
        let of_service = |service: &Service, keyword| {
            Some(Clause::statement(
                BlockKind::Service,
                &service.name,
                keyword,
            ))
        };
        match self {
            Self::NotInClient(client) => {
                Some(Clause::statement(BlockKind::Client, &client.name, "users"))
            }
            Self::NotAdmitted(service) => of_service(service, "users"),
            Self::HostNotAdmitted(service) => of_service(service, "hosts"),
            Self::GuestOver(Guest {
                user, users, until, ..
            }) => {
                let line = format!("{user} until {until}");
                Some(Clause::value(BlockKind::Users, users, "guest", line))
            }
            Self::UnknownHost | Self::NoClientEntry | Self::NoService | Self::NeverAdmitted(_) => {
                None
            }
        }
    }
}

/// A [`ServiceUse`] with what the policy has about it.
#[derive(Clone, Copy, Debug)]
pub struct ServiceCase<'p, 'a> {
    policy: &'p Policy,
    asked: ServiceUse<'a>,
    /// The service, where this host offers it.
    pub service: Option<&'p Service>,
    /// The second from which on the service does not admit the user any more; none for a user whom
    /// it never admits. This does not depend on the host.
    until: Option<u64>,
}

/// A [`ClientUse`] with what the policy has about it.
#[derive(Clone, Copy, Debug)]
pub struct ClientCase<'p, 'a> {
    policy: &'p Policy,
    asked: ClientUse<'a>,
    knows_host: bool,
    /// The one entry of all `client` blocks for the service at that host.
    pub entry: Option<(&'p Client, &'p ClientService)>,
}

impl Policy {
    /// Looks up what decides whether a user may use a service of this host.
    pub fn service_case<'a>(&self, asked: ServiceUse<'a>) -> ServiceCase<'_, 'a> {
        let service = self.services.get(asked.service);
        let until = service.and_then(|service| service.admits_until(asked.user, asked.principals));
        ServiceCase {
            policy: self,
            asked,
            service,
            until,
        }
    }

    /// Looks up what decides whether a local user may authenticate to a service of another host.
    pub fn client_case<'a>(&self, asked: ClientUse<'a>) -> ClientCase<'_, 'a> {
        let ClientUse { host, service, .. } = asked;
        let knows_host = self.hosts.contains_key(host);
        let mut clients = self.clients.values().filter(|_| knows_host);
        let entry = clients.find_map(|client| {
            let mut entries = client.services.iter();
            let entry = entries.find(|entry| entry.host == *host && entry.service == *service);
            Some((client, entry?))
        });
        ClientCase {
            policy: self,
            asked,
            knows_host,
            entry,
        }
    }

    /// Whether a service of this host admits a user who comes from a host, at a time. Returns the service,
    /// and the second from which on it no longer admits the user: [`u64::MAX`] if it always will.
    ///
    /// # Errors
    ///
    /// The refusal of the first objection: [`Refusal::UnknownService`],
    /// [`Refusal::UserNotPermitted`], [`Refusal::GuestOver`] or [`Refusal::HostNotPermitted`].
    pub fn service_permits(
        &self,
        service: &ServiceName,
        user: &UserName,
        principals: &[TrustedPrincipal<'_>],
        host: &HostName,
        now: u64,
    ) -> Result<(&Service, u64), Refusal> {
        let case = self.service_case(ServiceUse {
            service,
            user,
            principals,
            host: Some(host),
            now,
        });
        match (case.objections().next(), case.service, case.until) {
            (None, Some(service), Some(until)) => Ok((service, until)),
            (objection, ..) => {
                Err(objection.map_or(Refusal::UnknownService, |objection| objection.refusal()))
            }
        }
    }

    /// Whether a local user may authenticate to a service on a host, at a time in seconds since
    /// 1970.
    ///
    /// # Errors
    ///
    /// The refusal of the first objection: [`Refusal::UnknownHost`] when the policy has no such
    /// host, [`Refusal::ClientPolicy`] when no `client` block permits it.
    pub fn client_permits(
        &self,
        user: &UserName,
        host: &HostName,
        service: &ServiceName,
        now: u64,
    ) -> Result<&ClientService, Refusal> {
        let case = self.client_case(ClientUse {
            user,
            host,
            service,
            now,
        });
        match (case.objections().next(), case.entry) {
            (None, Some((_, entry))) => Ok(entry),
            (objection, _) => {
                Err(objection.map_or(Refusal::ClientPolicy, |objection| objection.refusal()))
            }
        }
    }

    /// The objection to a former guest of these sets, with the latest of the guest's times.
    fn former_guest<'p>(
        &'p self,
        user: &UserName,
        named_by: (BlockKind, &'p str),
        sets: impl IntoIterator<Item = &'p Name>,
    ) -> Option<Objection<'p>> {
        let times = sets.into_iter().filter_map(|set| {
            let set = self.users.get(set)?;
            let guest = set.guests.get_key_value(user);
            let (user, until) = guest.or_else(|| set.former.get_key_value(user))?;
            Some((*until, &set.name, user))
        });
        let (until, users, user) = times.max()?;
        Some(Objection::GuestOver(Guest {
            user,
            named_by,
            users,
            until,
        }))
    }
}

impl<'p> ServiceCase<'p, '_> {
    /// The objections; none when the policy permits it.
    pub fn objections(&self) -> impl Iterator<Item = Objection<'p>> {
        let case = *self;
        let checks: [fn(&Self, &'p Service) -> Option<Objection<'p>>; 2] =
            [Self::object_to_user, Self::object_to_host];
        let missing = case.service.is_none().then_some(Objection::NoService);
        let checks = checks
            .into_iter()
            .filter_map(move |check| check(&case, case.service?));
        missing.into_iter().chain(checks)
    }

    fn object_to_user(&self, service: &'p Service) -> Option<Objection<'p>> {
        let ServiceUse { user, now, .. } = self.asked;
        if self.until.is_some_and(|until| until > now) {
            return None;
        }
        let named_by = (BlockKind::Service, service.name.as_ref());
        let guest = self
            .policy
            .former_guest(user, named_by, &service.user_blocks);
        Some(guest.unwrap_or(if service.may_certify(user) {
            Objection::NotAdmitted(service)
        } else {
            Objection::NeverAdmitted(service)
        }))
    }

    fn object_to_host(&self, service: &'p Service) -> Option<Objection<'p>> {
        let refused = self
            .asked
            .host
            .is_some_and(|host| !service.hosts.contains(host));
        refused.then_some(Objection::HostNotAdmitted(service))
    }
}

impl<'p> ClientCase<'p, '_> {
    /// The objections; none when the policy permits it.
    pub fn objections(&self) -> impl Iterator<Item = Objection<'p>> {
        let objection = match self.entry {
            _ if !self.knows_host => Some(Objection::UnknownHost),
            None => Some(Objection::NoClientEntry),
            Some((_, entry)) if entry.users.has(self.asked.user, self.asked.now) => None,
            Some((client, _)) => {
                let named_by = (BlockKind::Client, client.name.as_ref());
                let sets = &client.user_blocks;
                let guest = self.policy.former_guest(self.asked.user, named_by, sets);
                Some(guest.unwrap_or(Objection::NotInClient(client)))
            }
        };
        objection.into_iter()
    }
}

impl Service {
    /// The second from which on the service no longer admits a user with a certificate of these principals,
    /// whatever the host; none for a user whom it never admits.
    fn admits_until(&self, user: &UserName, principals: &[TrustedPrincipal<'_>]) -> Option<u64> {
        let by_certificate = if self.may_certify(user) {
            self.users.until_by(principals)
        } else {
            None
        };
        // `None` is less than any time.
        self.users.until(user).max(by_certificate)
    }

    /// Whether a certificate may make this account a user of the service: any account that could be a
    /// `member`, except the service's own.
    pub fn may_certify(&self, user: &UserName) -> bool {
        may_be_user(user) && self.account() != Some(user)
    }
}

impl Users {
    /// The statements by which a user is in the set by name: each such `member`, `group` and `guest`.
    pub fn clauses_of(&self, user: &UserName) -> Vec<Clause> {
        let clause = |keyword, value: &dyn std::fmt::Display| {
            Clause::value(BlockKind::Users, &self.name, keyword, value)
        };
        let member = self.members.get(user).map(|user| clause("member", user));
        let groups = self.groups.iter();
        let groups = groups
            .filter(|(_, group)| group.members.contains(user))
            .map(|(name, _)| clause("group", name));
        let guest = self.guests.get(user);
        let guest = guest.map(|until| clause("guest", &format!("{user} until {until}")));
        member.into_iter().chain(groups).chain(guest).collect()
    }

    /// The clause by which a certificate with this principal makes its holder a user.
    pub fn clause_of_principal(&self, principal: &Principal) -> Option<Clause> {
        let named = self.principals.get(principal)?;
        Some(Clause::value(
            BlockKind::Users,
            &self.name,
            "principal",
            named,
        ))
    }
}
