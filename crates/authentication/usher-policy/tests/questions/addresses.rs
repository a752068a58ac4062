//! Facts about an address: its host, the host for which the proxy stands there, and the plain
//! connections that are authenticated.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use crate::{COMPLETE, LAPTOP_KEY, OTHER_KEY, host, policy, policy_of, source};
use usher_policy::{Programs, Protocol, parse_policy};
use usher_proto::HostPublicKey;

#[test]
fn hosts_are_found_by_key_and_by_address() {
    let policy = policy();
    let by_key = |key| {
        let key = HostPublicKey::from_openssh(key).expect("a host key");
        policy.host_by_key(&key).map(|host| host.name.as_ref())
    };
    assert_eq!(by_key(LAPTOP_KEY), Some("laptop"));
    assert_eq!(by_key(OTHER_KEY), None);
    let by_address = |address: &str| {
        let address: IpAddr = address.parse().expect("an address");
        policy
            .host_of_address(address)
            .map(|host| host.name.as_ref())
    };
    assert_eq!(by_address("10.77.0.2"), Some("mailhost"));
    assert_eq!(by_address("::ffff:10.77.0.2"), Some("mailhost"));
    assert_eq!(by_address("fd77::2"), Some("mailhost"));
    assert_eq!(by_address("10.77.0.3"), None);
    // The proxy's addresses are local: no host is at them.
    assert_eq!(by_address("127.0.1.1"), None);
}

#[test]
fn the_proxy_listens_for_each_service_at_its_hosts_address() {
    let listeners: Vec<(SocketAddrV4, String, Protocol)> = policy()
        .proxy_listeners()
        .into_iter()
        .map(|entry| {
            (
                entry.address,
                format!("{}:{}", entry.host, entry.service),
                entry.protocol,
            )
        })
        .collect();
    let expected = [
        ("127.0.1.1:143", "mailhost:imap", Protocol::Imap),
        ("127.0.1.1:2049", "mailhost:files", Protocol::Raw),
        ("127.0.1.2:143", "mailhost:imap", Protocol::Imap),
        ("127.0.1.2:2049", "mailhost:files", Protocol::Raw),
    ]
    .map(|(address, target, protocol)| {
        (
            address.parse().expect("an address"),
            target.to_owned(),
            protocol,
        )
    });
    assert_eq!(listeners, expected);
}

#[test]
fn plain_connections_are_authenticated_only_by_a_client_block() {
    let policy = policy();
    let destination = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let (destinations, programs): (Vec<SocketAddr>, Vec<_>) = policy.plain_destinations().unzip();
    assert!(programs.iter().all(|programs| **programs == Programs::Any));
    let expected = ["10.77.0.2:2049", "[fd77::2]:2049", "10.77.0.1:143"].map(destination);
    assert_eq!(destinations, expected);
    for found in destinations {
        assert!(policy.plain_service(found).is_some(), "{found}");
    }
    let files = |text: &str| {
        let (host, entry) = policy.plain_service(destination(text))?;
        Some((host.name.as_ref(), entry.service.as_ref()))
    };
    assert_eq!(files("[fd77::2]:2049"), Some(("mailhost", "files")));
    assert_eq!(
        files("[::ffff:10.77.0.2]:2049"),
        Some(("mailhost", "files"))
    );
    // Only for programs that ask; the proxy's address; another port, another host.
    for other in [
        "10.77.0.2:143",
        "127.0.1.1:2049",
        "10.77.0.2:2050",
        "10.77.0.3:2049",
    ] {
        assert_eq!(files(other), None, "{other}");
    }
}

#[test]
fn plain_connections_of_listed_programs_are_shown_with_the_list() {
    let blocks = format!(
        "host laptop {{ address 10.77.0.1; key \"{LAPTOP_KEY}\"; }}
         users mail {{ member alice; }}
         client news {{
           users mail; service news at laptop port 119; programs \"/usr/bin/slrn\", \"/bin/tin\";
         }}"
    );
    let policy = parse_policy(&[source("listed", &blocks)]).expect("a correct policy");
    let (destination, programs) = policy.plain_destinations().next().expect("one");
    assert_eq!(destination, SocketAddr::from(([10, 77, 0, 1], 119)));
    let listed: Vec<&str> = programs
        .listed()
        .expect("a list")
        .iter()
        .map(String::as_str)
        .collect();
    assert_eq!(listed, ["/bin/tin", "/usr/bin/slrn"]);
    let (_, entry) = policy.plain_service(destination).expect("a service");
    assert_eq!(entry.programs, *programs);
}

#[test]
fn a_name_without_an_address_is_a_warning_at_its_network() {
    let text =
        "application ssh {\n  network www.abc.com trusted;\n  network 0.0.0.0/0 trusted;\n}\n";
    let look_up = |found: Result<Vec<IpAddr>, &str>| {
        let mut policy = parse_policy(&[source("traffic", text)]).expect("a correct policy");
        let warnings = policy.look_up_names(|_| found.clone());
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (found, reason) in [
        (Err("no such name"), "no such name"),
        (Ok(Vec::new()), "it has none"),
    ] {
        let told = look_up(found);
        let expected = format!(
            "traffic:2:3: the address of `www.abc.com` cannot be found: {reason}; until it is, \
             the networks after it decide"
        );
        assert_eq!(told, [expected]);
    }
    let address = IpAddr::from([198, 51, 100, 7]);
    assert_eq!(look_up(Ok(vec![address])), [""; 0]);
}

// Threat model: P53
#[test]
fn a_host_protects_what_it_reaches_at_others() {
    let protected = COMPLETE.replace("programs any;", "programs any;\n  protection encryption;");
    assert_ne!(protected, COMPLETE);
    let policy = policy_of(&protected);
    let reached = |own: Option<&str>| {
        let destinations = policy.protected_destinations(own.map(host).as_ref());
        let peers = destinations.into_iter().map(|destination| {
            let name = policy.host_of_address(destination.peer);
            (name.map(|host| host.name.to_string()), destination.port)
        });
        peers.collect::<std::collections::BTreeSet<_>>()
    };
    let [mailhost, laptop] =
        [("mailhost", 2049), ("laptop", 143)].map(|(name, port)| (Some(name.to_owned()), port));
    assert_eq!(reached(Some("laptop")), [mailhost.clone()].into());
    assert_eq!(reached(Some("mailhost")), [laptop.clone()].into());
    // A host without a `host` block of its own protects its connections with all of them.
    assert_eq!(reached(None), [mailhost, laptop].into());
}
