//! The bits of socket marks that are Usher's, and the request ids of classes.

use std::fmt;

use crate::class::{Class, Level};

/// The mask unless the policy chooses another (`marks`).
const DEFAULT_MASK: u32 = 0xfff0_0000;

/// The request id of the class with the number 0; see [`reqid`].
pub const REQID_BASE: u32 = 0x7500;

/// The bits of a class number.
const CLASS_BITS: u32 = 4;

/// The request id (XFRM reqid) that the SPD's templates and the SAs of a class share, whatever the
/// level that either host demands.
#[must_use]
pub fn reqid(class: Class) -> u32 {
    REQID_BASE + u32::from(class.number())
}

/// The class that has this request id.
#[must_use]
pub fn class_of(reqid: u32) -> Option<Class> {
    let number = usize::try_from(reqid.checked_sub(REQID_BASE)?).ok()?;
    Class::ALL.get(number).copied()
}

/// One run of bits of the socket mark: the lowest four are the class number, the others the
/// signature of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkMask(u32);

impl Default for MarkMask {
    fn default() -> Self {
        Self(DEFAULT_MASK)
    }
}

impl MarkMask {
    /// The mask with these bits. None: they are not one run of at least five.
    #[must_use]
    pub fn new(mask: u32) -> Option<Self> {
        let ones = mask.count_ones();
        let run = mask.checked_shr(mask.trailing_zeros()).unwrap_or(0);
        let is_one_run = ones > CLASS_BITS && run.trailing_ones() == ones;
        is_one_run.then_some(Self(mask))
    }

    /// All of its bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The number of its lowest bit.
    #[must_use]
    pub fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// The bits of the class number.
    #[must_use]
    pub fn class_bits(self) -> u32 {
        ((1 << CLASS_BITS) - 1) << self.shift()
    }

    /// The bits of the signature.
    #[must_use]
    pub fn signature_bits(self) -> u32 {
        self.0 & !self.class_bits()
    }

    /// The mark of a class at a level: that of a connected socket and, at [`Level::Mandatory`], the
    /// one that the inbound SAs of the class set (`set_mark_in`).
    #[must_use]
    pub fn class_mark(self, class: Class, level: Level) -> u32 {
        self.numbered(class.mark(level))
    }

    /// The mark of a class number: bypass, discard, or a class at a level.
    #[must_use]
    pub fn numbered(self, class: u8) -> u32 {
        u32::from(class) << self.shift()
    }

    /// The mark of a signature.
    #[must_use]
    pub fn signed(self, signature: u16) -> u32 {
        u32::from(signature) << (self.shift() + CLASS_BITS)
    }

    /// The signature in a mark; 0: none.
    #[must_use]
    pub fn signature_of(self, mark: u32) -> u16 {
        let number =
            (mark & self.signature_bits()) >> (self.shift() + CLASS_BITS).min(u32::BITS - 1);
        u16::try_from(number).unwrap_or(0)
    }

    /// The number of signatures that it holds, 0 not counted.
    #[must_use]
    pub fn signatures(self) -> u16 {
        let bits = (self.0.count_ones() - CLASS_BITS).min(u16::BITS);
        u16::try_from((1_u32 << bits) - 1).unwrap_or(u16::MAX)
    }
}

impl fmt::Display for MarkMask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#010x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{Kind, Profile};

    #[test]
    fn a_mask_is_one_run_of_at_least_five_bits() {
        for mask in [0, 0xf, 0xf0f0_0000, 0xf000_0000, 0x8000_0001] {
            assert!(MarkMask::new(mask).is_none(), "{mask:#x}");
        }
        for (mask, signatures) in [
            (0x1f, 1),
            (0xfff0_0000, 255),
            (0xffff_0000, 4095),
            (u32::MAX, u16::MAX),
        ] {
            assert_eq!(MarkMask::new(mask).unwrap().signatures(), signatures);
        }
    }

    #[test]
    fn class_and_signature_share_no_bit() {
        let mask = MarkMask::default();
        let class = Class::new(Kind::Authentication, Profile::Strong);
        assert_eq!(mask.class_mark(class, Level::Optional), 0x00a0_0000);
        assert_eq!(mask.signed(255), 0xff00_0000);
        assert_eq!(mask.class_bits() | mask.signature_bits(), mask.bits());
        assert_eq!(reqid(class), 0x7503);
        for class in Class::ALL {
            assert_eq!(class_of(reqid(class)), Some(class));
        }
        let behind = REQID_BASE + u32::try_from(Class::ALL.len()).unwrap();
        assert_eq!((class_of(REQID_BASE - 1), class_of(behind)), (None, None));
    }
}
