//! The service manager's watchdog (`WatchdogSec=` of a unit, systemd.service(5)): it ends a daemon that
//! hangs, and starts it again.

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

/// Tells the service manager that the daemon is alive, for ever: four times in the time after which
/// it would be taken for dead. Belongs beside the daemon's work, in the same loop. Does nothing
/// without a watchdog.
pub async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut beat = tokio::time::interval(limit / 4);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
            tracing::warn!(%error, "cannot tell the service manager that the daemon is alive");
        }
    }
}
