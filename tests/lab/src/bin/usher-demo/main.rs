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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use usher_lab::{Lab, LabError, Remover};

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
    let interrupted = Arc::new(AtomicBool::new(false));
    let teller = Teller::new();
    let result = run(&teller, &interrupted);
    if interrupted.load(Ordering::SeqCst) {
        // The other thread removes the lab, which made this one fail, and ends the process.
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            teller.failure(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run(teller: &Teller, interrupted: &Arc<AtomicBool>) -> Result<(), DemoError> {
    let begin = Instant::now();
    let lab = Lab::new()?;
    let remover = lab.remover();
    remove_when_interrupted(remover.clone(), Arc::clone(interrupted))?;
    steps::all(teller, lab)?;
    // Dropping the value removed the lab; remove it once more, to see an error.
    remover.remove()?;
    teller.end(begin.elapsed());
    Ok(())
}

/// Ctrl-C, `kill` and a closed terminal remove the lab, whatever step the demo is at.
fn remove_when_interrupted(
    remover: Remover,
    interrupted: Arc<AtomicBool>,
) -> Result<(), DemoError> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    // For this thread and those it starts; programs it starts get an empty mask.
    signals.thread_block()?;
    std::thread::spawn(move || {
        let signal = match signals.wait() {
            Ok(signal) => signal,
            Err(error) => return eprintln!("usher-demo: cannot wait for signals: {error}"),
        };
        interrupted.store(true, Ordering::SeqCst);
        let removed = remover.remove();
        match removed {
            Ok(()) => eprintln!("\nusher-demo: {signal}: everything removed"),
            Err(error) => eprintln!("\nusher-demo: {signal}: {error}"),
        }
        std::process::exit(128 + signal as i32);
    });
    Ok(())
}
