//! `application` blocks in force: real programs, a real charon on each host, packets on the wire.

use usher_lab::{Daemon, Host, Lab, PATIENCE, Role, Running, eventually};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A real program of each kind that the policy governs, and one that it leaves alone.
const CLIENT: &str = "/usr/bin/curl";
const SERVER: &str = "/usr/bin/python3.11";

/// Prints the protocol and the other host of each packet of IPv4 that comes or goes, with the server's
/// port of TCP.
const CAPTURE: &str = "
import socket, struct, sys
own = socket.inet_aton(sys.argv[1])
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.bind(('eth0', 3))
print('ready', flush=True)
while True:
    packet, sender = packets.recvfrom(65535)
    if sender[1] != 0x800:
        continue
    protocol, start = packet[9], (packet[0] & 15) * 4
    other = packet[12:16] if packet[16:20] == own else packet[16:20]
    other = socket.inet_ntoa(other)
    if protocol == 50:
        print('esp', other, flush=True)
    elif protocol == 6:
        ports = struct.unpack('!HH', packet[start:start + 4])
        print('tcp', other, min(ports), flush=True)
";

/// Two hosts whose traffic the policy protects, and two that know nothing of Usher.
struct World {
    _lab: Lab,
    laptop: Host,
    server: Host,
    trusted: Host,
    intruder: Host,
}

impl World {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let lab = Lab::new()?;
        let world = Self {
            laptop: lab.host("laptop")?,
            server: lab.host("server")?,
            trusted: lab.host("trusted")?,
            intruder: lab.host("intruder")?,
            _lab: lab,
        };
        let mut hosts = String::new();
        for host in world.protected() {
            host.run(["usher", "init", "--name", host.name()])?;
            let key = |file: &str| -> Result<String, Box<dyn std::error::Error>> {
                let line = host.read(format!("/etc/usher/{file}.pub"))?;
                Ok(line.split(' ').take(2).collect::<Vec<_>>().join(" "))
            };
            hosts += &format!(
                "host {} {{ address {}; key \"{}\"; ike-key \"{}\"; }}\n",
                host.name(),
                host.ipv4(),
                key("host_key")?.trim(),
                key("ike_key")?.trim()
            );
        }
        for host in world.protected() {
            host.write("/etc/usher/policy.d/hosts.policy", &hosts)?;
        }
        Ok(world)
    }

    fn protected(&self) -> [&Host; 2] {
        [&self.laptop, &self.server]
    }

    /// The paper's policy of figure 9, "secure", for this network and these programs.
    fn write_secure(&self) -> Outcome {
        let policy = format!(
            "application {SERVER}, {CLIENT}\n{{\n  network {}/32 trusted;\n  network 10.77.0.0/24 \
             protected Secure;\n  network 0.0.0.0/0      trusted;\n  protection Secure {{ \
             localport=any remoteport=any encryption mandatory; }}\n}}\n",
            self.trusted.ipv4()
        );
        for host in self.protected() {
            host.write("/etc/usher/policy.d/secure.policy", &policy)?;
        }
        Ok(())
    }

    /// A charon of Debian's on each host, with its default configuration but for its plugins.
    fn start_charons(&self) -> Result<Vec<Daemon>, Box<dyn std::error::Error>> {
        let settings = "charon-systemd { load = random nonce openssl pem pkcs1 pkcs8 pubkey hmac \
                        kdf kernel-netlink socket-default vici }\n";
        let charons = self.protected().into_iter().map(|host| {
            host.write("/etc/strongswan.conf", settings)?;
            Ok(host.supervise("charon", ["/usr/sbin/charon-systemd"])?)
        });
        charons.collect()
    }

    fn start_protectors(&self) -> Result<Vec<Daemon>, Box<dyn std::error::Error>> {
        let hosts = self.protected().into_iter();
        let protectors = hosts.map(|host| Ok(host.start_daemon(Role::Protector)?));
        protectors.collect()
    }

    /// A web server of the governed program at port 8000, and an echo of another at port 9000.
    fn serve(&self) -> Result<Vec<Running>, Box<dyn std::error::Error>> {
        self.server.write("/srv/www/page", "a page\n")?;
        let web = self.server.spawn([
            SERVER,
            "-u",
            "-m",
            "http.server",
            "--directory",
            "/srv/www",
            "8000",
        ])?;
        let echo =
            self.server
                .spawn(["socat", "TCP-LISTEN:9000,fork,reuseaddr", "EXEC:/bin/cat"])?;
        for port in ["8000", "9000"] {
            eventually("the servers listen", || {
                let listening = self
                    .server
                    .run(["ss", "-ltnH", &format!("sport = {port}")])?;
                Ok(!listening.stdout.is_empty())
            })?;
        }
        Ok(vec![web, echo])
    }

    /// Whether this host gets the page.
    fn gets_the_page(&self, from: &Host) -> Result<bool, Box<dyn std::error::Error>> {
        let url = format!("http://{}:8000/page", self.server.ipv4());
        let got = from.command([CLIENT, "-sS", "-m", "10", &url]).run()?;
        Ok(got.stdout == "a page\n")
    }

    /// Whether this host is answered by the program that is not governed.
    fn gets_an_echo(&self, from: &Host) -> Result<bool, Box<dyn std::error::Error>> {
        let server = format!("TCP:{}:9000,connect-timeout=10", self.server.ipv4());
        let got = from
            .command(["socat", "-T10", "-", &server])
            .input("hello\n")
            .run()?;
        Ok(got.stdout == "hello\n")
    }
}

