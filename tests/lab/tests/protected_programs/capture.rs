//! The packets on the wire of a host, captured and read by Wireshark's programs.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use usher_lab::Host;
use usher_lab::capture::{self, frames};

/// The fields that tshark prints of each packet.
const FIELDS: [&str; 9] = [
    "ip.src",
    "ipv6.src",
    "ip.dst",
    "ipv6.dst",
    "esp.spi",
    "tcp.srcport",
    "tcp.dstport",
    "udp.srcport",
    "udp.dstport",
];

/// Lengths in front of what a packet of ESP with GMAC carries, which is not encrypted.
const ETHERNET: usize = 14;
const ESP_WITH_GMAC: usize = 8 + 8;

/// The `reqid` of the SAs of a class, as docs/adr/0051 has it.
const ENCRYPTION: u32 = 0x7500;
const AUTHENTICATION: u32 = 0x7501;

/// The protection of an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sa {
    Encryption,
    Authentication,
}

/// The ports of a packet, and the flags of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub source: u16,
    pub destination: u16,
    /// None: UDP.
    pub flags: Option<u8>,
}

/// A packet of IPv4 or IPv6.
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The SA of a packet of ESP; none: it was in the clear.
    pub sa: Option<Sa>,
    /// Its payload, also inside ESP.
    pub segment: Option<Segment>,
    /// Everything as it was on the wire.
    pub bytes: Vec<u8>,
}

impl Packet {
    /// Returns whether its payload is readable on the wire and has this text.
    pub fn shows(&self, text: &str) -> bool {
        let text = text.as_bytes();
        self.bytes.windows(text.len()).any(|part| part == text)
    }

    /// The lower of its ports, mostly the server's.
    pub fn port(&self) -> Option<u16> {
        let segment = self.segment?;
        Some(segment.source.min(segment.destination))
    }

    /// Returns whether it belongs to the server at this port.
    pub fn is_at(&self, port: u16) -> bool {
        self.segment
            .is_some_and(|segment| [segment.source, segment.destination].contains(&port))
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.source, self.destination);
        write!(out, "{from} > {to} {:?} {:?}", self.sa, self.segment)
    }
}

/// A capture under way.
pub struct Capture {
    host: Host,
    running: capture::Capture,
    /// If there are two pairs, one ends while programs run.
    sas: Sas,
}

impl Capture {
    /// Captures what comes to a host and leaves it.
    pub fn start(host: &Host) -> Result<Self, Box<dyn Error>> {
        let running = capture::Capture::start(host)?;
        let (host, sas) = (host.clone(), sas(host)?);
        Ok(Self { host, running, sas })
    }

    /// Ends it, when every packet until now is in it: `sender`'s last one as well.
    pub fn end(mut self, sender: &Host) -> Result<Vec<Packet>, Box<dyn Error>> {
        let file = self.running.end(sender)?;
        self.sas.join(sas(&self.host)?);
        read(&self.host, &self.sas, &file)
    }
}

/// Reads the capture with the keys of these SAs.
fn read(host: &Host, sas: &Sas, file: &[u8]) -> Result<Vec<Packet>, Box<dyn Error>> {
    let mut words = vec!["tshark".to_owned(), "-nr".into(), "-".into()];
    words.extend(["-o", "esp.enable_encryption_decode:TRUE"].map(str::to_owned));
    for key in &sas.keys {
        words.extend(["-o".into(), key.clone()]);
    }
    words.extend(["-T", "fields", "-E", "occurrence=f", "-e", "tcp.flags"].map(str::to_owned));
    words.extend(
        FIELDS
            .iter()
            .flat_map(|field| ["-e".into(), (*field).into()]),
    );
    let printed = host.command(words).input(file).succeed()?.stdout;
    let frames = frames(file)?;
    let lines: Vec<&str> = printed.lines().collect();
    if lines.len() != frames.len() {
        return Err(format!("{} packets, {} lines", frames.len(), lines.len()).into());
    }
    let packets = lines.into_iter().zip(frames);
    let packets = packets.filter_map(|(line, frame)| packet(line, frame, &sas.classes).transpose());
    packets.collect()
}

