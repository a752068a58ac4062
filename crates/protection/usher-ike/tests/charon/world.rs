//! Hosts as network namespaces, each with a real charon of its own, and SPD entries by mark as the
//! monitor makes them.

mod charon;
mod sad;
mod traffic;

use sad::HostSad;
pub use traffic::Counting;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::mpsc;
use usher_ike::{Acquire, Configuration, Ike, IkeKey, Notice, Peer, PeerClass, Report, SetMark};
use usher_ipsec::Sad;
use usher_protection::{Class, Kind, Level, Profile};

/// Generous: emulated guests are slow.
pub const LIMIT: Duration = Duration::from_secs(90);

pub const ENCRYPTION: Class = Class::new(Kind::Encryption, Profile::Standard);
pub const AUTHENTICATION: Class = Class::new(Kind::Authentication, Profile::Standard);
/// Needs ML-KEM.
pub const STRONG: Class = Class::new(Kind::Encryption, Profile::Strong);
pub const AH: Class = Class::new(Kind::Authentication, Profile::Ah);

const MASK: u32 = 0xfff0_0000;
const SHIFT: u32 = 20;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The reason that the tests of this file cannot run here; none: they can.
pub fn reason_to_skip() -> Option<&'static str> {
    match std::env::var_os("USHER_VM") {
        None => Some("needs ESP and kernel modules of a virtual machine"),
        Some(_) => {
            for module in [
                "esp4",
                "esp6",
                "ah4",
                "ah6",
                "xfrm_user",
                "veth",
                "sch_netem",
            ] {
                // Built in, or loaded already, in some kernels: what is missing shows in the test.
                let _status = Command::new("modprobe").args(["-q", module]).status();
            }
            None
        }
    }
}

/// The mark in `set_mark_in` of a class, and on sockets of programs with that class.
pub fn mark(class: Class) -> u32 {
    u32::from(class.mark(Level::Mandatory)) << SHIFT
}

pub fn reqid(class: Class) -> u32 {
    0x7500 + u32::from(class.number())
}

/// A key as those of peers that have no Ed25519.
pub fn ecdsa_key(number: u8) -> IkeKey {
    IkeKey::from_secret_number([number; 32]).expect("below the order of the curve")
}

/// A strongSwan that has ML-KEM, where scripts/setup-vm has fetched one.
pub fn strongswan_with_ml_kem() -> Option<PathBuf> {
    let cache = PathBuf::from(std::env::var_os("USHER_VM_CACHE")?);
    Some(cache.join("strongswan")).filter(|root| root.is_dir())
}

pub struct World {
    pub hosts: Vec<Host>,
    bridge: String,
}

pub struct Host {
    pub name: String,
    number: u8,
    bridge: String,
    namespace: String,
    pub addresses: [IpAddr; 2],
    pub key: Arc<IkeKey>,
    folder: TempDir,
    /// The root of another strongSwan than the machine's.
    strongswan: Option<PathBuf>,
    charon: Option<Child>,
    acquires: Option<Child>,
}

impl World {
    /// Hosts in one network, each with entries for these classes, and each with a charon.
    pub fn new(names: &[&str], classes: &[Class]) -> Self {
        let machines = names.iter().map(|_| None);
        Self::with_strongswans(names, classes, machines.collect())
    }

    /// Like [`World::new`], with another strongSwan than the machine's on each host that has one.
    pub fn with_strongswans(
        names: &[&str],
        classes: &[Class],
        strongswans: Vec<Option<PathBuf>>,
    ) -> Self {
        let number = std::process::id() * 16 + NEXT.fetch_add(1, Ordering::Relaxed);
        let bridge = format!("ui{number}");
        run("ip", &["netns", "add", &bridge]);
        run(
            "ip",
            &[
                "-n", &bridge, "link", "add", "name", "switch", "type", "bridge",
            ],
        );
        run("ip", &["-n", &bridge, "link", "set", "switch", "up"]);
        let hosts = names
            .iter()
            .zip(strongswans)
            .enumerate()
            .map(|(index, (name, strongswan))| {
                let last = u8::try_from(index + 1).expect("few hosts");
                Host::new(name, &bridge, last, classes, strongswan)
            })
            .collect();
        Self { hosts, bridge }
    }

    /// The configuration of a host: all others are peers.
    pub fn configuration(&self, host: usize, classes: &[Class]) -> Configuration {
        let own = &self.hosts[host];
        let others = self.hosts.iter().filter(|other| other.name != own.name);
        let peers = others.map(|other| Peer {
            name: other.name.parse().expect("a name"),
            addresses: other.addresses.to_vec(),
            keys: vec![other.key.public()],
            unlabelled: None,
        });
        let classes = classes.iter().map(|class| PeerClass {
            class: *class,
            reqid: reqid(*class),
            mark: SetMark {
                value: mark(*class),
                mask: MASK,
            },
        });
        Configuration {
            host: own.name.parse().expect("a name"),
            keys: vec![Arc::clone(&own.key)],
            stated: vec![own.key.public()],
            peers: peers.collect(),
            classes: classes.collect(),
            on_demand: BTreeSet::new(),
        }
    }

