//! Measures the cost of a flood for the flooded host, the paper's figure 8, in a guest that has ESP and
//! whose clock counts instructions:
//!
//!     tests/vm/run --kernel 6.12 --icount -- .../usher-bench-flood PACKETS ROUNDS
//!
//! A host floods a server with PACKETS packets of each kind; nothing else uses the guest's only
//! processor:
//!
//!     no_defence     SYNs to a port whose queue is full, without SYN cookies
//!     cookies        SYNs to a port that answers each by a SYN cookie
//!     protected      SYNs in the clear to a port that Usher's policy protects
//!     esp_no_sa, ah_no_sa, esp_forged, ah_forged, esp_replayed, ah_replayed
//!                    packets of a protected connection, recorded and sent again: with the SPI of no SA,
//!                    with a changed byte and a new sequence number, unchanged
//!
//! SYNs come from forged source addresses. The figures leave out the cost of sending, which is measured
//! while the server's interface drops everything. During a further flood of each kind a client of the
//! same port fetches a file several times, each time over a new connection. Prints
//! `usher_bench::Figure`s as JSON.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket,
    sockopt,
};
use usher_bench::busy::{Busy, check_clock, load_ciphers};
use usher_bench::{Figure, vsftpd_settings};
use usher_lab::protected::{World, can_protect, wait_for_listener};
use usher_lab::{Host, PATIENCE, Running};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const HELPER: &str = "usher-bench-flood";
const CURL: &str = "/usr/bin/curl";
const VSFTPD: &str = "/usr/sbin/vsftpd";
/// Copies of the programs that no policy names.
const OTHER_CURL: &str = "/run/curl";
const OTHER_VSFTPD: &str = "/run/vsftpd";

/// The ports of the governed server with ESP and with AH, and of the copy.
const ESP_PORT: u16 = 21;
const AH_PORT: u16 = 2021;
const OTHER_PORT: u16 = 2121;

/// Data connections are encrypted, so AH is for control connections at one port.
const POLICY: &str = "application curl, vsftpd {
  network 10.77.0.0/24 protected Secure;
  network 10.98.0.0/16 protected Secure;
  network 0.0.0.0/0 trusted;
  protection Secure {
    localport=2021 remoteport=any authentication mandatory ah;
    localport=any remoteport=2021 authentication mandatory ah;
    localport=any remoteport=any encryption mandatory;
  }
}
";
/// The network of the forged source addresses.
const INVENTED: [u8; 2] = [10, 98];

/// The number of fetches during a flood, and the time limit of a connection in seconds.
const FETCHES: usize = 10;
const SECONDS: &str = "1";

/// The time limit of a flood.
const LIMIT: Duration = Duration::from_secs(900);
/// More packets than a flood sends during the fetches.
const ENDLESS: u32 = u32::MAX;

const IPV4_HEADER: usize = 20;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["record", protocol] => record(protocol.parse()?),
        ["syns", to, port, count] => flood(&mut Syns::new(to.parse()?, port.parse()?), count),
        ["packets", hexadecimal, count] => flood(&mut Recorded::new(hexadecimal)?, count),
        [packets, rounds] => measure(packets, rounds.parse()?),
        _ => Err(
            "usage: PACKETS ROUNDS | record PROTOCOL | syns TO PORT COUNT | packets HEX COUNT"
                .into(),
        ),
    }
}

/// Prints the first packet of an IP protocol that arrives at this host.
fn record(protocol: u8) -> Outcome {
    let number = u32::from(protocol).try_into()?;
    let raw = socket(
        AddressFamily::INET,
        SocketType::RAW,
        Some(Protocol::from_raw(number)),
    )?;
    println!("ready");
    let mut packet = Vec::with_capacity(1 << 16);
    recv(&raw, spare_capacity(&mut packet), RecvFlags::empty())?;
    println!("recorded {}", Recorded(packet).hexadecimal());
    Ok(())
}

