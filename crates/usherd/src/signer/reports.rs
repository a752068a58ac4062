//! Reads the reports of the ticket programs.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use usher_bpf::Batch;
use usher_daemon::packet_async::register;
use usher_kernel::KernelError;

/// Passes all that `take` returns to `handle`, whenever the descriptor is readable. `what`: the subject of
/// the reports, for the log.
pub async fn each<T>(
    what: &'static str,
    descriptor: Result<OwnedFd, KernelError>,
    take: impl Fn() -> Result<Batch<T>, KernelError>,
    mut handle: impl FnMut(Vec<T>),
) -> io::Result<()> {
    let reports = register(descriptor.map_err(io::Error::other)?, Interest::READABLE)?;
    loop {
        let mut ready = reports.readable().await?;
        ready.clear_ready();
        loop {
            let Batch { entries, more } = match take() {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::error!(%error, "cannot read reports of {what}");
                    break;
                }
            };
            handle(entries);
            if !more {
                break;
            }
            // A user who connects faster than this reads must not delay the requests of others.
            tokio::task::yield_now().await;
        }
    }
}
