//! Hosts as network namespaces, each with a real charon of its own, and SPD entries by mark as the
//! monitor makes them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, setsockopt, socket,
    sockopt,
};
use tempfile::TempDir;
use usher_ike::{Acquire, Configuration, Ike, IkeKey, Peer, PeerClass, Report, SetMark};
use usher_protection::{Class, Kind, Level, Profile};

/// Generous: emulated guests are slow.
pub const LIMIT: Duration = Duration::from_secs(90);

pub const ENCRYPTION: Class = Class::new(Kind::Encryption, Profile::Standard);
pub const AUTHENTICATION: Class = Class::new(Kind::Authentication, Profile::Standard);

const MASK: u32 = 0xfff0_0000;
const SHIFT: u32 = 20;
const PORT: u16 = 7000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Why the tests of this file cannot run here; none: they can.
pub fn reason_to_skip() -> Option<&'static str> {
    match std::env::var_os("USHER_VM") {
        None => Some("needs ESP and kernel modules of a virtual machine"),
        Some(_) => {
            for module in ["esp4", "esp6", "xfrm_user", "veth"] {
                // Built in, or loaded already, in some kernels: what is missing shows in the test.
                let _status = Command::new("modprobe").args(["-q", module]).status();
            }
            None
        }
    }
}

/// What `set_mark_in` of a class is, and what a program's socket of that class has.
pub fn mark(class: Class) -> u32 {
    u32::from(class.mark(Level::Mandatory)) << SHIFT
}

pub fn reqid(class: Class) -> u32 {
    0x7500 + u32::from(class.number())
}

pub struct World {
    pub hosts: Vec<Host>,
    bridge: String,
}

pub struct Host {
    pub name: String,
    namespace: String,
    pub addresses: [IpAddr; 2],
    pub key: Arc<IkeKey>,
    folder: TempDir,
    charon: Option<Child>,
    acquires: Option<Child>,
}

impl World {
    /// Hosts in one network, each with entries for these classes, and each with a charon.
    pub fn new(names: &[&str], classes: &[Class]) -> Self {
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
            .enumerate()
            .map(|(index, name)| {
                let last = u8::try_from(index + 1).expect("few hosts");
                Host::new(name, &bridge, last, classes)
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
            key: other.key.public(),
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
            peers: peers.collect(),
            classes: classes.collect(),
        }
    }

    /// Starts the task of each host with its configuration.
    pub fn negotiate(&self, classes: &[Class]) -> Vec<Ike> {
        (0..self.hosts.len())
            .map(|host| {
                let (ike, _notices) = Ike::start(self.hosts[host].socket());
                ike.configure(self.configuration(host, classes));
                ike
            })
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.hosts.clear();
        run("ip", &["netns", "del", &self.bridge]);
    }
}

impl Host {
    fn new(name: &str, bridge: &str, last: u8, classes: &[Class]) -> Self {
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
        for class in classes {
            for network in ["0.0.0.0/0", "::/0"] {
                ip(&format!(
                    "xfrm policy add src {network} dst {network} dir out priority 1000 \
                     mark {:#x} mask 0xf00000 tmpl proto esp mode transport reqid {}",
                    mark(*class),
                    reqid(*class)
                ));
            }
        }
        let mut host = Self {
            name: name.to_owned(),
            namespace,
            addresses,
            key: Arc::new(IkeKey::from_seed([last; 32])),
            folder: tempfile::tempdir().expect("a folder"),
            charon: None,
            acquires: None,
        };
        host.start_charon();
        host
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("vici")
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
               load = random nonce openssl pem pkcs1 pkcs8 pubkey hmac kdf kernel-netlink socket-default vici
               plugins {{ vici {{ socket = unix://{folder}/vici }} }}
               filelog {{ log {{ path = {folder}/log\n default = 1\n flush_line = yes }} }}
             }}\n"
        );
        std::fs::write(&settings, text).expect("the settings");
        let out = std::fs::File::create(self.folder.path().join("out")).expect("a file");
        let charon = Command::new("ip")
            .args(["netns", "exec", &self.namespace, "/usr/sbin/charon-systemd"])
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
            let mut peer = None;
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
                if let (Some(peer), Some(reqid)) = (peer, after("reqid")) {
                    let reqid = reqid.split('(').next().and_then(|id| id.parse().ok());
                    if let Some(reqid) = reqid {
                        ike.acquire(Acquire { peer, reqid });
                    }
                }
            }
        });
    }

    /// The output of `ip` in its namespace.
    pub fn ip(&self, arguments: &str) -> String {
        let output = Command::new("ip")
            .args(["-n", &self.namespace])
            .args(arguments.split_whitespace())
            .output()
            .expect("ip");
        assert!(output.status.success(), "ip {arguments}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What charon has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Runs in a thread that is in the host's namespace.
    pub fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = Path::new("/run/netns").join(&self.namespace);
        let namespace = std::fs::File::open(path).expect("the namespace");
        std::thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("setns");
            work()
        })
    }

    /// A server that returns what it receives, and the marks of the sockets that it has accepted.
    pub fn serve(&self) -> Arc<parking_lot::Mutex<Vec<u32>>> {
        let marks = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let accepted = Arc::clone(&marks);
        let (ready, is_ready) = std::sync::mpsc::channel();
        self.inside(move || {
            let listener = TcpListener::bind(("::", PORT)).expect("bind");
            ready.send(()).expect("the test waits");
            for connection in listener.incoming() {
                let mut connection = connection.expect("accept");
                let mark = getsockopt(&connection, sockopt::Mark).expect("SO_MARK");
                accepted.lock().push(mark);
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count) = connection.read(&mut bytes) {
                        if count == 0 || connection.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        is_ready.recv().expect("the server");
        marks
    }

    /// Sends something from a socket of the class to the server at the address; returns whether it
    /// came back.
    pub fn echo(&self, class: Option<Class>, server: IpAddr) -> std::io::Result<()> {
        let mark = class.map_or(0, mark);
        let work = move || {
            let mut connection = connect_marked(mark, SocketAddr::new(server, PORT))?;
            connection.write_all(b"hello")?;
            let mut back = [0; 5];
            connection.read_exact(&mut back)?;
            assert_eq!(&back, b"hello");
            Ok(())
        };
        self.inside(work).join().expect("no panic")
    }

    /// A connection of the class on which data goes back and forth until the count is reached;
    /// `meanwhile` is called after each round.
    pub fn converse(
        &self,
        class: Class,
        server: IpAddr,
        rounds: usize,
        mut meanwhile: impl FnMut(usize) + Send + 'static,
    ) -> std::io::Result<()> {
        let mark = mark(class);
        let work = move || {
            let mut connection = connect_marked(mark, SocketAddr::new(server, PORT))?;
            let data = [7; 2048];
            for round in 0..rounds {
                connection.write_all(&data)?;
                let mut back = [0; 2048];
                connection.read_exact(&mut back)?;
                assert_eq!(back, data);
                meanwhile(round);
            }
            Ok(())
        };
        self.inside(work).join().expect("no panic")
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

fn connect_marked(mark: u32, address: SocketAddr) -> std::io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::Mark, &mark)?;
    connect(
        std::os::fd::AsRawFd::as_raw_fd(&socket),
        &SockaddrStorage::from(address),
    )?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
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

/// Whether every class with every peer is protected.
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
