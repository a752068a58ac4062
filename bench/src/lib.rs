//! Definitions shared by usher-bench and the programs that it runs.
#![forbid(unsafe_code)]

pub mod announced;
pub mod busy;
pub mod crowd;
pub mod exchange;
pub mod sources;
pub mod tls;

use serde::{Deserialize, Serialize};

/// The cost of the ownership programs: the figures of usher-bench-ownership.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ownership {
    /// The release of the guest's kernel.
    pub kernel: String,
    /// Measured before the programs were attached. Both listeners are alike.
    pub without: Vec<Measured>,
    /// Measured afterwards, the same operations in the same order. The received listener has a label.
    pub with: Vec<Measured>,
}

/// One operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The operation's name.
    pub operation: String,
    /// Measured with the measuring process's own listener, or without one.
    pub own: Spread,
    /// Measured alternately, with the received listener. None if the operation uses no socket.
    pub given: Option<Spread>,
}

/// Samples of one measurement, in microseconds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Samples {
    /// The measurement's name.
    pub name: String,
    /// In the order in which they were taken.
    pub samples: Vec<f64>,
}

/// Samples of one measurement in a guest.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The measurement's name.
    pub name: String,
    /// The unit of the samples.
    pub unit: String,
    /// In the order in which they were taken.
    pub samples: Vec<f64>,
}

/// The settings of a server of files by FTP at this port.
pub fn vsftpd_settings(port: u16) -> String {
    format!(
        "listen=YES\nlisten_port={port}\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\n\
         anon_root=/var/lib/ftp\nsecure_chroot_dir=/run/empty\nseccomp_sandbox=NO\n\
         xferlog_enable=NO\n"
    )
}

/// A summary of samples.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the samples are below.
    pub median: f64,
    /// 99 of 100 samples are below.
    pub p99: f64,
    /// The number of samples.
    pub samples: usize,
}

impl Spread {
    /// Summarises samples in any order. Not a number if there are none.
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

    /// These samples, each less by `instructions`.
    pub fn less(self, instructions: f64) -> Self {
        Self {
            median: self.median - instructions,
            p99: self.p99 - instructions,
            samples: self.samples,
        }
    }
}