/// The packets of a flood.
trait Packets {
    /// The next packet, with its IP header.
    fn next(&mut self) -> &[u8];
    fn destination(&self) -> Ipv4Addr;
}

/// Sends `count` packets, and prints the processor time in nanoseconds. The system call that sends a
/// packet returns only after the other host has dropped or answered it.
fn flood(packets: &mut impl Packets, count: &str) -> Outcome {
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW))?;
    sockopt::set_socket_send_buffer_size(&raw, 1 << 20)?;
    let to = SocketAddrV4::new(packets.destination(), 0);
    println!("ready");
    let busy = Busy::begin()?;
    for _ in 0..count.parse::<u32>()? {
        sendto(&raw, packets.next(), SendFlags::empty(), &to)?;
    }
    println!("took {}", busy.end()?.1);
    Ok(())
}

/// SYNs from forged source addresses.
struct Syns {
    to: Ipv4Addr,
    port: u16,
    number: u32,
    packet: Vec<u8>,
}

impl Syns {
    fn new(to: Ipv4Addr, port: u16) -> Self {
        let (number, packet) = (0, Vec::new());
        Self {
            to,
            port,
            number,
            packet,
        }
    }
}

impl Packets for Syns {
    fn next(&mut self) -> &[u8] {
        const TCP: u8 = 6;
        self.number = self.number.wrapping_add(1);
        let [_, _, a, b] = self.number.to_be_bytes();
        let from = Ipv4Addr::new(INVENTED[0], INVENTED[1], a, b);
        let source = 1024 + (self.number % 60_000) as u16;
        let mut syn = Vec::with_capacity(20);
        syn.extend(source.to_be_bytes());
        syn.extend(self.port.to_be_bytes());
        syn.extend(self.number.to_be_bytes());
        syn.extend([0, 0, 0, 0, 0x50, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
        let mut summed = Vec::from(from.octets());
        summed.extend(self.to.octets());
        summed.extend([0, TCP, 0, 20]);
        summed.extend(&syn);
        syn[16..18].copy_from_slice(&checksum(&summed).to_be_bytes());
        // The kernel fills in identification and checksum.
        self.packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0];
        self.packet.extend(from.octets());
        self.packet.extend(self.to.octets());
        self.packet.extend(syn);
        &self.packet
    }

    fn destination(&self) -> Ipv4Addr {
        self.to
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2);
    let mut sum: u32 = words
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// One packet, sent repeatedly.
struct Recorded(Vec<u8>);

impl Recorded {
    fn new(hexadecimal: &str) -> Outcome<Self> {
        let digits = hexadecimal.as_bytes().chunks_exact(2);
        let bytes = digits.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?));
        let packet: Vec<u8> = bytes.collect::<Outcome<_>>()?;
        if packet.len() <= IPV4_HEADER {
            return Err("no packet".into());
        }
        Ok(Self(packet))
    }

    fn hexadecimal(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Packets for Recorded {
    fn next(&mut self) -> &[u8] {
        &self.0
    }

    fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.0[16], self.0[17], self.0[18], self.0[19])
    }
}

/// An IPsec protocol.
struct Ipsec {
    name: &'static str,
    number: &'static str,
    /// The port whose control connections it protects.
    port: u16,
    /// The offset of the SPI in a packet; the sequence number follows.
    spi: usize,
}

const ESP: Ipsec = Ipsec {
    name: "esp",
    number: "50",
    port: ESP_PORT,
    spi: IPV4_HEADER,
};
const AH: Ipsec = Ipsec {
    name: "ah",
    number: "51",
    port: AH_PORT,
    spi: IPV4_HEADER + 4,
};

/// A kind of flood.
struct Kind {
    name: String,
    /// The helper's arguments, without the number of packets.
    words: Vec<String>,
    cookies: &'static str,
    /// The client that fetches during the flood, and its port.
    client: &'static str,
    port: u16,
}

