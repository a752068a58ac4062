//! Names of hosts in `network` statements, and the resolver that looks them up.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;

/// A DNS server on a host of the lab, and what it answers for one name.
struct NameServer {
    host: Host,
    running: Running,
}

const NAME: &str = "www.abc.com";

/// How long a connection is waited for that may have begun too early.
const SOME_SECONDS: Duration = Duration::from_secs(5);

/// How long the answer of a server is waited for, retransmissions included.
const WAITING: Duration = Duration::from_secs(60);

impl NameServer {
    fn start(host: &Host, addresses: &[Ipv4Addr]) -> Result<Self, Box<dyn std::error::Error>> {
        let lines = addresses
            .iter()
            .map(|address| format!("{address} {NAME}\n"));
        host.write("/srv/names", lines.collect::<String>())?;
        let running = host.spawn([
            "/usr/sbin/dnsmasq",
            "--no-daemon",
            "--conf-file=/dev/null",
            "--user=root",
            "--pid-file=",
            "--no-resolv",
            "--no-hosts",
            "--local=/abc.com/",
            "--bind-interfaces",
            &format!("--listen-address={}", host.ipv4()),
            "--addn-hosts=/srv/names",
        ])?;
        Ok(Self {
            host: host.clone(),
            running,
        })
    }

    /// Has it answer otherwise: ends it, and starts another one.
    fn answer(&mut self, addresses: &[Ipv4Addr]) -> Outcome {
        self.running.end()?;
        *self = Self::start(&self.host.clone(), addresses)?;
        Ok(())
    }
}

/// The protector's answers about the name.
fn name_of(host: &Host) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    Ok(json(host, &["protection", "show"])?["names"][0].take())
}

/// Waits until the last answer has these addresses.
fn stands_for(host: &Host, addresses: &[Ipv4Addr]) -> Outcome {
    eventually("the answer is in force", || {
        Ok(name_of(host)?["addresses"] == serde_json::json!(addresses))
    })
}

/// A client that may reach everybody but the machine of a name, and two web servers.
// Threat model: P56
#[test]
fn a_name_follows_its_answers_and_keeps_the_last() -> Outcome {
    let world = World::new()?;
    let (laptop, dns) = (&world.laptop, &world.trusted);
    let pages = [&world.server, &world.intruder];
    let mut servers = Vec::new();
    for host in pages {
        host.write("/srv/www/page", "a page\n")?;
        let folder = ["--directory", "/srv/www", "8000"];
        let server = [SERVER, "-u", "-m", "http.server"];
        servers.push(host.spawn(server.iter().chain(&folder))?);
        wait_for_listener(host, 8000)?;
    }
    let reaches = |host: &Host| -> Result<bool, Box<dyn std::error::Error>> {
        let url = format!("http://{}:8000/page", host.ipv4());
        let got = laptop.command([CLIENT, "-sS", "-m", "20", &url]).run()?;
        Ok(got.stdout == "a page\n")
    };
    let resolver = format!("nameserver {}\noptions timeout:1 attempts:1\n", dns.ipv4());
    laptop.write("/etc/resolv.conf", resolver)?;
    let policy = format!(
        "application {CLIENT} {{ network {NAME} untrusted; network 0.0.0.0/0 trusted; }}\n"
    );
    laptop.write("/etc/usher/policy.d/name.policy", policy)?;
    let mut protector = laptop.start_daemon(Role::Protector)?;

    // No resolver, so no answer: each of them may be the machine of the name.
    laptop.run(["usher", "policy", "apply"])?;
    let shown = laptop.run(["usher", "protection", "show"])?.stdout;
    assert!(shown.contains("the resolver does not run"), "{shown}");
    assert!(shown.contains("has never been looked up"), "{shown}");
    assert!(!reaches(&world.server)? && !reaches(&world.intruder)?);

    // No DNS server: still none.
    let mut resolver = laptop.start_daemon(Role::Resolver)?;
    eventually("the failure is known", || {
        Ok(!name_of(laptop)?["why_not"].is_null())
    })?;
    assert!(!reaches(&world.server)? && !reaches(&world.intruder)?);

    let mut answers = NameServer::start(dns, &[world.intruder.ipv4()])?;
    stands_for(laptop, &[world.intruder.ipv4()])?;
    eventually("others are reached", || reaches(&world.server))?;
    assert!(!reaches(&world.intruder)?);
    let name = name_of(laptop)?;
    assert!(name["age"].is_u64() && name["why_not"].is_null(), "{name}");

    // Another answer. The former address stays in force beside it.
    answers.answer(&[world.server.ipv4()])?;
    stands_for(laptop, &[world.server.ipv4()])?;
    eventually("others are not reached", || Ok(!reaches(&world.server)?))?;
    assert!(!reaches(&world.intruder)?);

    // A server that hangs, and then none: the last answer stays in force, over restarts too.
    answers.running.kill(rustix::process::Signal::STOP)?;
    eventually("the failure is known", || {
        Ok(!name_of(laptop)?["why_not"].is_null())
    })?;
    stands_for(laptop, &[world.server.ipv4()])?;
    assert!(!reaches(&world.intruder)? && !reaches(&world.server)?);
    answers.running.end()?;
    resolver.end()?;
    protector.crash()?;
    stands_for(laptop, &[world.server.ipv4()])?;
    assert!(!reaches(&world.intruder)? && !reaches(&world.server)?);

    // A resolver that hangs keeps the protector from nothing.
    resolver.start()?;
    resolver.kill(rustix::process::Signal::STOP)?;
    laptop.run(["usher", "policy", "apply"])?;
    assert!(!reaches(&world.intruder)? && !reaches(&world.server)?);
    resolver.kill(rustix::process::Signal::CONT)?;

    // Without the name in the policy, its last answer is gone.
    laptop.run(["rm", "/etc/usher/policy.d/name.policy"])?;
    laptop.run(["usher", "policy", "apply"])?;
    eventually("the answer is forgotten", || {
        Ok(laptop.read("/var/lib/usher/protector/last_answers.json")? == "{}")
    })?;
    Ok(())
}

