//! One codec for every format: the trait [`Codec`], the [`Reader`], and the macros that write down
//! the fields of a message once.
//!
//! docs/adr/0049 compares this code with crates: here each length has a limit, which is checked
//! before anything is allocated, and the decoder accepts one spelling of each value.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

mod macros;
mod reader;

pub use macros::{fields, messages, packets, plain_bytes};
pub use reader::Reader;

/// How a value of type `T` is encoded. Most types have one form and are their own codec. [`Text`],
/// [`Bytes`] and others are further forms.
///
/// `read(put(value))` returns the value, and no other bytes do.
pub trait Codec<T = Self> {
    /// Appends the encoding.
    fn put(value: &T, out: &mut Vec<u8>);

    /// Reads a value. `field` is its name, for the error.
    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<T, DecodeError>;
}

/// A message, which begins with the byte of its kind. In some formats the number of the request stands
/// between that byte and the rest.
pub trait Message: Sized {
    /// The bytes that distinguish the messages of this direction.
    const KINDS: &'static [u8];

    /// The byte that distinguishes this message.
    fn kind(&self) -> u8;

    /// Appends what follows the byte.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads what follows the byte `kind`.
    ///
    /// # Errors
    /// [`DecodeError`]; [`DecodeError::UnknownType`] for a byte that is not among
    /// [`Self::KINDS`].
    fn read(kind: u8, reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Codec for $integer {
            fn put(value: &Self, out: &mut Vec<u8>) {
                out.extend_from_slice(&value.to_be_bytes());
            }

            fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
                Ok(Self::from_be_bytes(reader.array()?))
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i32);

impl Codec for bool {
    fn put(value: &Self, out: &mut Vec<u8>) {
        out.push((*value).into());
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Malformed { field }),
        }
    }
}

impl<const N: usize> Codec for [u8; N] {
    fn put(value: &Self, out: &mut Vec<u8>) {
        out.extend_from_slice(value);
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
        reader.array()
    }
}

