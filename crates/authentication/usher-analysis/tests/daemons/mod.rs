//! The questions of signer, verifier and keeper to each host's policy, put together naively.

use std::net::IpAddr;

use usher_analysis::{HostPolicy, Verdict};
use usher_base::{HostName, ServiceName, UserName};
use usher_policy::protection::{IkeAlgorithm, Kind, Names, Verdict as Verdicts, compile};
use usher_policy::{Host, Policy, TrustedPrincipal};

use crate::hosts::{NOW, PRINCIPALS};

/// A connection in full.
pub struct Connection<'c> {
    pub user: &'c UserName,
    pub service: &'c ServiceName,
    pub port: u16,
}

/// As the signer: for the client, with its block for the server.
fn client_permits(client: &HostPolicy, server: &Host, asked: &Connection<'_>) -> bool {
    let entry = client
        .policy
        .client_permits(asked.user, &server.name, asked.service, NOW);
    entry.is_ok_and(|entry| entry.port == asked.port) && !client.users.disabled.contains(asked.user)
}

/// Whether a server's daemons admit somebody, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admits {
    Nobody,
    Holder,
    User,
}

/// As verifier and keeper: for the server, with its block for the client, whatever the user's key or
/// certificate; then for each principal that a certificate can name.
fn server_permits(server: &HostPolicy, client: &Host, asked: &Connection<'_>) -> Admits {
    let with = |principals: &[&str]| server_permits_with(server, client, asked, principals);
    match with(&[]) {
        true => Admits::User,
        false if PRINCIPALS.iter().any(|name| with(&[name])) => Admits::Holder,
        false => Admits::Nobody,
    }
}

fn server_permits_with(
    server: &HostPolicy,
    client: &Host,
    asked: &Connection<'_>,
    principals: &[&str],
) -> bool {
    let purpose = server.policy.services.get(asked.service);
    let purpose = purpose.and_then(|service| service.keys.clone());
    let everybodys = server.users.keys.is_none() || server.users.certified && purpose.is_none();
    let lines = server.users.authorities.get(&purpose);
    let is_trusted = |name: &&&str| {
        let users = lines.and_then(|lines| lines.get(**name));
        everybodys || users.is_some_and(|users| users.contains(asked.user))
    };
    let trusted: Vec<TrustedPrincipal<'_>> = principals
        .iter()
        .filter(is_trusted)
        .map(|&name| TrustedPrincipal {
            name,
            until: u64::MAX,
        })
        .collect();
    let service =
        server
            .policy
            .service_permits(asked.service, asked.user, &trusted, &client.name, NOW);
    let Ok((service, _)) = service else {
        return false;
    };
    let certified = server.users.certified && service.keys.is_none();
    let has_key = certified
        || server.users.keys.as_ref().is_none_or(|keys| {
            keys.get(&service.keys)
                .is_some_and(|users| users.contains(asked.user))
        });
    service.listen == asked.port && has_key && !server.users.disabled.contains(asked.user)
}

/// Whether a host has SAs of this kind negotiated.
fn negotiates(host: &HostPolicy, kind: Kind) -> bool {
    let of_blocks = compile(&host.policy.applications, &Names::default(), u16::MAX);
    let of_blocks = of_blocks.expect("few networks").classes.into_iter();
    let of_clients = host.policy.client_services();
    let of_services = host.policy.services.values();
    let mut demands = of_services.filter_map(|service| service.protection.as_ref());
    of_blocks
        .map(|(class, _)| class.kind)
        .any(|one| one == kind)
        || of_clients
            .map(|entry| entry.protection)
            .any(|one| one == Some(kind))
        || demands.any(|demanded| kind == Kind::Encryption || demanded.kind == kind)
}

/// As the protector: the algorithm by which a host has its IKE daemon negotiate with another, which its
/// policy has as `block`. A host without a key of its own has no configuration, and a block without a key is
/// no peer.
fn algorithm(host: &HostPolicy, block: &Host) -> Option<IkeAlgorithm> {
    let has = |host: &Host, wanted: IkeAlgorithm| {
        let mut keys = host.ike_keys.iter();
        keys.any(|key| key.algorithm() == wanted)
    };
    let both = [IkeAlgorithm::Ed25519, IkeAlgorithm::EcdsaP256];
    let mut both = both.into_iter();
    both.find(|wanted| has(own(host), *wanted) && has(block, *wanted))
}

fn has_peer(host: &HostPolicy, block: &Host) -> bool {
    algorithm(host, block).is_some()
}

/// As the IKE daemon of a host: whether it takes another for the one that its policy has as `block`. The
/// daemon compares the name and the keys of its algorithm. Of two such keys, the other host may use either.
fn authenticates(
    (host, block): (&HostPolicy, &Host),
    (other, of_host): (&HostPolicy, &Host),
) -> bool {
    let algorithms = [algorithm(host, block), algorithm(other, of_host)];
    let mut keys = own(other).ike_keys.iter();
    block.name == other.name
        && algorithms[0] == algorithms[1]
        && keys.any(|key| Some(key.algorithm()) == algorithms[0] && block.ike_keys.contains(key))
}

