//! One codec for every format: the trait [`Codec`], a reader that never reads beyond its end, and
//! the macros by which a message's fields are written down once.
//!
//! Own code, as the formats have what general crates lack: each length has a limit of its own, which
//! is compared before anything is allocated, and every value has one spelling, which the decoder
//! insists on (docs/adr/0049). `ssh-encoding` reads the same strings, but its fixed arrays accept a
//! length prefix longer than the array and leave the surplus to the next field, and its vectors
//! allocate what the prefix says before looking whether it is there. Both are wrong for bytes that
//! come from the network.

use crate::DecodeError;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// How a value of type `T` is encoded. Most types have one form and are their own codec; [`Text`],
/// [`Bytes`] and others are further forms of types of which a message may hold several kinds.
///
/// `read(put(value))` returns the value, and no other bytes do.
pub trait Codec<T = Self> {
    /// Appends the encoding.
    fn put(value: &T, out: &mut Vec<u8>);

    /// Reads a value and leaves the reader behind it. `field` is its name, for the error.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<T, DecodeError>;
}

/// One of several messages that are told apart by a byte. The byte stands apart from the rest, as
/// some formats have the number of the request between them.
pub trait Message: Sized {
    /// The bytes of this direction.
    const KINDS: &'static [u8];

    /// The byte of this message.
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

/// A cursor over untrusted bytes. Never allocates, never reads beyond the end.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Refuses input longer than `limit` before any of it is looked at.
    ///
    /// # Errors
    /// [`DecodeError::Oversized`].
    pub fn bounded(bytes: &'a [u8], limit: usize) -> Result<Self, DecodeError> {
        if bytes.len() > limit {
            return Err(DecodeError::Oversized);
        }
        Ok(Self::new(bytes))
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    /// The next number of 8 bits, big endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    /// The next number of 16 bits, big endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// The next number of 32 bits, big endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// The next number of 64 bits, big endian.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// An RFC 4251 `string` of at most `limit` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Oversized`], [`DecodeError::Truncated`].
    pub fn string(&mut self, limit: usize) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.u32()?).map_err(|_| DecodeError::Oversized)?;
        if length > limit {
            return Err(DecodeError::Oversized);
        }
        self.take(length)
    }

    /// Reads a byte, which must be `version`.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::UnknownVersion`].
    pub fn version(&mut self, version: u8) -> Result<(), DecodeError> {
        if self.u8()? == version {
            Ok(())
        } else {
            Err(DecodeError::UnknownVersion)
        }
    }

    /// The rest of a fixed-size record, which must be zero.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`].
    pub fn zero_padding(self) -> Result<(), DecodeError> {
        if self.rest.iter().any(|&byte| byte != 0) {
            return Err(DecodeError::Malformed { field: "padding" });
        }
        Ok(())
    }

    /// Number of bytes that have not been read.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Whether all bytes have been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Refuses bytes that have not been read.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`].
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::TrailingBytes)
        }
    }
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

/// 1 and the value, or 0.
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

/// Four bytes of count, and the entries in the form `F`. Nothing is allocated by the count.
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
        // Each entry takes a byte at least, so a count that is a lie ends soon.
        (0..reader.u32()?).map(|_| F::read(reader, field)).collect()
    }
}

/// At the end of a message: the value, or the end.
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

/// 16 bytes of IPv6 or IPv4-mapped address and a port. Neither may be zero: no socket ever has such
/// an endpoint.
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

/// An RFC 4251 `string` of at most so many bytes.
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

/// A canonical socket address, or nothing when the address is unspecified or the port is zero.
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

/// Writes an RFC 4251 `string`. Bytes beyond 4 GiB could not be announced; they would encode to a
/// length that every decoder refuses.
pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    u32::put(&u32::try_from(bytes.len()).unwrap_or(u32::MAX), out);
    out.extend_from_slice(bytes);
}

/// Room for the usual message.
pub const USUAL: usize = 256;

/// The kind of the message, and the message.
pub fn encode(message: &impl Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL);
    out.push(message.kind());
    message.put(&mut out);
    out
}

/// A message of at most `limit` bytes, its kind included.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<T: Message>(limit: usize, bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::bounded(bytes, limit)?;
    let kind = reader.u8()?;
    let message = T::read(kind, &mut reader)?;
    reader.finish()?;
    Ok(message)
}

/// A packet: the version, the kind of the message, the message.
pub fn packet(version: u8, message: &impl Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(USUAL);
    out.extend_from_slice(&[version, message.kind()]);
    message.put(&mut out);
    out
}

/// The message of a packet of at most `limit` bytes.
///
/// # Errors
/// [`DecodeError`].
pub fn unpack<T: Message>(version: u8, limit: usize, bytes: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::bounded(bytes, limit)?;
    reader.version(version)?;
    let kind = reader.u8()?;
    let message = T::read(kind, &mut reader)?;
    reader.finish()?;
    Ok(message)
}

