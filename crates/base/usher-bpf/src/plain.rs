//! Structures that programs and user space share.

/// A structure with the same bytes on both sides.
///
/// # Safety
/// Implementors are `repr(C)`, have no padding and accept every bit pattern.
pub unsafe trait Plain: Copy {
    /// The structure's bytes, as the kernel reads them.
    fn bytes(&self) -> &[u8] {
        // SAFETY: a live reference to initialised memory without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The structure at the beginning of these bytes; none if they are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..size_of::<Self>())?;
        // SAFETY: as many bytes as it has, at any address, and every bit pattern is a value.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    /// All zeros.
    #[must_use]
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is a value.
        unsafe { std::mem::zeroed() }
    }
}

/// Declares a structure to be [`Plain`]. It must be `repr(C)`, consist of integers and arrays of
/// them, and have as many bytes as its fields together; `usher-bpf-build` checks this for generated
/// code.
#[macro_export]
macro_rules! plain {
    ($name:ident, $size:literal) => {
        const _: () = assert!(size_of::<$name>() == $size);
        // SAFETY: repr(C), integers and arrays of integers only; the size is the sum of the fields'
        // sizes, so there is no padding.
        unsafe impl $crate::Plain for $name {}
    };
}

// SAFETY: an integer.
unsafe impl Plain for u8 {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: bytes.
unsafe impl<const N: usize> Plain for [u8; N] {}
