//! Hosts whose programs' traffic IPsec protects, each with a real charon, and hosts without Usher.

use std::error::Error;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::process::Command;

use crate::daemon::{Daemon, Role};
use crate::error::LabError;
use crate::host::Host;
use crate::running::Running;
use crate::topology::Lab;
use crate::waiting::{PATIENCE, eventually};

/// The web client that [`World::write_secure`] governs.
pub const CLIENT: &str = "/usr/bin/curl";
/// The web server that [`World::write_secure`] governs, in Debian's Python.
pub const SERVER: &str = env!("USHER_LAB_PYTHON");

/// The port of the echo that no policy governs.
const ECHO: u16 = 9000;

/// The plugins that Usher's connections take; with all of them, Debian's charon crashes. Without the
/// routing table, charon adds no rule to those by which the kernel looks up each route.
const CHARON_SETTINGS: &str = "charon-systemd {
  load = random nonce openssl pem pkcs1 pkcs8 pubkey hmac kdf kernel-netlink socket-default vici
  routing_table = 0
  install_routes = no
}
";

/// Starts a charon of Debian's, with its default configuration but for its plugins.
///
/// # Errors
/// When it does not become ready, with its log.
pub fn start_charon(host: &Host) -> Result<Daemon, Box<dyn Error>> {
    host.write("/etc/strongswan.conf", CHARON_SETTINGS)?;
    Ok(host.supervise("charon", ["/usr/sbin/charon-systemd"])?)
}

/// Watches the IPv4 packets of a host; packets.py documents the lines. It runs a copy of Python, because
/// a governed program may not open packet sockets.
///
/// # Errors
/// When it does not start.
pub fn watch_packets(host: &Host) -> Result<Running, LabError> {
    watch(host, &[])
}

/// Like [`watch_packets`], for packets that leave only.
///
/// # Errors
/// As [`watch_packets`].
pub fn watch_leaving(host: &Host) -> Result<Running, LabError> {
    watch(host, &["leaving"])
}

fn watch(host: &Host, which: &[&str]) -> Result<Running, LabError> {
    const WATCHER: &str = "/srv/watcher";
    // A former one may still be executed by a process that ends.
    host.run(["cp", "--remove-destination", SERVER, WATCHER])?;
    let own = host.ipv4().to_string();
    let words = [WATCHER, "-c", include_str!("packets.py"), &own];
    let mut watcher = host.spawn(words.iter().chain(which))?;
    watcher.read_past("ready\n", PATIENCE)?;
    Ok(watcher)
}

/// The line of a host's public key, `host_key` or `ike/key`, without its comment.
///
/// # Errors
/// When `usher init` has not made it.
pub fn public_key(host: &Host, file: &str) -> Result<String, Box<dyn Error>> {
    let line = host.read(format!("/etc/usher/{file}.pub"))?;
    let words: Vec<&str> = line.split_whitespace().take(2).collect();
    Ok(words.join(" "))
}

/// Two hosts whose traffic the policy protects, and two that know nothing of Usher.
#[derive(Debug)]
pub struct World {
    /// Protected, mostly a client.
    pub laptop: Host,
    /// Protected, mostly a server.
    pub server: Host,
    /// Without Usher, in the network that the policy protects.
    pub intruder: Host,
    /// Without Usher; the policy trusts it.
    pub trusted: Host,
    /// The last field, because the lab must outlive its hosts.
    pub lab: Lab,
}