/// What is signed: a magic that says what it is to whoever finds it in a log, a version, the value.
pub fn encode_signed<T: Codec>(magic: &[u8], version: u32, value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 * USUAL);
    out.extend_from_slice(magic);
    u32::put(&version, &mut out);
    T::put(value, &mut out);
    out
}

/// The value of signed bytes, of which there are at most `limit`.
///
/// # Errors
/// [`DecodeError`].
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

/// The codec of a field: what stands behind `as`, else its type.
#[doc(hidden)]
#[macro_export]
macro_rules! form {
    ($type:ty) => {
        $type
    };
    ($type:ty, $form:ty) => {
        $form
    };
}

/// Implements [`Codec`] for a structure by its fields in the order of the wire: `name: Type`, or
/// `name: Type as Form`.
#[macro_export]
macro_rules! fields {
    ($name:ident { $($field:ident: $type:ty $(as $form:ty)?),* $(,)? }) => {
        impl $crate::codec::Codec for $name {
            fn put(value: &Self, out: &mut Vec<u8>) {
                $(<$crate::form!($type $(, $form)?) as $crate::codec::Codec<$type>>::put(
                    &value.$field,
                    out,
                );)*
            }

            fn read(
                reader: &mut $crate::codec::Reader<'_>,
                _: &'static str,
            ) -> Result<Self, $crate::DecodeError> {
                Ok(Self {$(
                    $field: <$crate::form!($type $(, $form)?) as $crate::codec::Codec<$type>>
                        ::read(reader, stringify!($field))?,
                )*})
            }
        }
    };
}

/// Declares an enumeration of messages with their kinds, and implements [`Message`] for it. The
/// fields are as in [`fields`]; the one of a tuple has its name before its type, for errors.
#[macro_export]
macro_rules! messages {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $name:ident {$(
            $(#[$variant_meta:meta])*
            $kind:literal => $variant:ident
                $({$(
                    $(#[$field_meta:meta])*
                    $field:ident: $type:ty $(as $form:ty)?
                ),* $(,)?})?
                $(($inner:ident: $inner_type:ty $(as $inner_form:ty)?))?
        ),* $(,)?}
    ) => {
        $(#[$meta])*
        $visibility enum $name {$(
            $(#[$variant_meta])*
            $variant $({$($(#[$field_meta])* $field: $type),*})? $(($inner_type))?
        ),*}

        impl $crate::codec::Message for $name {
            const KINDS: &'static [u8] = &[$($kind),*];

            fn kind(&self) -> u8 {
                match self {$(Self::$variant { .. } => $kind),*}
            }

            fn put(&self, out: &mut Vec<u8>) {
                let _ = &out;
                match self {$(
                    Self::$variant { $($($field),*)? $(0: $inner)? } => {
                        $($(<$crate::form!($type $(, $form)?)
                            as $crate::codec::Codec<$type>>::put($field, out);)*)?
                        $(<$crate::form!($inner_type $(, $inner_form)?)
                            as $crate::codec::Codec<$inner_type>>::put($inner, out);)?
                    }
                )*}
            }

            fn read(
                kind: u8,
                reader: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::DecodeError> {
                let _ = &reader;
                Ok(match kind {
                    $($kind => Self::$variant {
                        $($($field: <$crate::form!($type $(, $form)?)
                            as $crate::codec::Codec<$type>>::read(reader, stringify!($field))?,)*)?
                        $(0: <$crate::form!($inner_type $(, $inner_form)?)
                            as $crate::codec::Codec<$inner_type>>
                            ::read(reader, stringify!($inner))?)?
                    },)*
                    _ => return Err($crate::DecodeError::UnknownType),
                })
            }
        }
    };
}

/// Messages that are packets of their own: a version, a limit in bytes, and their types.
#[macro_export]
macro_rules! packets {
    ($version:expr, $limit:expr, $($name:ident),*) => {$(
        impl $name {
            /// The packet.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                $crate::codec::packet($version, self)
            }

            /// Reads a packet.
            ///
            /// # Errors
            /// [`DecodeError`]($crate::DecodeError).
            pub fn decode(packet: &[u8]) -> Result<Self, $crate::DecodeError> {
                $crate::codec::unpack($version, $limit, packet)
            }
        }
    )*};
}

/// Types that are the bytes they hold.
#[macro_export]
macro_rules! plain_bytes {
    ($name:ident) => {
        impl $crate::codec::Codec for $name {
            fn put(value: &Self, out: &mut Vec<u8>) {
                out.extend_from_slice(&value.0);
            }

            fn read(
                reader: &mut $crate::codec::Reader<'_>,
                _: &'static str,
            ) -> Result<Self, $crate::DecodeError> {
                Ok(Self(reader.array()?))
            }
        }
    };
}

pub use {fields, messages, packets, plain_bytes};
