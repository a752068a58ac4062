//! How long questions take and how much memory they need: 10,000 users, 2,000 services, 200 hosts
//! that all know each other, each with a `client` entry for every service.
//!
//!     cargo run --release -p usher-analysis --example scale [HOSTS [SERVICES [USERS]]]
//!
//! SERVICES are a host's own. For the figures see docs/analysis.md.

use std::fmt::Write;
use std::time::Instant;

use usher_analysis::{HostPolicy, Network, Question, Universe, UserState, difference, graph};
use usher_policy::{Source, parse_policy};
use usher_proto::HostPublicKey;

/// Users of one `users` block.
const BLOCK: usize = 100;
/// Blocks that a service admits.
const ADMITTED: usize = 5;
/// Services of one `client` block.
const TARGETS: usize = 100;

fn main() {
    let mut numbers = std::env::args().skip(1);
    let mut number = |otherwise: usize| {
        let given = numbers.next().map(|text| text.parse());
        given.unwrap_or(Ok(otherwise)).expect("a number")
    };
    let (hosts, services, users) = (number(200), number(10), number(10_000));

    let texts: Vec<String> = (0..hosts)
        .map(|host| policy_text(host, hosts, services, users, 0))
        .collect();
    let bytes: usize = texts.iter().map(String::len).sum();
    println!("{hosts} hosts, {services} services each, {users} users, {bytes} bytes of policy");
    let one = measured("check one host's policy", || read_policy(0, &texts[0]));
    drop(one);
    let all = measured("check all hosts' policies", || {
        let texts = texts.iter().enumerate();
        texts
            .map(|(host, text)| read_policy(host, text))
            .collect::<Vec<_>>()
    });
    let network = measured("network", || Network::new(all).expect("hosts"));
    let mut universe = measured("classes of users", || Universe::new(&[&network]));
    println!("  {} classes", universe.classes().len());
    let rights = measured("all rights (who-can, reach)", || universe.rights(&network));
    println!("  {} rights", rights.len());
    let question = Question {
        user: user_name(users / 2).parse().expect("a user name"),
        client: host_name(0).parse().expect("a host name"),
        service: format!("s0-{}", hosts - 1).parse().expect("a service name"),
        server: host_name(hosts - 1).parse().expect("a host name"),
        port: None,
    };
    let decision = measured("explain", || network.decide(&question).expect("hosts"));
    println!("  {:?}", decision.verdict);
    let drawn = measured("graph", || graph(&network));
    println!("  {} lines", drawn.lines().count());
    let mut changed: Vec<HostPolicy> = network.hosts().cloned().collect();
    // The last host's services admit another block in the place of one.
    changed[hosts - 1] = read_policy(
        hosts - 1,
        &policy_text(hosts - 1, hosts, services, users, 1),
    );
    let changed = Network::new(changed).expect("hosts");
    let changes = measured("diff", || difference(&network, &changed));
    println!("  {} changes", changes.len());
    println!("memory at most: {}", peak());
}

fn measured<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = run();
    println!(
        "{what}: {:.3} s, memory at most {}",
        begun.elapsed().as_secs_f64(),
        peak()
    );
    result
}

/// The most memory that this process has had.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc(5)");
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.unwrap_or_default()
        .trim_start_matches("VmHWM:")
        .trim()
        .to_owned()
}

fn user_name(user: usize) -> String {
    format!("user{user:05}")
}

fn host_name(host: usize) -> String {
    format!("host{host}")
}

fn read_policy(host: usize, text: &str) -> HostPolicy {
    let source = Source {
        name: host_name(host),
        text: text.to_owned(),
    };
    HostPolicy {
        name: host_name(host).parse().expect("a host name"),
        policy: parse_policy(&[source]).expect("a correct policy"),
        users: UserState::default(),
    }
}

/// The policy of one host; its services admit the blocks from a number on that grows with `shift`.
fn policy_text(own: usize, hosts: usize, services: usize, users: usize, shift: usize) -> String {
    let mut text = String::new();
    for host in 0..hosts {
        let mut key = [7; 32];
        key[..8].copy_from_slice(&host.to_le_bytes());
        let key = HostPublicKey::from_bytes(key).to_openssh();
        let (high, low) = (host / 250, host % 250 + 1);
        let _ = writeln!(
            text,
            "host {} {{ address 10.1.{high}.{low}, fd77::{host:x}:1; key \"{key}\"; }}",
            host_name(host)
        );
    }
    let blocks = users.div_ceil(BLOCK);
    for block in 0..blocks {
        let members: Vec<String> = (block * BLOCK..users.min((block + 1) * BLOCK))
            .map(user_name)
            .collect();
        let _ = writeln!(text, "users u{block} {{ member {}; }}", members.join(", "));
    }
    let list = |first: usize| {
        let blocks = (first..first + ADMITTED).map(|block| format!("u{}", block % blocks));
        blocks.collect::<Vec<_>>().join(", ")
    };
    for service in 0..services {
        let _ = writeln!(
            text,
            "service s{service}-{own} {{ program \"/x\"; listen {}; users {}; hosts any; style user; }}",
            5000 + service,
            list(own * services + service + shift)
        );
    }
    let targets: Vec<(usize, usize)> = (0..hosts)
        .flat_map(|host| (0..services).map(move |service| (host, service)))
        .collect();
    for (number, targets) in targets.chunks(TARGETS).enumerate() {
        let all: Vec<String> = (0..blocks).map(|block| format!("u{block}")).collect();
        let _ = writeln!(text, "client c{number} {{ users {};", all.join(", "));
        for (host, service) in targets {
            let port = 5000 + service;
            let _ = writeln!(
                text,
                "  service s{service}-{host} at {} port {port};",
                host_name(*host)
            );
        }
        text += "}\n";
    }
    text
}
