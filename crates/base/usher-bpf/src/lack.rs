//! The reason that a kernel cannot do something.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

/// Why this kernel cannot do something, in words: found by trying, for `usher doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack(String);

impl Lack {
    /// The reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl Display for Lack {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<E: Error> From<E> for Lack {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}