fn measure(packets: &str, rounds: usize) -> Outcome {
    if !can_protect() {
        return Err("run it in a guest, by tests/vm/run".into());
    }
    check_clock()?;
    load_ciphers()?;
    let world = World::new()?;
    let mut daemons = world.start_charons()?;
    daemons.extend(world.start_protectors()?);
    world.write_policy("flood", POLICY)?;
    world.apply()?;
    world.wait_for_sas()?;
    let _servers = serve(&world)?;
    let kinds = kinds(&world)?;
    let mut figures = Vec::new();
    let of_sender = cost_of_sending(&world.server, || {
        let costs = kinds.iter().map(|kind| {
            let first = take(&world.intruder, kind, packets);
            first.and_then(|_| take(&world.intruder, kind, packets))
        });
        costs.collect::<Outcome<Vec<f64>>>()
    })?;
    eprintln!("sent: {of_sender:?}");
    for (kind, of_sender) in kinds.iter().zip(of_sender) {
        set_cookies(&world.server, kind)?;
        let mut samples = Vec::new();
        for _ in 0..=rounds {
            samples.push(take(&world.intruder, kind, packets)? - of_sender);
        }
        // The first sample warms up caches and tables.
        samples.remove(0);
        let fetched = fetched_meanwhile(&world, kind)?;
        eprintln!("{}: {samples:?}, {fetched} of {FETCHES} fetched", kind.name);
        for (suffix, unit, samples) in [
            ("/sent", "instructions a packet", vec![of_sender]),
            ("", "instructions a packet", samples),
            (
                "/fetched",
                "% of the connections",
                vec![100.0 * fetched as f64 / FETCHES as f64],
            ),
        ] {
            figures.push(Figure {
                name: format!("ipsec/flood/{}{suffix}", kind.name),
                unit: unit.into(),
                samples,
            });
        }
    }
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// Starts the servers.
fn serve(world: &World) -> Outcome<Vec<Running>> {
    let (server, attacker) = (&world.server, &world.intruder);
    world.laptop.run(["cp", CURL, OTHER_CURL])?;
    server.run(["cp", VSFTPD, OTHER_VSFTPD])?;
    server.run(["mkdir", "-p", "/run/empty", "/var/lib/ftp"])?;
    server.write("/var/lib/ftp/file", "x".repeat(2048))?;
    let mut servers = Vec::new();
    for (program, port) in [
        (VSFTPD, ESP_PORT),
        (VSFTPD, AH_PORT),
        (OTHER_VSFTPD, OTHER_PORT),
    ] {
        let file = format!("/root/vsftpd-{port}.conf");
        server.write(&file, vsftpd_settings(port))?;
        servers.push(server.spawn([program, &file])?);
        wait_for_listener(server, port)?;
    }
    let invented = format!("{}.{}.0.0/16", INVENTED[0], INVENTED[1]);
    let via = attacker.ipv4().to_string();
    server.run(["ip", "route", "add", &invented, "via", &via])?;
    // The attacker ignores answers.
    drop_at_interface(attacker)?;
    Ok(servers)
}

/// Makes a host's interface drop IPv4.
fn drop_at_interface(host: &Host) -> Outcome {
    host.run(["tc", "qdisc", "add", "dev", "eth0", "clsact"])?;
    host.run(
        ["tc", "filter", "add", "dev", "eth0", "ingress"]
            .iter()
            .chain(&["protocol", "ip", "matchall", "action", "drop"]),
    )?;
    Ok(())
}

fn kinds(world: &World) -> Outcome<Vec<Kind>> {
    let server = world.server.ipv4().to_string();
    let syns = |name: &str, cookies, client, port: u16| Kind {
        name: name.into(),
        words: vec!["syns".into(), server.clone(), port.to_string()],
        cookies,
        client,
        port,
    };
    let mut all = vec![
        syns("no_defence", "0", OTHER_CURL, OTHER_PORT),
        syns("cookies", "2", OTHER_CURL, OTHER_PORT),
        syns("protected", "1", CURL, ESP_PORT),
    ];
    for protocol in [ESP, AH] {
        let packet = recorded(world, &protocol)?;
        let changed = |name: &str, change: fn(&mut [u8], usize)| -> Outcome<Kind> {
            let mut packet = Recorded::new(&packet)?;
            change(&mut packet.0, protocol.spi);
            Ok(Kind {
                name: format!("{}_{name}", protocol.name),
                words: vec!["packets".into(), packet.hexadecimal()],
                cookies: "1",
                client: CURL,
                port: protocol.port,
            })
        };
        all.push(changed("no_sa", |packet, spi| packet[spi + 3] ^= 0x55)?);
        all.push(changed("forged", |packet, spi| {
            // A sequence number that the server has not received yet.
            packet[spi + 6] = 0x40;
            if let Some(last) = packet.last_mut() {
                *last ^= 1;
            }
        })?);
        all.push(changed("replayed", |_, _| {})?);
    }
    Ok(all)
}

/// A packet of a protected connection, in hexadecimal.
fn recorded(world: &World, protocol: &Ipsec) -> Outcome<String> {
    let mut recording = world.server.spawn([HELPER, "record", protocol.number])?;
    recording.read_past("ready\n", PATIENCE)?;
    if !fetch(world, CURL, protocol.port)? {
        return Err(format!("no file by {}", protocol.name).into());
    }
    let line = recording.read_past("\n", PATIENCE)?;
    let packet = line.trim().strip_prefix("recorded ").ok_or("no packet")?;
    Ok(packet.to_owned())
}

/// Fetches the file over new connections. Returns whether it arrived.
fn fetch(world: &World, client: &str, port: u16) -> Outcome<bool> {
    let url = format!("ftp://{}:{port}/file", world.server.ipv4());
    let words = [
        client,
        "-sS",
        "--connect-timeout",
        SECONDS,
        "-o",
        "/dev/null",
        &url,
    ];
    let fetched = world.laptop.command(words).run()?;
    Ok(fetched.status.success())
}

fn set_cookies(server: &Host, kind: &Kind) -> Outcome {
    let cookies = format!("net.ipv4.tcp_syncookies={}", kind.cookies);
    server.run(["sysctl", "-q", "-w", &cookies])?;
    Ok(())
}

/// The instructions for a packet of this kind, including the sender's.
fn take(attacker: &Host, kind: &Kind, packets: &str) -> Outcome<f64> {
    let words = [HELPER]
        .into_iter()
        .chain(kind.words.iter().map(String::as_str));
    let flood = attacker.command(words.chain([packets])).limit(LIMIT);
    let output = flood.succeed()?.stdout;
    let taken = output.lines().find_map(|line| line.strip_prefix("took "));
    let taken: f64 = taken.ok_or("no figure")?.parse()?;
    Ok(taken / packets.parse::<f64>()?)
}

/// Measures while the server's interface drops everything: the cost of sending.
fn cost_of_sending<T>(server: &Host, measure: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    drop_at_interface(server)?;
    let cost = measure()?;
    server.run(["tc", "qdisc", "del", "dev", "eth0", "clsact"])?;
    Ok(cost)
}

/// How many fetches succeed during a flood of this kind.
fn fetched_meanwhile(world: &World, kind: &Kind) -> Outcome<usize> {
    let endless = ENDLESS.to_string();
    let words = [HELPER]
        .into_iter()
        .chain(kind.words.iter().map(String::as_str));
    let mut flood = world.intruder.spawn(words.chain([endless.as_str()]))?;
    flood.read_past("ready\n", PATIENCE)?;
    let mut fetched = 0;
    for _ in 0..FETCHES {
        fetched += usize::from(fetch(world, kind.client, kind.port)?);
    }
    if flood.has_ended()? {
        return Err(format!("{}: the flood ended: {}", kind.name, flood.stderr()?).into());
    }
    flood.end()?;
    Ok(fetched)
}
