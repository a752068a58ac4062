//! Names of hosts in `network` statements, and the resolver that looks them up.

use super::*;

/// A DNS server on a host of the lab, and what it answers for one name.
struct NameServer {
    host: Host,
    running: Running,
}

const NAME: &str = "www.abc.com";

impl NameServer {
    fn start(host: &Host, address: std::net::Ipv4Addr) -> Result<Self, Box<dyn std::error::Error>> {
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
            &format!("--host-record={NAME},{address}"),
        ])?;
        Ok(Self {
            host: host.clone(),
            running,
        })
    }

    /// Has it answer otherwise: ends it, and starts another one.
    fn answer(&mut self, address: std::net::Ipv4Addr) -> Outcome {
        self.running.end()?;
        *self = Self::start(&self.host.clone(), address)?;
        Ok(())
    }
}

/// The protector's answers about the name.
fn name_of(host: &Host) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    Ok(json(host, &["protection", "show"])?["names"][0].take())
}

fn stands_for(host: &Host, address: std::net::Ipv4Addr) -> Outcome {
    eventually("the answer is in force", || {
        Ok(name_of(host)?["addresses"] == serde_json::json!([address]))
    })
}

/// A client that may reach everybody but the machine of a name, and two web servers.
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

    let mut answers = NameServer::start(dns, world.intruder.ipv4())?;
    stands_for(laptop, world.intruder.ipv4())?;
    eventually("others are reached", || reaches(&world.server))?;
    assert!(!reaches(&world.intruder)?);
    let name = name_of(laptop)?;
    assert!(name["age"].is_u64() && name["why_not"].is_null(), "{name}");

    // Another answer.
    answers.answer(world.server.ipv4())?;
    stands_for(laptop, world.server.ipv4())?;
    eventually("the former address is reached", || reaches(&world.intruder))?;
    assert!(!reaches(&world.server)?);

    // A server that hangs, and then none: the last answer stays in force, over restarts too.
    answers.running.kill(rustix::process::Signal::STOP)?;
    eventually("the failure is known", || {
        Ok(!name_of(laptop)?["why_not"].is_null())
    })?;
    stands_for(laptop, world.server.ipv4())?;
    assert!(reaches(&world.intruder)? && !reaches(&world.server)?);
    answers.running.end()?;
    resolver.end()?;
    protector.crash()?;
    stands_for(laptop, world.server.ipv4())?;
    assert!(reaches(&world.intruder)? && !reaches(&world.server)?);

    // A resolver that hangs keeps the protector from nothing.
    resolver.start()?;
    resolver.kill(rustix::process::Signal::STOP)?;
    laptop.run(["usher", "policy", "apply"])?;
    assert!(reaches(&world.intruder)? && !reaches(&world.server)?);
    resolver.kill(rustix::process::Signal::CONT)?;

    // Without the name in the policy, its last answer is gone.
    laptop.run(["rm", "/etc/usher/policy.d/name.policy"])?;
    laptop.run(["usher", "policy", "apply"])?;
    eventually("the answer is forgotten", || {
        Ok(laptop.read("/var/lib/usher/protector/last_answers.json")? == "{}")
    })?;
    Ok(())
}

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
