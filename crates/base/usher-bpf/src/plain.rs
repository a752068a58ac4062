//! Structures that programs and user space share.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A structure with the same bytes on both sides: no padding, and every bit pattern is a value. The
/// derives that `usher-bpf-build` generates make sure of both.
pub trait Plain: Copy + FromBytes + IntoBytes + Immutable {
    /// The structure at the beginning of these bytes; none if they are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(value, _)| value)
    }

    /// All zeros.
    #[must_use]
    fn zeroed() -> Self {
        Self::new_zeroed()
    }
}

impl<T: Copy + FromBytes + IntoBytes + Immutable> Plain for T {}
