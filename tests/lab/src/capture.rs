//! Captures of the packets at a host's interface, by Wireshark's dumpcap.

use std::error::Error;
use std::fs;

use crate::{Host, PATIENCE, Running, Signal, eventually};

const FILE: &str = "/run/lab/capture.pcap";

/// The last packet of a capture has it.
const END: &[u8] = b"so the capture ends";

/// Bytes in front of the first packet of a file of libpcap's, and in front of each packet.
const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;

/// A capture under way, one a host at a time.
#[derive(Debug)]
pub struct Capture {
    host: Host,
    running: Running,
}

impl Capture {
    /// Captures what comes to a host and leaves it.
    ///
    /// # Errors
    /// When dumpcap does not run.
    pub fn start(host: &Host) -> Result<Self, Box<dyn Error>> {
        host.run(["rm", "-f", FILE])?;
        let running = host.spawn(["dumpcap", "-q", "-P", "-i", "eth0", "-w", FILE])?;
        // It writes the file after it has opened the interface.
        eventually("the capture begins", || Ok(host.path(FILE).exists()))?;
        let host = host.clone();
        Ok(Self { host, running })
    }

    /// Ends it, when every packet until now is in it: `sender`'s last one as well. Returns a file of
    /// libpcap's.
    ///
    /// # Errors
    /// When the last packet does not come, or dumpcap does not end.
    pub fn end(mut self, sender: &Host) -> Result<Vec<u8>, Box<dyn Error>> {
        let address = format!("UDP:{}:9", self.host.ipv4());
        sender
            .command(["socat", "-u", "-", &address])
            .input(END)
            .succeed()?;
        let file = self.host.path(FILE);
        eventually("the last packet is captured", || {
            let captured = fs::read(&file)?;
            Ok(captured.windows(END.len()).any(|part| part == END))
        })?;
        self.running.kill(Signal::INT)?;
        if self.running.wait(PATIENCE)?.is_none() {
            return Err("dumpcap does not end".into());
        }
        Ok(fs::read(&file)?)
    }
}

/// The packets of a file of libpcap's, with their Ethernet headers.
///
/// # Errors
/// When it is no such file, or cut.
pub fn frames(file: &[u8]) -> Result<Vec<&[u8]>, Box<dyn Error>> {
    let mut frames = Vec::new();
    let mut rest = file.get(FILE_HEADER..).ok_or("no capture")?;
    while !rest.is_empty() {
        let length = rest.get(8..12).ok_or("a cut record")?.try_into()?;
        let end = PACKET_HEADER + usize::try_from(u32::from_le_bytes(length))?;
        frames.push(rest.get(PACKET_HEADER..end).ok_or("a cut packet")?);
        rest = &rest[end..];
    }
    Ok(frames)
}
