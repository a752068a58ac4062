//! Attributes of the calling process, for its security modules (lsm_set_self_attr(2), kernel 6.8).

pub use usher_system_ffi::{LONGEST_ATTRIBUTE, set_self_attribute};
