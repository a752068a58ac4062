//! The lab's cgroups: one folder per lab, below it one per host, below that one per command.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Attempt, LabError};

const PREFIX: &str = "usher-lab-";

/// The time that killed processes may take to exit.
const PATIENCE: Duration = Duration::from_secs(10);

/// The mount point of cgroup v2: `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` on hybrid machines.
pub(crate) fn mount() -> Result<PathBuf, LabError> {
    let mounts = fs::read_to_string("/proc/self/mounts")
        .attempt(|| "cannot read /proc/self/mounts".into())?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (_, folder, kind) = (words.next()?, words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(folder))
        })
        .next()
        .ok_or(LabError::NoCgroup)
}

/// The group of a lab's `nsenter` processes; no host can have this name.
pub(crate) fn entering(lab: &Path) -> PathBuf {
    lab.join("_entering")
}

/// Makes this lab's folder: `usher-lab-<pid>-<n>`.
pub(crate) fn create_lab() -> Result<PathBuf, LabError> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mount = mount()?;
    let path = mount.join(format!("{PREFIX}{}-{count}", std::process::id()));
    hand_down(&mount)?;
    create(&path)?;
    hand_down(&path)?;
    create(&entering(&path))?;
    Ok(path)
}

/// The controllers by which Usher limits users.
const CONTROLLERS: [&str; 3] = ["pids", "memory", "cpu"];

/// Lets the groups below limit their processes, by the controllers that this hierarchy has.
pub(crate) fn hand_down(path: &Path) -> Result<(), LabError> {
    let hand_down = || {
        let words = |file: &str| fs::read_to_string(path.join(file));
        let (present, handed_down) = (
            words("cgroup.controllers")?,
            words("cgroup.subtree_control")?,
        );
        let has = |text: &str, name: &str| text.split_whitespace().any(|word| word == name);
        for name in CONTROLLERS {
            if has(&present, name) && !has(&handed_down, name) {
                fs::write(path.join("cgroup.subtree_control"), format!("+{name}"))?;
            }
        }
        Ok::<_, io::Error>(())
    };
    hand_down().attempt(|| format!("cannot hand a controller down from {}", path.display()))
}

/// Makes a group.
pub(crate) fn create(path: &Path) -> Result<(), LabError> {
    fs::create_dir(path).attempt(|| format!("cannot make the cgroup {}", path.display()))
}

/// Moves a process into the group; none that has ended and was not waited for.
pub(crate) fn enter(path: &Path, process: u32) -> Result<(), LabError> {
    match fs::write(path.join("cgroup.procs"), process.to_string()) {
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(()),
        result => result.attempt(|| format!("cannot enter the cgroup {}", path.display())),
    }
}

/// Kills every process in the group and below (`cgroup.kill`, Linux 5.14).
pub(crate) fn kill(path: &Path) -> io::Result<()> {
    match fs::write(path.join("cgroup.kill"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => Ok(()),
        result => result,
    }
}

/// Removes an empty group and the groups below it. `EBUSY` while a process lives in it.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Removes a group once all its processes have ended. A killed process leaves its group only when the
/// kernel has torn it down, hence the patience.
pub(crate) fn remove_when_empty(path: &Path) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match remove(path) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && begin.elapsed() < PATIENCE =>
            {
                sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Kills the group's processes and removes the group.
pub(crate) fn kill_and_remove(path: &Path) -> io::Result<()> {
    kill(path)?;
    remove_when_empty(path)
}

/// Removes the folders of labs whose process is gone, if they are empty: a number unknown here may
/// belong to a lab in another PID namespace, which must not be killed.
pub(crate) fn sweep() -> Result<(), LabError> {
    let mount = mount()?;
    let entries = fs::read_dir(&mount).attempt(|| format!("cannot list {}", mount.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(lab_process) else {
            continue;
        };
        if Path::new("/proc").join(pid).exists() {
            continue;
        }
        match remove(&entry.path()) {
            // Not empty: see above. Vanished: another lab swept it at the same time.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            result => {
                result.attempt(|| format!("cannot remove the stale {}", entry.path().display()))?
            }
        }
    }
    Ok(())
}

fn lab_process(name: &str) -> Option<&str> {
    let (pid, count) = name.strip_prefix(PREFIX)?.split_once('-')?;
    (pid.parse::<u32>().is_ok() && count.parse::<u32>().is_ok()).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::lab_process;

    #[test]
    fn a_labs_folder_names_its_process() {
        assert_eq!(lab_process("usher-lab-123-0"), Some("123"));
    }

    #[test]
    fn other_folders_are_not_taken_for_labs() {
        for name in [
            "usher-lab-",
            "usher-lab-12",
            "usher-lab-x-1",
            "system.slice",
            "usher-1-1",
        ] {
            assert_eq!(lab_process(name), None, "{name}");
        }
    }
}