    /// Starts the task of each host with its configuration.
    pub fn negotiate(&self, classes: &[Class]) -> Vec<Ike> {
        (0..self.hosts.len())
            .map(|host| {
                let (ike, _notices) = self.hosts[host].start_ike();
                ike.configure(self.configuration(host, classes));
                ike
            })
            .collect()
    }
}

/// The entries of the SPD for a class.
fn entries(class: Class) -> [String; 2] {
    let protocol = match class.profile {
        Profile::Ah => "ah",
        Profile::Standard | Profile::Strong => "esp",
    };
    ["0.0.0.0/0", "::/0"].map(|network| {
        format!(
            "src {network} dst {network} dir out priority 1000 mark {:#x} mask 0xf00000 tmpl proto \
             {protocol} mode transport reqid {}",
            mark(class),
            reqid(class)
        )
    })
}

fn ip(namespace: &str, arguments: &str) -> String {
    let output = Command::new("ip")
        .args(["-n", namespace])
        .args(arguments.split_whitespace())
        .output()
        .expect("ip");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Drop for World {
    fn drop(&mut self) {
        self.hosts.clear();
        run("ip", &["netns", "del", &self.bridge]);
    }
}

impl Host {
    fn new(
        name: &str,
        bridge: &str,
        last: u8,
        classes: &[Class],
        strongswan: Option<PathBuf>,
    ) -> Self {
        let namespace = format!("{bridge}{name}");
        let addresses = [
            IpAddr::from([10, 0, 0, last]),
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)]),
        ];
        let port = format!("p{last}");
        run("ip", &["netns", "add", &namespace]);
        let ip = |arguments: &str| {
            let words = ["-n", &namespace].into_iter();
            let words: Vec<&str> = words.chain(arguments.split_whitespace()).collect();
            run("ip", &words);
        };
        ip(&format!(
            "link add net type veth peer name {port} netns {bridge}"
        ));
        run(
            "ip",
            &["-n", bridge, "link", "set", &port, "master", "switch", "up"],
        );
        ip(&format!("addr add {}/24 dev net", addresses[0]));
        ip(&format!("addr add {}/64 dev net nodad", addresses[1]));
        ip("link set net up");
        ip("link set lo up");
        for setting in [
            "net.ipv4.tcp_fwmark_accept=1",
            "net.ipv4.fwmark_reflect=1",
            "net.core.xfrm_larval_drop=0",
        ] {
            let arguments = ["netns", "exec", &namespace, "sysctl", "-qw", setting];
            run("ip", &arguments);
        }
        for entry in classes.iter().flat_map(|class| entries(*class)) {
            ip(&format!("xfrm policy add {entry}"));
        }
        let mut host = Self {
            name: name.to_owned(),
            number: last,
            bridge: bridge.to_owned(),
            namespace,
            addresses,
            key: Arc::new(IkeKey::from_seed([last; 32])),
            folder: tempfile::tempdir().expect("a folder"),
            strongswan,
            charon: None,
            acquires: None,
        };
        host.start_charon();
        host
    }

    /// Puts the entries of a class into the SPD again, as the protector does when SAs have come: sockets
    /// look for their SA again.
    pub fn announcer(&self, class: Class) -> impl Fn() + Send + use<> {
        let namespace = self.namespace.clone();
        move || {
            for entry in entries(class) {
                ip(&namespace, &format!("xfrm policy update {entry}"));
            }
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("vici")
    }

    /// Starts the task for this host's charon and kernel.
    pub fn start_ike(&self) -> (Ike, mpsc::Receiver<Notice>) {
        let sad = self.inside(Sad::open).join().expect("no panic");
        Ike::start(self.socket(), HostSad(sad.expect("netlink")))
    }

    /// Hands the kernel's acquires to the task, as the protector does.
    pub fn watch_acquires(&mut self, ike: Arc<Ike>) {
        let mut monitor = Command::new("ip")
            .args([
                "netns",
                "exec",
                &self.namespace,
                "stdbuf",
                "-oL",
                "ip",
                "xfrm",
                "monitor",
                "acquire",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .expect("ip");
        let output = monitor.stdout.take().expect("a pipe");
        // The kernel sends an acquire once: a monitor that starts later misses it.
        let id = monitor.id().to_string();
        let table = format!("/proc/{id}/net/netlink");
        wait("the monitor of acquires", || {
            let sockets = std::fs::read_to_string(&table).unwrap_or_default();
            sockets.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.get(2) == Some(&id.as_str()) && words.get(3) != Some(&"00000000")
            })
        });
        self.acquires = Some(monitor);
        std::thread::spawn(move || {
            let (mut source, mut peer) = (None, None);
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let words: Vec<&str> = line.split_whitespace().collect();
                let after = |word: &str| {
                    let at = words.iter().position(|own| *own == word)?;
                    words.get(at + 1).copied()
                };
                if let Some(selector) = after("dst").filter(|_| words.first() == Some(&"sel")) {
                    let address = selector.split('/').next();
                    peer = address.and_then(|address| address.parse().ok());
                }
                if let Some(address) = after("src").filter(|_| words.first() == Some(&"sel")) {
                    let address = address.split('/').next();
                    source = address.and_then(|address| address.parse().ok());
                }
                if let (Some(source), Some(peer), Some(reqid)) = (source, peer, after("reqid")) {
                    let reqid = reqid.split('(').next().and_then(|id| id.parse().ok());
                    if let Some(reqid) = reqid {
                        ike.acquire(Acquire {
                            source,
                            peer,
                            reqid,
                        });
                    }
                }
            }
        });
    }

    /// The SPIs by which the kernel may send to the other host's first address.
    pub fn spis_to(&self, other: &Self) -> Vec<String> {
        let (from, to) = (self.addresses[0], other.addresses[0]);
        let listed = self.ip(&format!("xfrm state list src {from} dst {to}"));
        let words: Vec<&str> = listed.split_whitespace().collect();
        let spis = words.windows(2).filter(|pair| pair[0] == "spi");
        let spis = spis.map(|pair| pair[1].trim_start_matches("0x"));
        // Where the kernel has asked for an SA, it lists a placeholder with the SPI 0.
        spis.filter(|spi| *spi != "00000000")
            .map(str::to_owned)
            .collect()
    }

    /// Returns whether the only SA by which the kernel may send to the other host's first address is placed
    /// before those that may come.
    pub fn is_placed_to(&self, other: &Self) -> bool {
        let (from, to) = (self.addresses[0], other.addresses[0]);
        let listed = self.ip(&format!("-s xfrm state list src {from} dst {to}"));
        let soon = Command::new("date")
            .args(["-d", "+1 hour", "+%F %T"])
            .output();
        let soon = String::from_utf8(soon.expect("date").stdout).expect("text");
        let made: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.trim().strip_prefix("add "))
            .collect();
        made.len() == 1 && made[0] > soon.trim()
    }

    /// Cuts the host off from the others, or connects it again. Its interface stays up.
    pub fn cut_off(&self, is_cut: bool) {
        let port = format!("p{}", self.number);
        let master: &[&str] = if is_cut {
            &["nomaster"]
        } else {
            &["master", "switch"]
        };
        let set = ["-n", &self.bridge, "link", "set", &port];
        run("ip", &[&set[..], master].concat());
    }

    /// Delays what reaches the host.
    pub fn delay(&self, delay: Duration) {
        let port = format!("p{}", self.number);
        let delay = format!("{}ms", delay.as_millis());
        let add = ["-n", &self.bridge, "qdisc", "add", "dev", &port, "root"];
        let netem = ["netem", "delay", &delay, "limit", "100000"];
        run("tc", &[&add[..], &netem].concat());
    }

    /// The output of `ip` in its namespace.
    pub fn ip(&self, arguments: &str) -> String {
        ip(&self.namespace, arguments)
    }

    /// How many packets the kernel has dropped for want of an SA, in either direction.
    pub fn packets_without_sa(&self) -> u64 {
        let read = || std::fs::read_to_string("/proc/thread-self/net/xfrm_stat");
        let statistics = self.inside(read).join().expect("no panic");
        let statistics = statistics.expect("the kernel counts");
        let lines = statistics.lines().map(|line| line.split_whitespace());
        let numbers = lines.filter_map(|mut words| {
            let is_counted = ["XfrmInNoStates", "XfrmOutNoStates"].contains(&words.next()?);
            words.next()?.parse::<u64>().ok().filter(|_| is_counted)
        });
        numbers.sum()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for mut child in self.charon.take().into_iter().chain(self.acquires.take()) {
            // They may have ended.
            let _killed = child.kill();
            let _status = child.wait();
        }
        if std::thread::panicking() {
            println!("charon of {}:\n{}", self.name, self.log());
        }
        run("ip", &["netns", "del", &self.namespace]);
    }
}

/// Waits until the condition is met.
pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the report meets the condition.
pub fn wait_for(ike: &Ike, what: &str, is_so: impl Fn(&Report) -> bool) {
    let end = Instant::now() + LIMIT;
    loop {
        let report = ike.report();
        if is_so(&report) {
            return;
        }
        assert!(
            Instant::now() < end,
            "waited in vain for {what}: {report:#?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns whether every class with every peer is protected.
pub fn all_protected(report: &Report) -> bool {
    let peers = &report.peers;
    let mut classes = peers.iter().flat_map(|peer| &peer.classes);
    !peers.is_empty() && classes.all(|class| class.protected)
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    let is_done = status.is_ok_and(|status| status.success());
    assert!(
        is_done || std::thread::panicking(),
        "{program} {arguments:?}"
    );
}
