//! The reader of untrusted bytes.

use crate::DecodeError;

macro_rules! numbers {
    ($($number:ident)*) => {$(
        #[doc = concat!("The next `", stringify!($number), "`, big endian.")]
        ///
        /// # Errors
        /// [`DecodeError::Truncated`].
        pub fn $number(&mut self) -> Result<$number, DecodeError> {
            Ok($number::from_be_bytes(self.array()?))
        }
    )*};
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

    /// Reads `bytes` from their start, if there are at most `limit`.
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
        let split = self.rest.split_at_checked(length);
        let (head, tail) = split.ok_or(DecodeError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let split = self.rest.split_first_chunk::<N>();
        let (head, tail) = split.ok_or(DecodeError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    numbers!(u8 u16 u32 u64);

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
        match self.u8()? {
            found if found == version => Ok(()),
            _ => Err(DecodeError::UnknownVersion),
        }
    }

    /// Refuses a fixed-size record unless its remaining bytes are zero.
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
        match self.rest {
            [] => Ok(()),
            _ => Err(DecodeError::TrailingBytes),
        }
    }
}
