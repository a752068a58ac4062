//! The service manager's watchdog (`WatchdogSec=` of a unit, systemd.service(5)): it restarts a daemon that
//! hangs. Work that the daemon cannot interrupt has a limit of its own.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

/// Tells the service manager that the daemon is alive, for ever, four times within the time after which a
/// silent daemon is taken for dead. Run this beside the daemon's work, in the same loop. Does nothing without
/// a watchdog.
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

/// The time limit of one piece of work that cannot be interrupted: the kernel checks a large object for most
/// of a minute in an emulated machine with others beside it.
const WORK: Duration = Duration::from_secs(240);

/// Tells the service manager that a long piece of work begins: it may take four minutes, whatever limits the
/// unit has for the start (`TimeoutStartSec=`) and for signs of life. Call this before each piece, so that
/// only progress extends the time.
pub fn long_work_begins() {
    allow(WORK, WORK);
}

/// Tells the service manager that the work is over: the limits are the unit's again, from now on.
pub fn long_work_ends() {
    if let Some(limit) = sd_notify::watchdog_enabled() {
        allow(WORK, limit);
    }
}

fn allow(start: Duration, sign_of_life: Duration) {
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let mut states = vec![NotifyState::ExtendTimeoutUsec(micros(start))];
    if sd_notify::watchdog_enabled().is_some() {
        states.push(NotifyState::WatchdogUsec(micros(sign_of_life)));
        states.push(NotifyState::Watchdog);
    }
    if let Err(error) = sd_notify::notify(&states) {
        tracing::warn!(%error, "cannot tell the service manager that the daemon is at work");
    }
}