impl World {
    /// Makes the hosts, which know each other's IPv4 address and keys. No daemon runs yet.
    ///
    /// # Errors
    /// When Usher has not been built, or one of its commands fails.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        Self::with_addresses(|host| vec![host.ipv4().into()])
    }

    /// Like [`World::new`], with the IPv6 addresses as well.
    ///
    /// # Errors
    /// As [`World::new`].
    pub fn with_ipv6() -> Result<Self, Box<dyn Error>> {
        Self::with_addresses(|host| vec![host.ipv4().into(), host.ipv6().into()])
    }

    fn with_addresses(of: impl Fn(&Host) -> Vec<IpAddr>) -> Result<Self, Box<dyn Error>> {
        let lab = Lab::new()?;
        let world = Self {
            laptop: lab.host("laptop")?,
            server: lab.host("server")?,
            intruder: lab.host("intruder")?,
            trusted: lab.host("trusted")?,
            lab,
        };
        let mut hosts = String::new();
        for host in world.protected() {
            host.run(["usher", "init", "--name", host.name()])?;
            let addresses: Vec<String> = of(host).iter().map(ToString::to_string).collect();
            hosts += &format!(
                "host {} {{ address {}; key \"{}\"; ike-key \"{}\"; }}\n",
                host.name(),
                addresses.join(", "),
                public_key(host, "host_key")?,
                public_key(host, "ike/key")?
            );
        }
        world.write_policy("hosts", &hosts)?;
        Ok(world)
    }

    /// The two hosts with Usher.
    #[must_use]
    pub fn protected(&self) -> [&Host; 2] {
        [&self.laptop, &self.server]
    }

    /// Writes a file of both hosts' policy; it is not applied yet.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write_policy(&self, name: &str, text: &str) -> Result<(), Box<dyn Error>> {
        for host in self.protected() {
            host.write(format!("/etc/usher/policy.d/{name}.policy"), text)?;
        }
        Ok(())
    }

    /// Writes the paper's policy of figure 9, "secure", for this network and the web programs.
    ///
    /// # Errors
    /// As [`World::write_policy`].
    pub fn write_secure(&self) -> Result<(), Box<dyn Error>> {
        let policy = format!(
            "application {SERVER}, {CLIENT}\n{{\n  network {}/32 trusted;\n  network 10.77.0.0/24 \
             protected Secure;\n  network 0.0.0.0/0      trusted;\n  protection Secure {{ \
             localport=any remoteport=any encryption mandatory; }}\n}}\n",
            self.trusted.ipv4()
        );
        self.write_policy("secure", &policy)
    }

    /// Applies both hosts' policy.
    ///
    /// # Errors
    /// When it is refused, with the output.
    pub fn apply(&self) -> Result<(), Box<dyn Error>> {
        for host in self.protected() {
            host.run(["usher", "policy", "apply"])?;
        }
        Ok(())
    }

    /// Starts a charon on each host; see [`start_charon`].
    ///
    /// # Errors
    /// When one does not become ready, with its log.
    pub fn start_charons(&self) -> Result<Vec<Daemon>, Box<dyn Error>> {
        self.protected().into_iter().map(start_charon).collect()
    }

    /// Starts a protector on each host.
    ///
    /// # Errors
    /// When one does not become ready, with its log.
    pub fn start_protectors(&self) -> Result<Vec<Daemon>, Box<dyn Error>> {
        let hosts = self.protected().into_iter();
        let protectors = hosts.map(|host| Ok(host.start_daemon(Role::Protector)?));
        protectors.collect()
    }

    /// Waits until both hosts have SAs for every class with every address of the other.
    ///
    /// # Errors
    /// When they do not come, or a protector does not answer.
    pub fn wait_for_sas(&self) -> Result<(), Box<dyn Error>> {
        for host in self.protected() {
            eventually("SAs are there", || {
                let peers = json(host, &["protection", "peers"])?;
                let peers = peers["peers"].as_array().map_or(&[][..], Vec::as_slice);
                let classes = peers.iter().map(|peer| peer["classes"].as_array());
                let mut classes = classes.map(|classes| classes.map_or(&[][..], Vec::as_slice));
                let is_protected = |class: &serde_json::Value| class["protected"] == true;
                Ok(!peers.is_empty()
                    && classes.all(|all| !all.is_empty() && all.iter().all(is_protected)))
            })?;
        }
        Ok(())
    }

    /// A web server of the governed program at port 8000 of `server`, and the echo of another.
    ///
    /// # Errors
    /// When one does not listen.
    pub fn serve(&self) -> Result<Vec<Running>, Box<dyn Error>> {
        self.server.write("/srv/www/page", "a page\n")?;
        let folder = ["--directory", "/srv/www", "8000"];
        let web = [SERVER, "-u", "-m", "http.server"];
        let web = self.server.spawn(web.iter().chain(&folder))?;
        wait_for_listener(&self.server, 8000)?;
        Ok(vec![web, self.serve_echo()?])
    }

    /// The echo of a program that no policy governs, on `server`, for both families. Without `-t`, socat
    /// waits half a second for cat, once the client has sent all.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn serve_echo(&self) -> Result<Running, Box<dyn Error>> {
        let listen = format!("TCP6-LISTEN:{ECHO},fork,reuseaddr,ipv6only=0");
        let echo = self
            .server
            .spawn(["socat", "-t500", &listen, "EXEC:/bin/cat"])?;
        wait_for_listener(&self.server, ECHO)?;
        Ok(echo)
    }

    /// Returns whether this host gets the page within a time that retransmissions on a busy machine
    /// need. One that is refused waits as long.
    ///
    /// # Errors
    /// When the client cannot be started.
    pub fn gets_the_page(&self, from: &Host) -> Result<bool, Box<dyn Error>> {
        let url = format!("http://{}:8000/page", self.server.ipv4());
        let got = from.command([CLIENT, "-sS", "-m", "30", &url]).run()?;
        Ok(got.stdout == "a page\n")
    }

    /// Returns whether the program that is not governed answers this host. socat waits for the answer as
    /// [`World::serve_echo`] says.
    ///
    /// # Errors
    /// When the client cannot be started.
    pub fn gets_an_echo(&self, from: &Host) -> Result<bool, Box<dyn Error>> {
        let server = format!("TCP:{}:{ECHO},connect-timeout=500", self.server.ipv4());
        let got = from
            .command(["socat", "-T500", "-t500", "-", &server])
            .input("hello\n")
            .run()?;
        Ok(got.stdout == "hello\n")
    }
}

