//! Class numbers in socket marks that stand for no class of protection.

use usher_protection::{LOWEST_CLASS_MARK, REQID_BASE};

use crate::shared::{CLASS_BYPASS, CLASS_DISCARD, CLASS_LOWEST, REQID};

pub use usher_protection::{MarkMask, class_of, reqid};

/// Packets that no entry of ours changes.
pub(crate) const BYPASS: u8 = CLASS_BYPASS as u8;
/// Packets that are discarded.
pub(crate) const DISCARD: u8 = CLASS_DISCARD as u8;

const _: () = assert!(CLASS_LOWEST == LOWEST_CLASS_MARK as u32 && REQID == REQID_BASE);