/// One packet; none: of another protocol, or a copy of another packet in an error message.
fn packet(
    line: &str,
    frame: &[u8],
    sas: &HashMap<u32, Sa>,
) -> Result<Option<Packet>, Box<dyn Error>> {
    let mut fields = line.split('\t');
    let mut next = || fields.next().filter(|field| !field.is_empty());
    let flags = next();
    let [
        ipv4_from,
        ipv6_from,
        ipv4_to,
        ipv6_to,
        spi,
        tcp_from,
        tcp_to,
        udp_from,
        udp_to,
    ] = std::array::from_fn(|_| next());
    let (Some(from), Some(to)) = (ipv4_from.or(ipv6_from), ipv4_to.or(ipv6_to)) else {
        return Ok(None);
    };
    let sa = match spi {
        None => None,
        Some(spi) => {
            let spi = hexadecimal(spi)?;
            Some(*sas.get(&spi).ok_or(format!("whose SA is {spi:#x}?"))?)
        }
    };
    let mut segment = match (tcp_from.or(udp_from), tcp_to.or(udp_to)) {
        (Some(from), Some(to)) => Some(Segment {
            source: from.parse()?,
            destination: to.parse()?,
            flags: match flags {
                Some(flags) => Some(u8::try_from(hexadecimal(flags)? & 0xff)?),
                None => None,
            },
        }),
        _ => None,
    };
    let source: IpAddr = from.parse()?;
    if sa == Some(Sa::Authentication) {
        segment = readable_segment(frame, source.is_ipv6());
    }
    Ok(Some(Packet {
        source,
        destination: to.parse()?,
        sa,
        segment,
        bytes: frame.to_vec(),
    }))
}

fn hexadecimal(text: &str) -> Result<u32, std::num::ParseIntError> {
    u32::from_str_radix(text.trim_start_matches("0x"), 16)
}

/// The payload of a packet with GMAC, read without any key. tshark knows no GMAC.
fn readable_segment(frame: &[u8], is_ipv6: bool) -> Option<Segment> {
    let start = ETHERNET + if is_ipv6 { 40 } else { 20 } + ESP_WITH_GMAC;
    // The trailer of ESP: padding, its length, the protocol, 16 bytes of GMAC.
    let protocol = *frame.get(frame.len().checked_sub(17)?)?;
    let port = |at: usize| -> Option<u16> {
        Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?))
    };
    Some(Segment {
        source: port(start)?,
        destination: port(start + 2)?,
        flags: match protocol {
            6 => Some(*frame.get(start + 13)?),
            17 => None,
            _ => return None,
        },
    })
}

/// The SAs of a host.
#[derive(Default)]
struct Sas {
    /// Their classes, by SPI.
    classes: HashMap<u32, Sa>,
    /// The keys of those that encrypt, as tshark wants them.
    keys: BTreeSet<String>,
}

impl Sas {
    fn join(&mut self, other: Self) {
        self.classes.extend(other.classes);
        self.keys.extend(other.keys);
    }
}

fn sas(host: &Host) -> Result<Sas, Box<dyn Error>> {
    let listed = host.run(["ip", "xfrm", "state"])?.stdout;
    let mut sas = Sas::default();
    for state in format!("\n{listed}").split("\nsrc ").skip(1) {
        let words: Vec<&str> = state.split_whitespace().collect();
        let behind = |word: &str, places: usize| {
            let at = words.iter().position(|found| *found == word)?;
            words.get(at + places).copied()
        };
        let (Some(spi), Some(reqid)) = (behind("spi", 1), behind("reqid", 1)) else {
            return Err(format!("cannot read the state {state}").into());
        };
        // The kernel has asked for this SA and not got it yet.
        let Some(key) = behind("aead", 2) else {
            continue;
        };
        let class = match reqid.parse()? {
            ENCRYPTION => Sa::Encryption,
            AUTHENTICATION => Sa::Authentication,
            other => return Err(format!("whose reqid is {other}?").into()),
        };
        sas.classes.insert(hexadecimal(spi)?, class);
        if class == Sa::Encryption {
            let family = if words[0].contains(':') {
                "IPv6"
            } else {
                "IPv4"
            };
            sas.keys.insert(format!(
                "uat:esp_sa:\"{family}\",\"*\",\"*\",\"{spi}\",\"AES-GCM with 16 octet ICV \
                 [RFC4106]\",\"{key}\",\"NULL\",\"\""
            ));
        }
    }
    Ok(sas)
}
