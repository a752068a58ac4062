//! The lists of `programs` of a configuration that the signer has taken without a request. No command waits
//! that could report a failure, so the signer tries to set the lists until it succeeds, and reports why they
//! are not in force.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ProgramsError;

/// The time after which the lists are set again.
const AGAIN: Duration = Duration::from_secs(30);

/// Whether the lists in force are those of the configuration in force.
#[derive(Default)]
pub struct Relisting {
    asked: Notify,
    /// The reason that they are not those of the configuration.
    failed: Mutex<Option<String>>,
}

impl Relisting {
    /// Asks for the lists of the configuration in force.
    pub fn ask(&self) {
        self.asked.notify_one();
    }

    /// Notes that a request has set the lists.
    pub fn done(&self) {
        *self.failed.lock() = None;
    }

    /// Sets the lists whenever that is asked for, and every 30 seconds until it succeeds.
    pub async fn keep(&self, set: impl AsyncFn() -> Result<(), ProgramsError>) {
        loop {
            let has_failed = self.failed.lock().is_some();
            tokio::select! {
                () = self.asked.notified() => {}
                () = tokio::time::sleep(AGAIN), if has_failed => {
                    // A request may have set the lists meanwhile.
                    if self.failed.lock().is_none() {
                        continue;
                    }
                }
            }
            match set().await {
                Ok(()) => self.done(),
                Err(error) => self.note(error.to_string()),
            }
        }
    }

    /// The reason that the lists in force are not those of the configuration, for people.
    pub fn trouble(&self) -> Option<String> {
        let failed = self.failed.lock();
        failed.as_ref().map(|reason| {
            format!(
                "the lists of `programs` in force are those of the former configuration, so programs that \
                 only they have still authenticate by tokens, and those that only the new ones have are refused: \
                 {reason}; tried again every 30 seconds"
            )
        })
    }

    /// Notes a failure, and logs it unless it is the same as the last one.
    fn note(&self, reason: String) {
        let mut failed = self.failed.lock();
        if failed.as_ref() != Some(&reason) {
            tracing::error!(%reason, "cannot set the lists of programs: they are those of the former \
                configuration");
        }
        *failed = Some(reason);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lists_are_set_again_until_that_succeeds() {
        let relisting = Relisting::default();
        let (tried, fails) = (Cell::new(0), Cell::new(true));
        let keeping = relisting.keep(async || {
            tried.set(tried.get() + 1);
            if fails.get() {
                Err(ProgramsError::NoNumbers)
            } else {
                Ok(())
            }
        });
        let tests = async {
            let pass = |time| tokio::time::sleep(time);
            let after = Duration::from_millis(1);
            pass(AGAIN + after).await;
            assert_eq!(tried.get(), 0, "nobody has asked");
            relisting.ask();
            pass(after).await;
            assert_eq!(tried.get(), 1);
            let told = relisting.trouble().expect("a trouble");
            assert!(told.contains("restart usher-signer"), "{told}");
            pass(AGAIN + after).await;
            assert_eq!(tried.get(), 2);
            fails.set(false);
            pass(AGAIN + after).await;
            assert_eq!(relisting.trouble(), None);
            pass(AGAIN * 3).await;
            assert_eq!(tried.get(), 3);
        };
        tokio::select! {
            () = keeping => {}
            () = tests => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_configuration_is_not_kept_waiting() {
        let relisting = Relisting::default();
        let tried = Cell::new(0);
        let keeping = relisting.keep(async || {
            tried.set(tried.get() + 1);
            Err(ProgramsError::NoNumbers)
        });
        let tests = async {
            for expected in 1..4 {
                relisting.ask();
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(tried.get(), expected);
            }
            // A request has set the lists.
            relisting.done();
            tokio::time::sleep(AGAIN * 3).await;
            assert_eq!(relisting.trouble(), None);
        };
        tokio::select! {
            () = keeping => {}
            () = tests => {}
        }
    }
}
