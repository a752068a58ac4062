//! `make demo`: the main job, told as it happens. Two hosts as network namespaces, two users, and
//! the unmodified `imap` program of Debian's dovecot as the whole IMAP server.
//!
//! What it says it has checked: the first thing that is not so ends it with exit status 1. It
//! removes all it made at its end, on Ctrl-C (exit status 130), and when it is killed.
#![forbid(unsafe_code)]

mod steps;
mod tell;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use usher_lab::{Lab, LabError, Remover};

use tell::Teller;

/// Why the demo ends early.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    /// Something could not be done.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// Something is not as it is claimed to be.
    #[error("not so: {claim}\n{seen}")]
    Untrue {
        /// What is claimed.
        claim: String,
        /// What was seen instead.
        seen: String,
    },
    /// `usher who --json` printed what is no JSON.
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
        // The other thread removes the lab, which is why this one failed, and ends the process.
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
    // The value has gone and the lab with it; once more, to see an error.
    remover.remove()?;
    teller.end(begin.elapsed());
    Ok(())
}

/// Ctrl-C, `kill` and a closed terminal remove the lab, wherever the demo is.
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
