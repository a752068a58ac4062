//! Reading and writing the basic types: RFC 4251 section 5 integers and strings, short names,
//! addresses.
//!
//! The decoders of `ssh-encoding` are not used here on purpose: their fixed arrays accept a
//! length prefix longer than the array and leave the surplus to the next field, and their vectors
//! allocate what the prefix says before looking whether it is there. Both are wrong for bytes
//! that come from the network.

use crate::DecodeError;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Bytes of an encoded socket address: 16 of address, 2 of port.
pub(crate) const SOCKET_ADDRESS_SIZE: usize = 18;

/// A cursor over untrusted bytes. Never allocates, never reads beyond the end.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Refuses input longer than `limit` before any of it is looked at.
    pub(crate) fn bounded(bytes: &'a [u8], limit: usize) -> Result<Self, DecodeError> {
        if bytes.len() > limit {
            return Err(DecodeError::Oversized);
        }
        Ok(Self::new(bytes))
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// An RFC 4251 `string` of at most `limit` bytes.
    pub(crate) fn string(&mut self, limit: usize) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.u32()?).map_err(|_| DecodeError::Oversized)?;
        if length > limit {
            return Err(DecodeError::Oversized);
        }
        self.take(length)
    }

    /// An RFC 4251 `string` of exactly `N` bytes.
    pub(crate) fn fixed_string<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let length = self.u32()?;
        if usize::try_from(length) != Ok(N) {
            return Err(DecodeError::Malformed { field });
        }
        self.array()
    }

    /// One length byte and that many bytes of a name.
    pub(crate) fn short_name<T: FromStr>(&mut self, field: &'static str) -> Result<T, DecodeError> {
        let length = usize::from(self.u8()?);
        parse_name(self.take(length)?, field)
    }

    /// One length byte and a field of `width` bytes: the name, then zeros.
    pub(crate) fn padded_name<T: FromStr>(
        &mut self,
        width: usize,
        field: &'static str,
    ) -> Result<T, DecodeError> {
        let length = usize::from(self.u8()?);
        let (name, padding) = self
            .take(width)?
            .split_at_checked(length)
            .ok_or(DecodeError::Malformed { field })?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(DecodeError::Malformed { field });
        }
        parse_name(name, field)
    }

    /// 16 bytes of IPv6 or IPv4-mapped address and a port. Neither may be zero: no socket ever
    /// has such an end.
    pub(crate) fn socket_address(
        &mut self,
        field: &'static str,
    ) -> Result<SocketAddr, DecodeError> {
        let address = self.array()?;
        let port = self.u16()?;
        socket_address(address, port).ok_or(DecodeError::Malformed { field })
    }

    /// The rest of a fixed-size record, which must be zero.
    pub(crate) fn zero_padding(self) -> Result<(), DecodeError> {
        if self.rest.iter().any(|&byte| byte != 0) {
            return Err(DecodeError::Malformed { field: "padding" });
        }
        Ok(())
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::TrailingBytes)
        }
    }
}

/// A name from bytes, with every failure told as the field's.
pub(crate) fn parse_name<T: FromStr>(bytes: &[u8], field: &'static str) -> Result<T, DecodeError> {
    let malformed = DecodeError::Malformed { field };
    std::str::from_utf8(bytes)
        .map_err(|_| malformed)?
        .parse()
        .map_err(|_| malformed)
}

/// A canonical socket address, or nothing when the address is unspecified or the port is zero.
pub(crate) fn socket_address(address: [u8; 16], port: u16) -> Option<SocketAddr> {
    let address = Ipv6Addr::from(address).to_canonical();
    (port != 0 && !address.is_unspecified()).then(|| SocketAddr::new(address, port))
}

/// The 16 bytes of an address: IPv6 as it is, IPv4 mapped to `::ffff:0:0/96`.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(crate) fn put_socket_address(out: &mut Vec<u8>, address: SocketAddr) {
    out.extend_from_slice(&address_bytes(address.ip()));
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Writes an RFC 4251 `string`. Bytes beyond 4 GiB could not be announced; they would encode to a
/// length that every decoder refuses.
pub(crate) fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Writes a name of a validated type: these are never longer than 63 bytes.
pub(crate) fn put_short_name(out: &mut Vec<u8>, name: &str) {
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name.as_bytes());
}

/// Writes a name of a validated type into a field of `width` bytes.
pub(crate) fn put_padded_name(out: &mut Vec<u8>, name: &str, width: usize) {
    put_short_name(out, name);
    out.resize(out.len() + width.saturating_sub(name.len()), 0);
}
