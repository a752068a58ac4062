//! Hosts as network namespaces, each with a real charon of its own, and SPD entries by mark as the
//! monitor makes them.

mod traffic;

pub use traffic::Counting;

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::mpsc;
use usher_ike::{
    Acquire, Configuration, Ike, IkeKey, KernelSad, KernelSas, Notice, Peer, PeerClass, Placed,
    Report, SetMark,
};
use usher_ipsec::{OutboundSa, Sad};
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
            key: Arc::clone(&own.key),
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

/// The SAs of a host's kernel, as the protector has them.
struct HostSad(Sad);

impl KernelSad for HostSad {
    fn list(&mut self) -> io::Result<KernelSas> {
        self.0.spis().map_err(io::Error::other)
    }

    fn has(&mut self, sa: Placed) -> io::Result<bool> {
        self.0.has(outbound(sa)).map_err(io::Error::other)
    }

    fn place(&mut self, sa: Placed) -> io::Result<()> {
        self.0.place(outbound(sa)).map_err(io::Error::other)
    }

    fn place_last(&mut self, sa: Placed) -> io::Result<()> {
        self.0.place_last(outbound(sa)).map_err(io::Error::other)
    }

    fn place_first(&mut self, sa: Placed) -> io::Result<()> {
        self.0.place_first(outbound(sa)).map_err(io::Error::other)
    }

    fn keep_places(&mut self, known: &KernelSas) -> io::Result<()> {
        let is_known = |to, spi| known.contains(&(to, spi));
        self.0.keep_places(is_known).map_err(io::Error::other)
    }
}

