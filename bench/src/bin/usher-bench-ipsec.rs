//! The costs of IPsec protection for the programs of a host. Runs inside a lab's host, as its root;
//! the other end runs on another host.
//!
//! Three processes of the same code do the same by turns: one whose control group the monitor does not
//! see (`bare`), one that it sees and does not govern (`other`), and a governed one. Peers are
//! trusted, so no SA is needed: what is measured is the work of the policy.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use usher_bench::Samples;
use usher_ipsec::{Ipsec, MarkMask, Settings};
use usher_protection::{Class, Item, Kind, Level, Profile, ProgramName, Rules, Tables, Treatment};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The governed program: a copy of this one.
const GOVERNED: &str = "/srv/usher-bench-governed";
/// The operations of a process at a turn, and their number.
const OPERATIONS: [(&str, usize); 4] = [
    ("socket", 500),
    ("udp_connect", 500),
    ("tcp_connection", 50),
    ("datagram", 100),
];
/// Live sockets of governed programs.
const LIVE: [usize; 4] = [10, 1_000, 10_000, 100_000];
/// Live sockets of one process, within any limit of descriptors, and of one local address, whose ports
/// are not many more.
const OF_PROCESS: usize = 10_000;
/// Applications of a policy, and their networks. In the last two all applications have a network in
/// common, that of the peer.
const POLICIES: [(u32, u32, bool); 6] = [
    (10, 25, false),
    (100, 250, false),
    (1_000, 2_500, false),
    (2_000, 5_000, false),
    (100, 250, true),
    (2_000, 5_000, true),
];
/// Numbers of held peers.
const HELD: [u32; 3] = [10, 1_000, 10_000];
/// Times that a policy is applied, and sockets are listed.
const TIMES: usize = 9;
/// The time for an answer on the lab's network.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["serve", port] => serve(port.parse()?),
        ["work", server, own] => work(server.parse()?, own.parse()?),
        ["measure", server, cgroup, rounds] => {
            measure(server.parse()?, Path::new(cgroup), rounds.parse()?)
        }
        ["held", cgroup] => {
            let mut ipsec = open(Path::new(cgroup))?;
            println!("{}", serde_json::to_string(&held(&mut ipsec)?)?);
            Ok(ipsec.close()?)
        }
        _ => Err(
            "usage: serve PORT | work SERVER ADDRESS | measure SERVER CGROUP ROUNDS | held CGROUP"
                .into(),
        ),
    }
}

/// Accepts and closes connections, and returns datagrams.
fn serve(port: u16) -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let datagrams = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    println!("ready");
    std::thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = [0; 64];
        loop {
            let (length, from) = datagrams.recv_from(&mut bytes)?;
            datagrams.send_to(&bytes[..length], from)?;
        }
    });
    for connection in listener.incoming() {
        drop(connection?);
    }
    Ok(())
}

/// Does what the lines of standard input say, and prints the microseconds of each time. `own` is the
/// local address of sockets that live on.
fn work(server: SocketAddr, own: Ipv4Addr) -> Outcome {
    let mut kept = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line?;
        let (operation, times) = line.split_once(' ').ok_or("no number")?;
        let times: usize = times.parse()?;
        let bound = UdpSocket::bind("0.0.0.0:0")?;
        bound.connect(server)?;
        bound.set_read_timeout(Some(PATIENCE))?;
        let begun = Instant::now();
        match operation {
            "live" => keep(&mut kept, server, own, times)?,
            "socket" => {
                for _ in 0..times {
                    drop(socket(AddressFamily::INET, SocketType::DGRAM, None)?);
                }
            }
            "udp_connect" => {
                for _ in 0..times {
                    bound.connect(server)?;
                }
            }
            "tcp_connection" => {
                for _ in 0..times {
                    let connection = TcpStream::connect(server)?;
                    // It leaves nothing behind.
                    sockopt::set_socket_linger(&connection, Some(Duration::ZERO))?;
                }
            }
            "datagram" => {
                for _ in 0..times {
                    bound.send(&[1])?;
                    bound.recv(&mut [0])?;
                }
            }
            other => return Err(format!("{other} is no operation").into()),
        }
        println!(
            "{}",
            begun.elapsed().as_secs_f64() * 1e6 / times.max(1) as f64
        );
    }
    Ok(())
}

/// Keeps so many connected sockets.
fn keep(kept: &mut Vec<UdpSocket>, server: SocketAddr, own: Ipv4Addr, count: usize) -> Outcome {
    while kept.len() < count {
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect(server)?;
        kept.push(socket);
    }
    Ok(())
}

