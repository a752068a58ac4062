//! This host's own addresses of IPv6, which need entries of the SPD that let packets pass.
//!
//! IPv4 is never transformed on the loopback interface. For IPv6 the kernel applies the SPD there as well, so a
//! packet to the host itself would wait for an SA that cannot come.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::FileExt;

/// The kernel's list of the addresses of IPv6 in this network namespace, one a line.
const LIST: &str = "/proc/self/net/if_inet6";

/// The prefix of link-local addresses: programs must name the link with them, and they are seldom used.
const OF_LINK: u16 = 0xfe80;

/// The list, held open: the confined daemon may not open it again.
#[derive(Debug)]
pub(super) struct OwnAddresses(Option<File>);

impl OwnAddresses {
    /// Opens the list. A kernel without IPv6 has none.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn open() -> io::Result<Self> {
        match File::open(LIST) {
            Ok(file) => Ok(Self(Some(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }

    /// The present IPv6 addresses, without link-local ones.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn list(&self) -> io::Result<BTreeSet<Ipv6Addr>> {
        let Some(file) = &self.0 else {
            return Ok(BTreeSet::new());
        };
        let mut text = Vec::new();
        let mut page = [0; 4096];
        loop {
            match file.read_at(&mut page, text.len() as u64)? {
                0 => break,
                count => text.extend_from_slice(&page[..count]),
            }
        }
        let text = String::from_utf8_lossy(&text);
        let addresses = text.lines().filter_map(parse_address);
        Ok(addresses
            .filter(|address| address.segments()[0] != OF_LINK)
            .collect())
    }
}

/// The address of a line: 32 hexadecimal digits, before everything else.
fn parse_address(line: &str) -> Option<Ipv6Addr> {
    let digits = line.get(..32)?;
    Some(u128::from_str_radix(digits, 16).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::{OwnAddresses, parse_address};

    #[test]
    fn a_line_begins_with_its_address() {
        let line = "fd770000000000000000000000000002 02 40 00 80     eth0";
        assert_eq!(
            parse_address(line),
            Some("fd77::2".parse().expect("an address"))
        );
        assert_eq!(parse_address("fd77"), None);
        assert_eq!(
            parse_address("fd77::2 is no address of this form......"),
            None
        );
    }

    #[test]
    fn the_list_is_read_anew_each_time() {
        let own = OwnAddresses::open().expect("the list");
        assert_eq!(own.list().expect("once"), own.list().expect("twice"));
    }
}