fn outbound(sa: Placed) -> OutboundSa {
    let Placed { to, spi, is_ah } = sa;
    OutboundSa { to, spi, is_ah }
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

    /// Starts an unmodified charon inside the namespace, with a socket of its own.
    pub fn start_charon(&mut self) {
        assert!(self.charon.is_none(), "one charon a host");
        // A killed charon leaves its socket.
        let _removed = std::fs::remove_file(self.socket());
        let folder = self.folder.path().display().to_string();
        let settings = self.folder.path().join("strongswan.conf");
        let text = format!(
            "charon-systemd {{
               replay_window = 0
               load = random nonce openssl pem pkcs1 pkcs8 pubkey hmac kdf kernel-netlink socket-default vici
               plugins {{ vici {{ socket = unix://{folder}/vici }} }}
               filelog {{ log {{ path = {folder}/log\n default = 1\n flush_line = yes }} }}
             }}\n"
        );
        std::fs::write(&settings, text).expect("the settings");
        let out = std::fs::File::create(self.folder.path().join("out")).expect("a file");
        let mut charon = Command::new("ip");
        charon.args(["netns", "exec", &self.namespace]);
        match &self.strongswan {
            None => charon.arg("/usr/sbin/charon-systemd"),
            // Mounts its plugins over the machine's, in the mount namespace that `ip` makes.
            Some(root) => charon
                .args([
                    "sh",
                    "-c",
                    "mount --bind $0/usr/lib/ipsec /usr/lib/ipsec && \
                     exec $0/usr/lib64/ld-linux-x86-64.so.2 \
                     --library-path $0/usr/lib/x86_64-linux-gnu $0/usr/sbin/charon-systemd",
                ])
                .arg(root)
                .env(
                    "OPENSSL_MODULES",
                    root.join("usr/lib/x86_64-linux-gnu/ossl-modules"),
                ),
        };
        let charon = charon
            .env("STRONGSWAN_CONF", &settings)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file"))
            .stderr(out)
            .spawn()
            .expect("charon: scripts/setup installs it");
        self.charon = Some(charon);
        wait(&format!("charon of {}", self.name), || {
            std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
        });
    }

    pub fn kill_charon(&mut self) {
        let mut charon = self.charon.take().expect("it runs");
        charon.kill().expect("kill");
        charon.wait().expect("its end");
    }

    /// Stops charon (SIGSTOP), or lets it go on.
    pub fn stop_charon(&self, stopped: bool) {
        let charon = self.charon.as_ref().expect("it runs");
        let id = nix::unistd::Pid::from_raw(i32::try_from(charon.id()).expect("a pid"));
        let signal = match stopped {
            true => nix::sys::signal::Signal::SIGSTOP,
            false => nix::sys::signal::Signal::SIGCONT,
        };
        nix::sys::signal::kill(id, signal).expect("kill");
    }

    /// `swanctl --load-all`, with files that have nothing.
    pub fn load_all(&self) {
        self.swanctl(&["--load-all", "--noprompt"]);
    }

    /// Writes files for its charon as an administrator without Usher does: one peer, policies of charon's own, and
    /// no security label.
    pub fn write_swanctl_conf(&self, peer: &Self, algorithms: &str) {
        let files = self.folder.path().join("swanctl");
        let write = |name: &str, bytes: &[u8]| {
            let path = files.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, bytes).expect("a file");
        };
        write("pkcs8/own.der", &self.key.to_pkcs8());
        write("pubkey/own.der", &self.key.public().to_spki());
        write("pubkey/peer.der", &peer.key.public().to_spki());
        let (own, name, address) = (&self.name, &peer.name, peer.addresses[0]);
        let text = format!(
            "connections {{ by-hand {{
               version = 2
               remote_addrs = {address}
               proposals = aes256gcm16-prfsha384-x25519
               mobike = no
               local {{ auth = pubkey
                 id = {own}
                 pubkeys = own.der }}
               remote {{ auth = pubkey
                 id = {name}
                 pubkeys = peer.der }}
               children {{ any {{
                 mode = transport
                 esp_proposals = {algorithms}
                 start_action = trap }} }} }} }}\n"
        );
        write("swanctl.conf", text.as_bytes());
    }

    /// Returns whether one of its TCP connections waits for an answer to its SYN.
    pub fn has_connecting(&self) -> bool {
        const SYN_SENT: &str = "02";
        let read = || std::fs::read_to_string("/proc/thread-self/net/tcp");
        let table = self.inside(read).join().expect("no panic");
        let table = table.expect("the kernel lists them");
        let states = table.lines().map(|line| line.split_whitespace().nth(3));
        let mut states = states.flatten();
        states.any(|state| state == SYN_SENT)
    }

    /// Ends all IKE SAs, with their SAs on both hosts.
    pub fn terminate(&self) {
        let listed = self.swanctl(&["--list-sas", "--raw"]);
        let names = listed
            .split(['{', ' '])
            .filter(|word| word.starts_with("usher-"));
        let names: BTreeSet<&str> = names.collect();
        assert!(!names.is_empty(), "{listed}");
        for name in names {
            self.swanctl(&["--terminate", "--ike", name]);
        }
    }

    /// The output of an administrator's command for charon, whose own files have nothing.
    pub fn swanctl(&self, arguments: &[&str]) -> String {
        let files = self.folder.path().join("swanctl");
        std::fs::create_dir_all(&files).expect("a folder");
        let output = Command::new("swanctl")
            .args(arguments)
            .arg("--uri")
            .arg(format!("unix://{}", self.socket().display()))
            .env("SWANCTL_DIR", files)
            .output()
            .expect("swanctl");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
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
        // The kernel says it once: who listens later misses it.
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
        // Where the kernel has asked for SAs, it has a place for them.
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
        let master: &[&str] = match is_cut {
            true => &["nomaster"],
            false => &["master", "switch"],
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

    /// charon's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// How many pairs of SAs charon has made at the first address, whoever began.
    pub fn pairs_made(&self) -> usize {
        let (log, address) = (self.log(), format!(" and TS {}/32 ", self.addresses[0]));
        let made = log.lines().filter(|line| line.contains(&address));
        let made = made.filter(|line| line.contains(" established with SPIs "));
        // The second line of one that it has granted.
        made.filter(|line| !line.contains("outbound CHILD_SA"))
            .count()
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

/// Waits until it is so.
pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the report is so.
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
