//! What usher-bench and the programs that it runs have in common.
#![forbid(unsafe_code)]

pub mod crowd;
pub mod exchange;
pub mod tls;

use serde::{Deserialize, Serialize};

/// What the ownership programs cost: the figures of usher-bench-ownership.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ownership {
    /// The release of the guest's kernel.
    pub kernel: String,
    /// Before the programs were attached. Both listeners are alike.
    pub without: Vec<Measured>,
    /// Afterwards, the same operations in the same order. The given listener has a label.
    pub with: Vec<Measured>,
}

/// One operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// What was done.
    pub operation: String,
    /// With a listener of the measuring process's own, or without any.
    pub own: Spread,
    /// By turns with it, with the listener that it was given. None where no socket is used.
    pub given: Option<Spread>,
}

/// Samples in short.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the samples are below.
    pub median: f64,
    /// 99 of 100 samples are below.
    pub p99: f64,
    /// How many.
    pub samples: usize,
}

impl Spread {
    /// Of samples, in any order. Not a number when there are none.
    pub fn new(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = (samples.len() as f64 * share) as usize;
            samples
                .get(place.min(samples.len().saturating_sub(1)))
                .copied()
                .unwrap_or(f64::NAN)
        };
        Self {
            median: at(0.5),
            p99: at(0.99),
            samples: samples.len(),
        }
    }

    /// These, each less by `instructions`.
    pub fn less(self, instructions: f64) -> Self {
        Self {
            median: self.median - instructions,
            p99: self.p99 - instructions,
            samples: self.samples,
        }
    }
}