impl<T: Codec> Codec for Box<T> {
    fn put(value: &Self, out: &mut Vec<u8>) {
        T::put(value, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        T::read(reader, field).map(Self::new)
    }
}

/// A byte 1 and the value, or a byte 0.
impl<T: Codec> Codec for Option<T> {
    fn put(value: &Self, out: &mut Vec<u8>) {
        bool::put(&value.is_some(), out);
        Rest::put(value, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let is_some = bool::read(reader, field)?;
        is_some.then(|| T::read(reader, field)).transpose()
    }
}

/// A count of four bytes, then the entries in the form `F`. The count alone allocates nothing.
#[derive(Debug)]
pub struct List<F>(PhantomData<F>);

impl<T, F: Codec<T>> Codec<Vec<T>> for List<F> {
    fn put(value: &Vec<T>, out: &mut Vec<u8>) {
        u32::put(&u32::try_from(value.len()).unwrap_or(u32::MAX), out);
        for entry in value {
            F::put(entry, out);
        }
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Vec<T>, DecodeError> {
        // Each entry takes at least a byte, so a false count soon runs out of input.
        (0..reader.u32()?).map(|_| F::read(reader, field)).collect()
    }
}

/// An optional value at the end of a message: the value, or no bytes.
#[derive(Debug)]
pub struct Rest;

impl<T: Codec> Codec<Option<T>> for Rest {
    fn put(value: &Option<T>, out: &mut Vec<u8>) {
        if let Some(value) = value {
            T::put(value, out);
        }
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<T>, DecodeError> {
        let is_some = !reader.is_empty();
        is_some.then(|| T::read(reader, field)).transpose()
    }
}

/// 16 bytes of IPv6 or IPv4-mapped address and a port. Neither may be zero, because no socket has
/// such an endpoint.
impl Codec for SocketAddr {
    fn put(value: &Self, out: &mut Vec<u8>) {
        out.extend_from_slice(&address_bytes(value.ip()));
        u16::put(&value.port(), out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let (address, port) = (reader.array()?, reader.u16()?);
        socket_address(address, port).ok_or(DecodeError::Malformed { field })
    }
}

/// An RFC 4251 `string` of at most `LIMIT` bytes.
#[derive(Debug)]
pub struct Bytes<const LIMIT: usize>;

impl<const LIMIT: usize> Codec<Vec<u8>> for Bytes<LIMIT> {
    fn put(value: &Vec<u8>, out: &mut Vec<u8>) {
        put_string(out, value);
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<Vec<u8>, DecodeError> {
        Ok(reader.string(LIMIT)?.to_vec())
    }
}

/// A name, or bytes of a fixed number, as an RFC 4251 `string`.
#[derive(Debug)]
pub struct Text;

impl<const N: usize> Codec<[u8; N]> for Text {
    fn put(value: &[u8; N], out: &mut Vec<u8>) {
        put_string(out, value);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<[u8; N], DecodeError> {
        if usize::try_from(reader.u32()?) != Ok(N) {
            return Err(DecodeError::Malformed { field });
        }
        reader.array()
    }
}

/// A canonical socket address; none when the address is unspecified or the port is zero.
pub fn socket_address(address: [u8; 16], port: u16) -> Option<SocketAddr> {
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

/// Writes an RFC 4251 `string`. A length above 4 GiB has no encoding: `u32::MAX` is written instead, which
/// every decoder refuses.
pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    u32::put(&u32::try_from(bytes.len()).unwrap_or(u32::MAX), out);
    out.extend_from_slice(bytes);
}

/// Bytes that suffice for most messages.
pub const USUAL: usize = 256;

/// Encodes a message behind the byte of its kind.
pub fn encode(message: &impl Message) -> Vec<u8> {
    put_message(&[], message)
}

/// A packet: the version, the kind of the message, the message.
pub fn packet(version: u8, message: &impl Message) -> Vec<u8> {
    put_message(&[version], message)
}

fn put_message(head: &[u8], message: &impl Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL);
    out.extend_from_slice(head);
    out.push(message.kind());
    message.put(&mut out);
    out
}

/// Decodes a message of at most `limit` bytes, including the byte of its kind.
pub fn decode<T: Message>(limit: usize, bytes: &[u8]) -> Result<T, DecodeError> {
    read_message(Reader::bounded(bytes, limit)?)
}

/// Decodes the message of a packet of at most `limit` bytes.
pub fn unpack<T: Message>(version: u8, limit: usize, bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::bounded(bytes, limit)?;
    reader.version(version)?;
    read_message(reader)
}

fn read_message<T: Message>(mut reader: Reader<'_>) -> Result<T, DecodeError> {
    let kind = reader.u8()?;
    let message = T::read(kind, &mut reader)?;
    reader.finish()?;
    Ok(message)
}

/// Bytes to be signed: a magic that names their purpose to readers of a log, a version, the value.
pub fn encode_signed<T: Codec>(magic: &[u8], version: u32, value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * USUAL);
    out.extend_from_slice(magic);
    u32::put(&version, &mut out);
    T::put(value, &mut out);
    out
}

/// Decodes the value of at most `limit` signed bytes.
pub fn decode_signed<T: Codec>(
    magic: &[u8],
    version: u32,
    limit: usize,
    bytes: &[u8],
) -> Result<T, DecodeError> {
    let mut reader = Reader::bounded(bytes, limit)?;
    if reader.take(magic.len())? != magic {
        return Err(DecodeError::Malformed { field: "magic" });
    }
    if reader.u32()? != version {
        return Err(DecodeError::UnknownVersion);
    }
    let value = T::read(&mut reader, "")?;
    reader.finish()?;
    Ok(value)
}

/// A fault of bytes that could not be decoded.
///
/// The error carries no part of the input, so that it can be logged as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the message does.
    #[error("the message ends too early")]
    Truncated,
    /// The message, or a length inside it, is above its limit.
    #[error("the message or one of its fields is longer than its limit")]
    Oversized,
    /// The format's version number is not one this code understands.
    #[error("the message has a version this program does not understand")]
    UnknownVersion,
    /// The message type is not defined in this version, or not in this direction.
    #[error("the message has an unknown type")]
    UnknownType,
    /// A field holds something it must not hold, or holds it in a spelling that is not canonical.
    #[error("the field \"{field}\" of the message is malformed")]
    Malformed {
        /// The field, in the words of `docs/PROTOCOL.md`.
        field: &'static str,
    },
    /// There are bytes after the end of the message.
    #[error("there are bytes after the end of the message")]
    TrailingBytes,
}
