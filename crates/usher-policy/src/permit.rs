//! What the daemons ask of a policy.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use usher_proto::{HostName, HostPublicKey, Refusal, ServiceName, UserName};

use crate::group::may_be_user;
use crate::members::TrustedPrincipal;
use crate::model::{ClientService, Host, Policy, Programs, ProxyListener, ServedBy, Service};

impl Policy {
    /// The host with this key, if the policy knows one.
    pub fn host_by_key(&self, key: &HostPublicKey) -> Option<&Host> {
        self.hosts.values().find(|host| host.key == *key)
    }

    /// The host with this address, if the policy knows one. An IPv4-mapped address is looked up as
    /// the IPv4 address that it stands for.
    pub fn host_of_address(&self, address: IpAddr) -> Option<&Host> {
        let address = address.to_canonical();
        self.hosts
            .values()
            .find(|host| host.addresses.contains(&address))
    }

    /// Whether a service of this host admits a user who comes from a host, at a time: the service,
    /// and the second from which on it does not any more, [`u64::MAX`] for one that never comes.
    /// Times are in seconds since 1970. The principals are those of the user's certificate that
    /// policy trusts its authority with now; none for a key that is listed.
    ///
    /// # Errors
    ///
    /// [`Refusal::UnknownService`], [`Refusal::UserNotPermitted`], [`Refusal::GuestOver`] or
    /// [`Refusal::HostNotPermitted`]: the first that applies.
    pub fn service_permits(
        &self,
        service: &ServiceName,
        user: &UserName,
        principals: &[TrustedPrincipal<'_>],
        host: &HostName,
        now: u64,
    ) -> Result<(&Service, u64), Refusal> {
        let service = self.services.get(service).ok_or(Refusal::UnknownService)?;
        let until = service
            .admits_until(user, principals)
            .ok_or(Refusal::UserNotPermitted)?;
        if until <= now {
            return Err(Refusal::GuestOver);
        }
        if !service.hosts.contains(host) {
            return Err(Refusal::HostNotPermitted);
        }
        Ok((service, until))
    }

    /// Whether a local user may authenticate to a service on a host, at a time in seconds since
    /// 1970.
    ///
    /// # Errors
    ///
    /// [`Refusal::UnknownHost`] when the policy has no such host, [`Refusal::ClientPolicy`] when no
    /// `client` block permits it.
    pub fn client_permits(
        &self,
        user: &UserName,
        host: &HostName,
        service: &ServiceName,
        now: u64,
    ) -> Result<&ClientService, Refusal> {
        if !self.hosts.contains_key(host) {
            return Err(Refusal::UnknownHost);
        }
        self.client_services()
            .find(|entry| entry.host == *host && entry.service == *service)
            .filter(|entry| entry.users.has(user, now))
            .ok_or(Refusal::ClientPolicy)
    }

    /// Where a plain connect(2) is authenticated, and of which programs
    /// ([`Programs::with_plain`]): each address of the host with the service's port. No address
    /// stands twice, as none is two hosts' and a port of a host is one service's.
    pub fn plain_destinations(&self) -> impl Iterator<Item = (SocketAddr, &Programs)> {
        self.client_services()
            .filter(|entry| entry.programs.with_plain())
            .flat_map(|entry| {
                let host = self.hosts.get(&entry.host);
                let addresses = host.map(|host| host.addresses.as_slice());
                let socket_address =
                    |ip: &IpAddr| (SocketAddr::new(*ip, entry.port), &entry.programs);
                addresses.unwrap_or_default().iter().map(socket_address)
            })
    }

    /// The service that one of [`Self::plain_destinations`] belongs to; none for another address.
    pub fn plain_service(&self, destination: SocketAddr) -> Option<(&Host, &ClientService)> {
        let host = self.host_of_address(destination.ip())?;
        let service = self.client_services().find(|entry| {
            entry.programs.with_plain()
                && entry.host == host.name
                && entry.port == destination.port()
        })?;
        Some((host, service))
    }

    /// Where the proxy listens: every `loopback` address of every host, on the port of each of the
    /// host's services in `client` blocks. Ordered by address; no address stands twice.
    pub fn proxy_listeners(&self) -> Vec<ProxyListener> {
        let mut listeners: Vec<ProxyListener> = self
            .client_services()
            .flat_map(|entry| {
                let loopback = self
                    .hosts
                    .get(&entry.host)
                    .map(|host| host.loopback.as_slice());
                loopback
                    .unwrap_or_default()
                    .iter()
                    .map(|&address| ProxyListener {
                        address: SocketAddrV4::new(address, entry.port),
                        host: entry.host.clone(),
                        service: entry.service.clone(),
                        protocol: entry.protocol,
                    })
            })
            .collect();
        listeners.sort();
        listeners
    }

    /// The services of all `client` blocks.
    pub fn client_services(&self) -> impl Iterator<Item = &ClientService> {
        self.clients.values().flat_map(|client| &client.services)
    }
}

impl Service {
    /// The second from which on it does not admit a user any more who has a certificate with these
    /// principals, as [`Policy::service_permits`] has it and whatever the host; none for who never
    /// is a user of it.
    fn admits_until(&self, user: &UserName, principals: &[TrustedPrincipal<'_>]) -> Option<u64> {
        let by_certificate = match self.may_certify(user) {
            true => self.users.until_by(principals),
            false => None,
        };
        // None is less than any time.
        self.users.until(user).max(by_certificate)
    }

    /// Whether a certificate may make somebody a user of it: nobody who could not be a `member`,
    /// and not its own account.
    pub fn may_certify(&self, user: &UserName) -> bool {
        let is_account = matches!(&self.served_by, ServedBy::Account(account) if account == user);
        may_be_user(user) && !is_account
    }
}