/// Waits until something listens at this port of TCP.
///
/// # Errors
/// When nothing does.
pub fn wait_for_listener(host: &Host, port: u16) -> Result<(), Box<dyn Error>> {
    eventually("the server listens", || {
        let listening = host.run(["ss", "-ltnH", &format!("sport = {port}")])?;
        Ok(!listening.stdout.is_empty())
    })
}

/// A counter of the kernel's statistics of IPsec on this host, such as `XfrmOutNoStates`.
///
/// # Errors
/// When the kernel has no such counter.
pub fn xfrm_counter(host: &Host, name: &str) -> Result<u64, Box<dyn Error>> {
    let counters = host.run(["cat", "/proc/net/xfrm_stat"])?.stdout;
    let mut lines = counters.lines().map(str::split_whitespace);
    let found = lines.find_map(|mut words| {
        words
            .next()
            .filter(|first| *first == name)
            .and(words.next())
    });
    Ok(found.ok_or_else(|| format!("no counter {name}"))?.parse()?)
}

/// The answer of a command of `usher`'s on this host.
///
/// # Errors
/// When the command fails, or does not answer in JSON.
pub fn json<W: AsRef<OsStr>>(
    host: &Host,
    words: &[W],
) -> Result<serde_json::Value, Box<dyn Error>> {
    let begin = ["usher", "--json"].map(OsStr::new).into_iter();
    let words = begin.chain(words.iter().map(AsRef::as_ref));
    Ok(serde_json::from_str(&host.run(words)?.stdout)?)
}

/// Whether SAs can carry traffic here. Prints the reason if not, as a skipped test does.
#[must_use]
pub fn can_protect() -> bool {
    if std::env::var_os("USHER_VM").is_none() {
        println!("skipped: needs ESP, which this kernel may lack");
        return false;
    }
    for module in ["esp4", "esp6", "xfrm_user"] {
        // One that is built into the kernel is no module.
        let _status = Command::new("modprobe").args(["-q", module]).status();
    }
    true
}