fn json(host: &Host, arguments: &[&str]) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let words = ["usher", "--json"].iter().chain(arguments);
    Ok(serde_json::from_str(&host.run(words)?.stdout)?)
}

/// Why SAs cannot carry traffic here; none: they can.
fn reason_to_skip() -> Option<&'static str> {
    match std::env::var_os("USHER_VM") {
        None => Some("needs ESP, which this kernel may lack"),
        Some(_) => {
            for module in ["esp4", "esp6", "xfrm_user"] {
                let _status = std::process::Command::new("modprobe")
                    .args(["-q", module])
                    .status();
            }
            None
        }
    }
}

#[test]
fn applications_need_a_running_protector() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    host.run(["usher", "policy", "apply"])?;
    world.write_secure()?;
    let stored = host.read("/var/lib/usher/applied.json")?;
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("protector"), "{}", refused.stderr);
    // Nothing was stored, so no daemon has ended anything for it.
    assert_eq!(host.read("/var/lib/usher/applied.json")?, stored);
    let mut protector = host.start_daemon(Role::Protector)?;
    assert_eq!(
        json(host, &["protection", "show"])?["applications"],
        serde_json::json!([])
    );
    host.run(["usher", "policy", "apply"])?;
    let shown = json(host, &["protection", "show"])?;
    assert_eq!(
        shown["applications"][0]["programs"],
        serde_json::json!([SERVER, CLIENT])
    );
    assert!(shown["spd_entries"].as_u64() > Some(0), "{shown}");
    // Its death changes nothing in force.
    let entries = host.run(["ip", "xfrm", "policy"])?.stdout;
    protector.crash()?;
    assert_eq!(host.run(["ip", "xfrm", "policy"])?.stdout, entries);
    protector.start()?;
    assert_eq!(host.run(["ip", "xfrm", "policy"])?.stdout, entries);
    // Without the block nothing is left.
    host.run(["rm", "/etc/usher/policy.d/secure.policy"])?;
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(json(host, &["protection", "show"])?["spd_entries"], 0);
    let left = host.run(["ip", "xfrm", "policy"])?.stdout;
    assert!(!left.contains("mark 0x"), "{left}");
    Ok(())
}

