//! The features of a kernel, as `usherd probe` reports and `usher doctor` shows them.

use serde::{Deserialize, Serialize};

/// One finding.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Probe {
    /// The ability that was tried.
    pub name: String,
    /// Whether it works.
    pub works: bool,
    /// Whether the main job fails without it.
    pub required: bool,
    /// In plain words.
    pub detail: String,
    /// Its purpose.
    pub needed_for: String,
}
