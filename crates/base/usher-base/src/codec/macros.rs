//! The macros that write down the fields of a message once.

/// The codec of a field: the form after `as`, or else its type.
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

/// Implements [`Codec`](crate::codec::Codec) for a structure by its fields in the order of the wire: `name: Type`, or
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

/// Declares an enumeration of messages with their kinds, and implements
/// [`Message`](crate::codec::Message) for it. Fields are written as in
/// [`fields`](crate::codec::fields); the field of a tuple also has a name, for errors.
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

/// Implements `encode` and `decode` for messages that travel as one packet each: their version,
/// their limit in bytes, and their types.
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

/// Declares a type of `N` bytes, and implements [`Codec`](crate::codec::Codec) for it: the bytes as
/// they are, or, as [`Text`](crate::codec::Text), as an RFC 4251 `string`.
#[macro_export]
macro_rules! plain_bytes {
    ($(#[$meta:meta])* pub struct $name:ident([u8; $size:expr]);) => {
        $(#[$meta])*
        pub struct $name([u8; $size]);

        impl $name {
            /// The value with these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; $size]) -> Self {
                Self(bytes)
            }

            /// The bytes of the value.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $size] {
                &self.0
            }
        }

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

        impl $crate::codec::Codec<$name> for $crate::codec::Text {
            fn put(value: &$name, out: &mut Vec<u8>) {
                Self::put(&value.0, out);
            }

            fn read(
                reader: &mut $crate::codec::Reader<'_>,
                field: &'static str,
            ) -> Result<$name, $crate::DecodeError> {
                Self::read(reader, field).map($name)
            }
        }
    };
}

pub use {fields, messages, packets, plain_bytes};