/// The local address of a process with live sockets.
fn own_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, u8::try_from(number + 1).unwrap_or(u8::MAX))
}

/// A process that works.
struct Worker {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(program: &Path, server: SocketAddr, own: Ipv4Addr, group: &Path) -> Outcome<Self> {
        let mut process = Command::new(program)
            .args(["work", &server.to_string(), &own.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        fs::write(group.join("cgroup.procs"), process.id().to_string())?;
        Ok(Self {
            orders: process.stdin.take().ok_or("no standard input")?,
            answers: BufReader::new(process.stdout.take().ok_or("no standard output")?),
            process,
        })
    }

    /// The microseconds of each time.
    fn order(&mut self, operation: &str, times: usize) -> Outcome<f64> {
        writeln!(self.orders, "{operation} {times}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Prints all samples as JSON.
fn measure(server: SocketAddr, cgroup: &Path, rounds: usize) -> Outcome {
    if let Err(reason) = Ipsec::probe() {
        eprintln!("skipped: this kernel does not accept the monitor: {reason}");
        println!("[]");
        return Ok(());
    }
    let processes = LIVE[LIVE.len() - 1].div_ceil(OF_PROCESS);
    for number in 0..processes {
        let address = format!("{}/32", own_address(number));
        let added = Command::new("ip")
            .args(["address", "add", &address, "dev", "lo"])
            .status()?;
        if !added.success() {
            return Err(format!("ip address add {address}: {added}").into());
        }
    }
    let own = std::env::current_exe()?;
    fs::create_dir_all("/srv")?;
    fs::copy(&own, GOVERNED)?;
    let [bare, seen] = ["bench-bare", "bench-seen"].map(|name| cgroup.join(name));
    for group in [&bare, &seen] {
        fs::create_dir(group)?;
    }
    let mut ipsec = open(&seen)?;
    ipsec.apply(&policy(server.ip(), 1, 0, false))?;
    let start = |program: &Path, group: &PathBuf| {
        Worker::start(program, server, Ipv4Addr::UNSPECIFIED, group)
    };
    let mut workers = [
        ("bare", start(&own, &bare)?),
        ("other", start(&own, &seen)?),
        ("governed", start(Path::new(GOVERNED), &seen)?),
    ];
    let mut crowd = Vec::new();
    for number in 0..processes {
        let own = own_address(number);
        crowd.push(Worker::start(Path::new(GOVERNED), server, own, &seen)?);
    }
    let mut all = Vec::new();
    for live in LIVE {
        for (number, worker) in crowd.iter_mut().enumerate() {
            let share = live.saturating_sub(number * OF_PROCESS).min(OF_PROCESS);
            worker.order("live", share)?;
        }
        let sockets = ipsec.sockets(0, 1)?;
        if sockets.total < live {
            return Err(format!("{} live sockets of {live}", sockets.total).into());
        }
        let prefix = format!("ipsec/{live}_sockets");
        all.extend(compare(&prefix, &mut workers, rounds)?);
        all.push(repeated(format!("{prefix}/adopt"), || Ok(ipsec.adopt()?))?);
        let list = || Ok(ipsec.sockets(0, 4096)?);
        all.push(repeated(format!("{prefix}/list_page"), list)?);
    }
    drop(crowd);
    for (applications, networks, shared) in POLICIES {
        let name = if shared { "sharing" } else { "applications" };
        let prefix = format!("ipsec/{applications}_{name}");
        let (large, small) = (
            policy(server.ip(), applications, networks, shared),
            policy(server.ip(), 1, 0, false),
        );
        let apply = || Ok(ipsec.apply(&large)?);
        all.push(repeated(format!("{prefix}/apply"), apply)?);
        ipsec.apply(&small)?;
        // From nothing: all entries of the SPD are new.
        all.push(repeated(format!("{prefix}/apply_change"), || {
            ipsec.apply(&large)?;
            Ok(ipsec.apply(&small)?)
        })?);
        ipsec.apply(&large)?;
        all.extend(compare(&prefix, &mut workers, rounds)?);
    }
    all.extend(held(&mut ipsec)?);
    ipsec.close()?;
    println!("{}", serde_json::to_string(&all)?);
    Ok(())
}

/// Measures how long it takes to hold one more peer and to announce new SAs, with each number of peers
/// that are held already.
fn held(ipsec: &mut Ipsec) -> Outcome<Vec<Samples>> {
    const CLASS: Class = Class::new(Kind::Encryption, Profile::Standard);
    let peer = |number: u32| IpAddr::from(Ipv4Addr::from(0x1e00_0000 + number));
    let tables = policy(peer(0), 1, 0, false);
    ipsec.apply(&tables)?;
    let mut all = Vec::new();
    for number in HELD {
        let prefix = format!("ipsec/{number}_held");
        let begun = Instant::now();
        ipsec.hold_all((1..number).map(|number| (CLASS, peer(number))))?;
        all.push(Samples {
            name: format!("{prefix}/hold_all"),
            samples: vec![begun.elapsed().as_secs_f64() * 1e6],
        });
        all.push(repeated(format!("{prefix}/hold_and_let_go"), || {
            ipsec.hold(CLASS, peer(number))?;
            Ok(ipsec.let_go(CLASS, peer(number))?)
        })?);
        all.push(repeated(format!("{prefix}/announce"), || {
            Ok(ipsec.announce_sa(CLASS, peer(number - 1))?)
        })?);
        let put_back = || Ok(ipsec.put_back()?);
        all.push(repeated(format!("{prefix}/put_back"), put_back)?);
        let apply = || Ok(ipsec.apply(&tables)?);
        all.push(repeated(format!("{prefix}/apply"), apply)?);
    }
    let begun = Instant::now();
    ipsec.retain_held(|_, _| false)?;
    all.push(Samples {
        name: "ipsec/let_go_of_all".into(),
        samples: vec![begun.elapsed().as_secs_f64() * 1e6],
    });
    Ok(all)
}

fn open(cgroup: &Path) -> Outcome<Ipsec> {
    Ok(Ipsec::open(&Settings {
        cgroup: cgroup.into(),
        pins: None,
        // Room for a signature of each application.
        mask: MarkMask::new(0xffff_f000).ok_or("one run of bits")?,
        lsm: std::env::var_os("USHER_VM").is_some(),
        daemons: "/proc/self/exe".into(),
        sysctls: None,
    })?)
}

/// Makes the workers do everything by turns, each time beginning with another one.
fn compare(
    prefix: &str,
    workers: &mut [(&'static str, Worker); 3],
    rounds: usize,
) -> Outcome<Vec<Samples>> {
    let mut all = Vec::new();
    for (operation, times) in OPERATIONS {
        let mut found = [const { Vec::new() }; 3];
        // The first round warms what there is.
        for round in 0..=rounds {
            for turn in 0..workers.len() {
                let number = (round + turn) % workers.len();
                let taken = workers[number].1.order(operation, times)?;
                if round > 0 {
                    found[number].push(taken);
                }
            }
        }
        let work = found[2]
            .iter()
            .zip(&found[0])
            .map(|(governed, bare)| governed - bare);
        all.push(Samples {
            name: format!("{prefix}/{operation}/work"),
            samples: work.collect(),
        });
        for ((name, _), samples) in workers.iter().zip(found) {
            all.push(Samples {
                name: format!("{prefix}/{operation}/{name}"),
                samples,
            });
        }
    }
    Ok(all)
}

fn repeated<T>(name: String, mut act: impl FnMut() -> Outcome<T>) -> Outcome<Samples> {
    let mut samples = Vec::new();
    for _ in 0..TIMES {
        let begun = Instant::now();
        act()?;
        samples.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Samples { name, samples })
}

/// The server is trusted for the governed program, or for all (`shared`), and everybody else is not.
/// Each application has its share of the networks for itself.
fn policy(server: IpAddr, applications: u32, networks: u32, shared: bool) -> Tables {
    let everybody: [IpNet; 2] = [
        IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
        IpNet::new_assert(std::net::Ipv6Addr::UNSPECIFIED.into(), 0),
    ];
    let mut tables = Tables {
        classes: vec![(
            Class::new(Kind::Encryption, Profile::Standard),
            Level::Optional,
        )],
        item_lists: vec![vec![Item {
            local_port: None,
            remote_port: None,
            class: 0,
        }]],
        ..Tables::default()
    };
    for number in 0..applications {
        let mut own = everybody.map(|all| (all, Treatment::Discard)).to_vec();
        if shared || number == 0 {
            own.push((server.into(), Treatment::Bypass));
        }
        let share = networks * number / applications..networks * (number + 1) / applications;
        own.extend(share.map(|index| {
            let address = Ipv4Addr::from(0x1400_0000 + (index << 8));
            (IpNet::new_assert(address.into(), 24), Treatment::Items(0))
        }));
        own.sort();
        let program = match number {
            0 => GOVERNED.to_owned(),
            number => format!("/no/program{number}"),
        };
        tables.applications.push(Rules {
            programs: vec![ProgramName::Path(program)],
            signature: u16::try_from(number + 1).unwrap_or(u16::MAX),
            networks: own,
        });
    }
    tables
}