/// A service that was started before the policy came: its listener passed no hook.
#[test]
fn a_listener_older_than_the_policy_is_governed() -> Outcome {
    let world = World::new()?;
    let host = &world.server;
    let _servers = world.serve()?;
    let _protector = host.start_daemon(Role::Protector)?;
    assert!(world.gets_the_page(&world.intruder)?, "no policy yet");
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    assert!(
        !world.gets_the_page(&world.intruder)?,
        "plaintext is refused at once"
    );
    assert!(
        world.gets_the_page(&world.trusted)?,
        "by its policy, not altogether"
    );
    assert!(
        world.gets_an_echo(&world.intruder)?,
        "another program's older listener is left alone"
    );
    let shown = json(host, &["protection", "show"])?;
    assert!(shown["adopted_sockets"].as_u64() > Some(0), "{shown}");
    assert!(
        shown["counters"]["refused_plain"].as_u64() > Some(0),
        "{shown}"
    );
    Ok(())
}

#[test]
fn an_absent_charon_is_named() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let _protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    eventually("the trouble is known", || {
        let told = host.run(["usher", "protection", "peers"])?.stdout;
        Ok(told.contains("charon is not running"))
    })?;
    let doctor = host.command(["usher", "doctor"]).run()?.stdout;
    assert!(doctor.contains("charon is not running"), "{doctor}");
    Ok(())
}

#[test]
fn a_host_without_its_ike_key_is_refused() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let _protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    let hosts = "/etc/usher/policy.d/hosts.policy";
    let whole = host.read(hosts)?;
    let statement = whole.find(" ike-key").ok_or("the statement")?;
    let end = statement + whole[statement..].find(';').ok_or("its end")? + 1;
    host.write(hosts, format!("{}{}", &whole[..statement], &whole[end..]))?;
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert!(refused.stderr.contains("ike-key"), "{}", refused.stderr);
    host.write(hosts, &whole)?;
    host.run(["usher", "policy", "apply"])?;
    Ok(())
}

/// The policy of figure 9 for real programs.
#[test]
fn a_secure_policy_encrypts_a_real_program() -> Outcome {
    if let Some(reason) = reason_to_skip() {
        println!("skipped: {reason}");
        return Ok(());
    }
    let world = World::new()?;
    let _charons = world.start_charons()?;
    let _protectors = world.start_protectors()?;
    world.write_secure()?;
    for host in world.protected() {
        host.run(["usher", "policy", "apply"])?;
    }
    let _servers = world.serve()?;
    for host in world.protected() {
        eventually("SAs are there", || {
            let peers = json(host, &["protection", "peers"])?;
            Ok(peers["peers"][0]["classes"][0]["protected"] == true)
        })?;
    }
    let own = world.server.ipv4().to_string();
    let mut capture = world
        .server
        .spawn(["/usr/bin/python3", "-c", CAPTURE, &own])?;
    capture.read_past("ready\n", PATIENCE)?;
    assert!(world.gets_the_page(&world.laptop)?, "protected");
    assert!(
        world.gets_the_page(&world.trusted)?,
        "trusted, in the clear"
    );
    assert!(
        !world.gets_the_page(&world.intruder)?,
        "plaintext is refused"
    );
    assert!(
        world.gets_an_echo(&world.intruder)?,
        "another program is left alone"
    );
    assert!(
        world.gets_an_echo(&world.laptop)?,
        "also between protected hosts"
    );
    // The last packets of the last one.
    let end = format!("tcp {} 9000\n", world.laptop.ipv4());
    let seen = capture.read_past(&end, PATIENCE)?;
    let saw = |line: String| seen.lines().any(|seen| seen == line);
    let (laptop, trusted) = (world.laptop.ipv4(), world.trusted.ipv4());
    assert!(saw(format!("esp {laptop}")), "{seen}");
    assert!(
        !saw(format!("tcp {laptop} 8000")),
        "from the SYN on: {seen}"
    );
    assert!(saw(format!("tcp {trusted} 8000")), "{seen}");
    assert!(saw(format!("tcp {} 8000", world.intruder.ipv4())), "{seen}");
    let shown = json(&world.server, &["protection", "show"])?;
    let counters = &shown["counters"];
    assert!(counters["arrived_protected"].as_u64() > Some(0), "{shown}");
    assert!(counters["refused_plain"].as_u64() > Some(0), "{shown}");
    Ok(())
}
