//! `make demo` shows authentication step by step: two hosts as network namespaces, two users, and
//! the unmodified `imap` program of Debian's dovecot as the whole IMAP server.
//!
//! The demo checks every statement that it prints; the first false one ends it with exit status 1.
//! It removes everything that it made when it ends, on Ctrl-C (exit status 130), and when it is killed.
#![forbid(unsafe_code)]

mod protection;
mod steps;
mod tell;

use std::process::ExitCode;
use std::time::Instant;

use usher_lab::{Interruption, Lab, LabError};

use tell::Teller;

/// Reasons for the demo to end early.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    /// A step failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A claim turned out to be false.
    #[error("not so: {claim}\n{seen}")]
    Untrue {
        /// The claim.
        claim: String,
        /// The observation that contradicts it.
        seen: String,
    },
    /// `usher who --json` printed something other than JSON.
    #[error("usher who --json: {0}")]
    Json(#[from] serde_json::Error),
    /// Signals cannot be handled.
    #[error("signals: {0}")]
    Signals(#[from] nix::Error),
}

fn main() -> ExitCode {
    let interruption = Interruption::of("usher-demo");
    let teller = Teller::new();
    let result = run(&teller, &interruption);
    interruption.give_way();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            teller.failure(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run(teller: &Teller, interruption: &Interruption) -> Result<(), DemoError> {
    let begin = Instant::now();
    let lab = Lab::new()?;
    let remover = lab.remover();
    interruption.removes(remover.clone())?;
    steps::all(teller, lab)?;
    // Dropping the value removed the lab; remove it once more, to see an error.
    remover.remove()?;
    teller.end(begin.elapsed());
    Ok(())
}
