//! What a kernel can do, as `usherd probe` tells it and `usher doctor` shows it.

use serde::{Deserialize, Serialize};

/// One finding.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Probe {
    /// What was tried.
    pub name: String,
    /// Whether it works.
    pub works: bool,
    /// Whether the main job fails without it.
    pub required: bool,
    /// In plain words.
    pub detail: String,
    /// What it is for.
    pub needed_for: String,
}
