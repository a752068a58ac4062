//! The needs of the policy in force, on this host.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_local::applied::Applied;
use usher_local::checked::Checked;
use usher_local::keys::private_key_name;
use usher_local::paths;
use usher_local::roles::{OFFERS, REACHES};
use usher_policy::{Programs, joined};

use super::{Finding, Jobs, some};
use crate::commands::{configuration, groups};

/// Whether the policy in force has a `host` block with this host's key; none if nothing depends on it, or
/// this host has no key.
pub fn host_block(checked: &Checked, jobs: &Jobs) -> Option<Finding> {
    if !jobs.has(OFFERS) && !jobs.has(REACHES) {
        return None;
    }
    let outcome = match checked.policy.host_by_key(&configuration::host_key().ok()?) {
        Some(host) => (true, format!("by its key this host is {}", host.name)),
        None => (
            false,
            format!(
                "{}, or correct its `key`, then run `usher policy apply`",
                configuration::NO_HOST
            ),
        ),
    };
    let need = "sessions with other hosts, which know each other by these keys";
    Some(Finding::new("host block", need, outcome))
}

/// Whether plain connections (`programs`) leave from an address of this host's block; none if no `client`
/// block has `programs`, or the policy has no block for this host. The kernel chooses the address of a plain
/// connection, and servers refuse one from outside the block. Connections of programs that ask, and those of
/// the proxy, are bound to an address of the block.
pub fn source_addresses(checked: &Checked) -> Option<Finding> {
    let policy = &checked.policy;
    let own = &policy
        .host_by_key(&configuration::host_key().ok()?)?
        .addresses;
    let entries = policy.client_services();
    let plain = entries.filter(|entry| entry.programs != Programs::Asking);
    let servers: BTreeSet<(&HostName, SocketAddr)> = plain
        .filter_map(|entry| Some((entry, policy.hosts.get(&entry.host)?)))
        .flat_map(|(entry, host)| {
            let addresses = host.addresses.iter();
            addresses.map(|address| (&entry.host, SocketAddr::new(*address, entry.port)))
        })
        .collect();
    let foreign: Vec<String> = servers
        .iter()
        .filter_map(|(host, server)| {
            // Without a route to the server, nothing connects.
            let source = source_towards(*server, None).ok()?;
            // An address that a translator on the way gives this host cannot be bound to.
            let binds = |own: &IpAddr| source_towards(*server, Some(*own)).is_ok();
            let is_foreign = !own.contains(&source) && own.iter().any(binds);
            is_foreign.then(|| format!("those to {host} ({}) from {source}", server.ip()))
        })
        .collect();
    let detail = match foreign.as_slice() {
        [] => "plain connections leave from addresses of this host's block".to_owned(),
        foreign => format!(
            "{}: not an `address` of this host's block, perhaps a temporary one (RFC 8981), so these \
             connections are refused (foreign_address): set the sysctls net.ipv6.conf.*.use_tempaddr to 1 or \
             0, or add the address to the block on every host",
            some(foreign)
        ),
    };
    let need = "services of other hosts to take plain connections (`programs`) for this host's";
    let outcome = (foreign.is_empty(), detail);
    (!servers.is_empty())
        .then(|| Finding::optional("source addresses", Some(REACHES), need, outcome))
}

/// The address from which a connection to this server leaves. connect(2) on a datagram socket sends nothing.
fn source_towards(server: SocketAddr, own: Option<IpAddr>) -> io::Result<IpAddr> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((own.unwrap_or(any), 0))?;
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip())
}

/// Whether each user of a `client` block has a key to sign with; none if no block names a user, or the
/// caller may not read the folder.
pub fn keys_to_sign_with(checked: &Checked) -> Option<Finding> {
    let folder = Path::new(paths::PRIVATE_KEYS_DIRECTORY);
    if std::fs::read_dir(folder).is_err_and(|e| e.kind() != std::io::ErrorKind::NotFound) {
        return None;
    }
    let now = unix_time();
    let (mut named, mut missing) = (BTreeSet::new(), BTreeSet::new());
    for service in checked.policy.client_services() {
        let users = service.users.names().iter();
        for user in users.filter(|user| service.users.has(user, now)) {
            named.insert(user);
            if !folder
                .join(private_key_name(user, service.key.as_ref()))
                .exists()
            {
                let purpose = service.key.as_ref();
                let key = purpose.map_or_else(String::new, |key| format!(" for {key}"));
                missing.insert(format!("{user}{key}"));
            }
        }
    }
    let missing: Vec<String> = missing.into_iter().collect();
    let detail = match missing.as_slice() {
        [] => format!("all {} user(s) of `client` blocks have one", named.len()),
        missing => format!(
            "missing for {}: `usher user add USER --private-key FILE`, or --agent-key",
            some(missing)
        ),
    };
    (!named.is_empty()).then(|| {
        let need = "these users to reach services of other hosts";
        let outcome = (missing.is_empty(), detail);
        Finding::optional("keys to sign with", Some(REACHES), need, outcome)
    })
}

/// Whether the groups in force have changed since the policy was applied; none if the policy names no group.
pub fn groups(in_force: &Applied) -> Option<Finding> {
    let changed: Vec<String> = in_force
        .groups
        .iter()
        .filter_map(
            |(name, accounts)| match groups::accounts(name, Some(accounts)) {
                Ok(now) if now == *accounts => None,
                Ok(now) => {
                    let come = now.difference(accounts).map(|name| format!("+{name}"));
                    let gone = accounts.difference(&now).map(|name| format!("-{name}"));
                    let accounts = joined(come.chain(gone).take(8), ", ");
                    Some(format!(
                        "{name} has changed ({accounts}): run `usher policy apply`"
                    ))
                }
                Err(error) => Some(format!("{name}: {error}")),
            },
        )
        .collect();
    let number = in_force.groups.len();
    let detail = match changed.as_slice() {
        [] => format!("{number} in force, unchanged in the name service"),
        changed => changed.join("; "),
    };
    (number > 0).then(|| {
        let need = "the policy in force to follow its groups";
        Finding::optional("groups", None, need, (changed.is_empty(), detail))
    })
}