/// A name with two addresses, whose server gives each question one of them.
// Threat model: P59
#[test]
fn a_connection_outlives_an_answer_that_lacks_its_address() -> Outcome {
    let world = World::new()?;
    let (laptop, dns) = (&world.laptop, &world.trusted);
    let (one, other) = (world.server.ipv4(), world.intruder.ipv4());
    let echo = ["socat", "TCP-LISTEN:9100,fork,reuseaddr", "EXEC:/bin/cat"];
    let _echo = world.intruder.spawn(echo)?;
    wait_for_listener(&world.intruder, 9100)?;
    let resolver = format!("nameserver {}\noptions timeout:1 attempts:1\n", dns.ipv4());
    laptop.write("/etc/resolv.conf", resolver)?;
    let policy = format!(
        "application {CLIENT} {{ network {NAME} trusted; network 0.0.0.0/0 untrusted; }}\n"
    );
    laptop.write("/etc/usher/policy.d/name.policy", policy)?;
    let mut answers = NameServer::start(dns, &[one, other])?;
    let _protector = laptop.start_daemon(Role::Protector)?;
    let _resolver = laptop.start_daemon(Role::Resolver)?;
    laptop.run(["usher", "policy", "apply"])?;
    let mut both = [one, other];
    both.sort_unstable();
    stands_for(laptop, &both)?;
    let url = format!("telnet://{other}:9100");
    let mut connection = laptop.spawn([CLIENT, "-sS", "-N", &url])?;
    // An answer comes in force some moments after it has come.
    eventually("the server answers", || {
        if connection.write("before\n").is_ok()
            && connection.read_past("before", SOME_SECONDS).is_ok()
        {
            return Ok(true);
        }
        connection = laptop.spawn([CLIENT, "-sS", "-N", &url])?;
        Ok(false)
    })?;
    let mut says = |words: &str| -> Outcome {
        connection.write(format!("{words}\n"))?;
        connection.read_past(words, WAITING)?;
        Ok(())
    };

    answers.answer(&[one])?;
    stands_for(laptop, &[one])?;
    let former = name_of(laptop)?["former"][0].take();
    assert_eq!(former["address"], serde_json::json!(other), "{former}");
    // A policy that is put in force anew has it as well.
    says("after an answer")?;
    laptop.run(["usher", "policy", "apply"])?;
    says("after a policy")?;
    let shown = laptop.run(["usher", "protection", "show"])?.stdout;
    assert!(shown.contains("(not answered for "), "{shown}");

    // An answer that has it again.
    answers.answer(&both)?;
    stands_for(laptop, &both)?;
    assert_eq!(name_of(laptop)?["former"], serde_json::json!([]));
    says("after another answer")
}

// Threat model: A141
#[test]
fn the_resolver_has_no_rights_and_answers_the_protector_only() -> Outcome {
    let world = World::new()?;
    let laptop = &world.laptop;
    let mut resolver = laptop.start_daemon(Role::Resolver)?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", resolver.pid()?))?;
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
    laptop.add_account("alice", 2001)?;
    let connect = "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); \
                   s.connect('/run/usher/resolver/names.sock'); print('connected')";
    let alices = laptop
        .command(["/usr/bin/python3", "-c", connect])
        .user("alice")
        .run()?;
    assert!(alices.stderr.contains("PermissionError"), "{alices:?}");
    assert_eq!(
        laptop.run(["/usr/bin/python3", "-c", connect])?.stdout,
        "connected\n"
    );
    Ok(())
}
