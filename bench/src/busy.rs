//! The processor time of a whole guest that has one processor: the time that the kernel did not spend
//! idle. It includes work that is charged to no process, such as the kernel's work on packets, and
//! leaves out waiting.

use std::error::Error;
use std::fs;
use std::process::Command;
use std::time::Instant;

/// The time stamp counter counts instructions under QEMU's `-icount shift=0`.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Checks that the guest's clock can count instructions, one for each nanosecond.
///
/// # Errors
/// When the kernel uses another clock than the time stamp counter.
pub fn check_clock() -> Result<(), Box<dyn Error>> {
    let source = fs::read_to_string(CLOCK_SOURCE)?;
    if source.trim() != "tsc" {
        return Err(format!("the clock is {} and counts no instructions", source.trim()).into());
    }
    Ok(())
}

/// Loads the processor's instructions for AES, as udev does on a host; a guest has no udev.
///
/// # Errors
/// When the kernel does not have them.
pub fn load_ciphers() -> Result<(), Box<dyn Error>> {
    let status = Command::new("modprobe").arg("aesni_intel").status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("modprobe aesni_intel: {status}").into())
}

/// The beginning of a measurement.
#[derive(Debug)]
pub struct Busy {
    begun: Instant,
    idle: u64,
}

impl Busy {
    /// Begins.
    ///
    /// # Errors
    /// When the kernel does not show its idle time in /proc/timer_list, which only root may read.
    pub fn begin() -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            idle: idle(&fs::read_to_string("/proc/timer_list")?)?,
            begun: Instant::now(),
        })
    }

    /// The nanoseconds since then: of the clock, and of the processor. Where the clock counts
    /// instructions, the latter are instructions.
    ///
    /// # Errors
    /// As [`Busy::begin`].
    pub fn end(&self) -> Result<(f64, f64), Box<dyn Error>> {
        let elapsed = self.begun.elapsed().as_nanos() as f64;
        let idle = idle(&fs::read_to_string("/proc/timer_list")?)?;
        Ok((elapsed, elapsed - idle.saturating_sub(self.idle) as f64))
    }
}

/// The nanoseconds of /proc/timer_list.
fn idle(timers: &str) -> Result<u64, Box<dyn Error>> {
    let mut times = timers.lines().filter_map(|line| {
        let (_, time) = line.split_once(".idle_sleeptime")?;
        time.split_whitespace().rev().nth(1)
    });
    match (times.next(), times.next()) {
        (Some(time), None) => Ok(time.parse()?),
        (None, _) => Err("/proc/timer_list shows no idle time".into()),
        (Some(_), Some(_)) => Err("more than one processor: see tests/vm/run --icount".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::idle;

    const CPU: &str = "  .nohz_mode      : 2\n  .idle_sleeptime : 5190322 nsecs\n";

    #[test]
    fn idle_time_is_that_of_the_only_processor() {
        assert_eq!(idle(CPU).expect("one processor"), 5_190_322);
        assert!(idle(&CPU.repeat(2)).is_err());
        assert!(idle("").is_err());
    }
}
