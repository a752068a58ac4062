//! The daemons' questions to a policy besides whether it permits ([`crate::decide`]): the owners of
//! addresses and ports.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use usher_proto::HostPublicKey;

use crate::client::{ClientService, Programs, ProxyListener};
use crate::model::{Host, Policy};

impl Policy {
    /// The host with this key, if the policy knows one.
    pub fn host_by_key(&self, key: &HostPublicKey) -> Option<&Host> {
        self.hosts.values().find(|host| host.keys.contains(key))
    }

    /// The host with this address, if the policy knows one. An IPv4-mapped address is looked up as
    /// the IPv4 address that it stands for.
    pub fn host_of_address(&self, address: IpAddr) -> Option<&Host> {
        let address = address.to_canonical();
        self.hosts
            .values()
            .find(|host| host.addresses.contains(&address))
    }

    /// The destinations at which a plain connect(2) is authenticated, and the programs for which it
    /// is ([`Programs::with_plain`]): each address of the host with the service's port. No address
    /// stands twice: an address belongs to one host, and a port of a host to one service.
    pub fn plain_destinations(&self) -> impl Iterator<Item = (SocketAddr, &Programs)> {
        let entries = self.client_services();
        let plain = entries.filter(|entry| entry.programs.with_plain());
        plain.flat_map(|entry| {
            let host = self.hosts.get(&entry.host).into_iter();
            host.flat_map(|host| &host.addresses)
                .map(|ip| (SocketAddr::new(*ip, entry.port), &entry.programs))
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

    /// The addresses at which the proxy listens: every `loopback` address of every host, on the
    /// port of each of the host's services in `client` blocks. Ordered by address; no address
    /// stands twice.
    pub fn proxy_listeners(&self) -> Vec<ProxyListener> {
        let mut listeners = Vec::new();
        for entry in self.client_services() {
            let host = self.hosts.get(&entry.host).into_iter();
            for address in host.flat_map(|host| &host.loopback) {
                listeners.push(ProxyListener {
                    address: SocketAddrV4::new(*address, entry.port),
                    host: entry.host.clone(),
                    service: entry.service.clone(),
                    protocol: entry.protocol,
                });
            }
        }
        listeners.sort();
        listeners
    }

    /// The services of all `client` blocks.
    pub fn client_services(&self) -> impl Iterator<Item = &ClientService> {
        self.clients.values().flat_map(|client| &client.services)
    }
}
