//! What a program does with its lab when somebody ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::topology::Remover;

/// Ctrl-C, `kill` and a closed terminal remove the lab, whatever the program is at, and end the program with
/// exit status 128 and the signal's number.
#[derive(Debug)]
pub struct Interruption {
    program: &'static str,
    has_come: Arc<AtomicBool>,
}

impl Interruption {
    /// For the program with this name, with which messages begin.
    #[must_use]
    pub fn of(program: &'static str) -> Self {
        Self {
            program,
            has_come: Arc::default(),
        }
    }

    /// From now on a signal removes the lab.
    ///
    /// # Errors
    /// When the kernel does not block the signals.
    pub fn removes(&self, remover: Remover) -> nix::Result<()> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
            .into_iter()
            .collect();
        // For this thread and those it starts; programs it starts get an empty mask.
        signals.thread_block()?;
        let (program, has_come) = (self.program, Arc::clone(&self.has_come));
        std::thread::spawn(move || {
            let signal = match signals.wait() {
                Ok(signal) => signal,
                Err(error) => return eprintln!("{program}: cannot wait for signals: {error}"),
            };
            has_come.store(true, Ordering::SeqCst);
            match remover.remove() {
                Ok(()) => eprintln!("\n{program}: {signal}: everything removed"),
                Err(error) => eprintln!("\n{program}: {signal}: {error}"),
            }
            std::process::exit(128 + signal as i32);
        });
        Ok(())
    }

    /// Once a signal has come, leaves the end of the program to the thread that removes the lab, which is what
    /// made this one fail.
    pub fn give_way(&self) {
        while self.has_come.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}