/// Whether the connection is one of those that SAs protect, as far as is known.
fn needs_sas(
    client: Option<(&HostPolicy, &Host)>,
    server: Option<&HostPolicy>,
    asked: &Connection<'_>,
) -> bool {
    let by_client = client.is_some_and(|(client, of_server)| {
        let mut entries = client.policy.client_services();
        entries.any(|entry| {
            entry.host == of_server.name
                && entry.service == *asked.service
                && entry.protection.is_some()
        })
    });
    let service = server.and_then(|server| server.policy.services.get(asked.service));
    by_client || service.is_some_and(|service| service.protection.is_some())
}

/// As the kernels of both hosts: by the client's policy some program's traffic with the service is
/// protected as the service demands, and what the client protects finds SAs.
fn is_protected(
    (client, of_server): (&HostPolicy, &Host),
    server: &HostPolicy,
    to: IpAddr,
    asked: &Connection<'_>,
) -> bool {
    if client.name == server.name {
        return true; // It stays on the host.
    }
    let entry = client.policy.client_services();
    let mut entry = entry.filter(|entry| entry.host == of_server.name);
    let entry = entry.find(|entry| entry.service == *asked.service);
    let by_client = entry.and_then(|entry| entry.protection);
    if by_client.is_some_and(|kind| !negotiates(server, kind)) {
        return false;
    }
    let service = server.policy.services.get(asked.service);
    let Some(demanded) = service.and_then(|service| service.protection.as_ref()) else {
        return true;
    };
    if by_client == Some(Kind::Encryption) || by_client == Some(demanded.kind) {
        return true;
    }
    let tables = compile(&client.policy.applications, &Names::default(), u16::MAX);
    let tables = tables.expect("few networks");
    let mut applications = 0..tables.applications.len();
    applications.any(|application| {
        // The local port is one that no item has.
        match tables.treat(application, to, 50_000, asked.port) {
            Verdicts::Protect(class, _) => match demanded.kind {
                Kind::Encryption => class.kind == Kind::Encryption,
                Kind::Authentication => true,
            },
            Verdicts::Bypass | Verdicts::Discard => false,
        }
    })
}

fn own(host: &HostPolicy) -> &Host {
    &host.policy.hosts[&host.name]
}

/// The decision of the daemons of all hosts together, or of those whose policies are known.
pub fn expected(
    hosts: &[HostPolicy],
    client: &str,
    server: &str,
    asked: &Connection<'_>,
) -> Verdict {
    let find = |name: &str| hosts.iter().find(|host| host.name.as_ref() == name);
    let named = |policy: &Policy, name: &str| {
        let name: HostName = name.parse().expect("a host name");
        policy.hosts.get(&name).cloned()
    };
    let answer = |permitted, verdict| if permitted { verdict } else { Verdict::Refused };
    match (find(client), find(server)) {
        (Some(client), Some(server)) => {
            let of_server = client.policy.host_by_key(&own(server).keys[0]);
            let of_client = server.policy.host_by_key(&own(client).keys[0]);
            let (Some(of_server), Some(of_client)) = (of_server, of_client) else {
                return Verdict::Refused;
            };
            let taken = |from: &&IpAddr| of_client.addresses.contains(from);
            let from: Vec<_> = own(client).addresses.iter().filter(taken).collect();
            let used = |to: &&IpAddr| of_server.addresses.contains(to);
            let mut to = own(server).addresses.iter().filter(used);
            let permitted = client_permits(client, of_server, asked)
                && of_server.control == own(server).control
                && to.any(|to| from.iter().any(|from| from.is_ipv4() == to.is_ipv4()));
            let to = own(server).addresses.iter().filter(used);
            let mut to = to.filter(|to| from.iter().any(|from| from.is_ipv4() == to.is_ipv4()));
            let permitted =
                permitted && to.any(|to| is_protected((client, of_server), server, *to, asked));
            let ike = client.name == server.name
                || !needs_sas(Some((client, of_server)), Some(server), asked)
                || has_peer(client, of_server)
                    && has_peer(server, of_client)
                    && authenticates((client, of_server), (server, of_client))
                    && authenticates((server, of_client), (client, of_server));
            let permitted = permitted && ike;
            match server_permits(server, of_client, asked) {
                Admits::User => answer(permitted, Verdict::Permitted),
                Admits::Holder => answer(permitted, Verdict::WithCertificate),
                Admits::Nobody => Verdict::Refused,
            }
        }
        (Some(client), None) => {
            let block = named(&client.policy, server);
            let permitted = block.is_some_and(|block| {
                let needed = needs_sas(Some((client, &block)), None, asked);
                client_permits(client, &block, asked) && (!needed || has_peer(client, &block))
            });
            answer(permitted, Verdict::NotRefusedHere)
        }
        (None, Some(server)) => {
            let block = named(&server.policy, client);
            let needed = needs_sas(None, Some(server), asked);
            let block = block.filter(|block| !needed || has_peer(server, block));
            match block.map(|block| server_permits(server, &block, asked)) {
                Some(Admits::User) => Verdict::NotRefusedHere,
                Some(Admits::Holder) => Verdict::WithCertificate,
                Some(Admits::Nobody) | None => Verdict::Refused,
            }
        }
        (None, None) => unreachable!("three of four hosts are given"),
    }
}
