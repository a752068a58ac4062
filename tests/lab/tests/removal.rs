//! A lab leaves nothing behind, however it ends.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use usher_lab::{Lab, LabError, eventually};

type Result = std::result::Result<(), Box<dyn Error>>;

const KINDS: [&str; 5] = ["net", "mnt", "pid", "uts", "ipc"];

/// The namespaces of a process, as `net:[4026531840]` and so on.
fn namespaces(pid: u32) -> std::io::Result<BTreeSet<PathBuf>> {
    KINDS
        .iter()
        .map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")))
        .collect()
}

/// A process's namespaces, held so that they are not freed: meanwhile their numbers cannot pass to
/// others, such as another test's lab.
struct Held {
    links: BTreeSet<PathBuf>,
    _files: Vec<fs::File>,
}

fn hold(pid: u32) -> std::io::Result<Held> {
    let files = KINDS
        .iter()
        .map(|kind| fs::File::open(format!("/proc/{pid}/ns/{kind}")))
        .collect::<std::io::Result<_>>()?;
    Ok(Held {
        links: namespaces(pid)?,
        _files: files,
    })
}

/// Processes that live in any of these namespaces.
fn inhabitants(spaces: &Held) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| namespaces(*pid).is_ok_and(|own| !own.is_disjoint(&spaces.links)))
        .collect()
}

#[test]
fn a_dropped_lab_is_gone_when_drop_returns() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    let spaces = hold(host.anchor())?;
    let group = host.cgroup().to_owned();
    let _sleeper = host.spawn(["sleep", "1000"])?;
    // No longer our child, and ignoring every signal that can be ignored.
    host.run(["sh", "-c", "trap '' TERM HUP INT; (setsid sleep 1001 &)"])?;
    assert!(inhabitants(&spaces).len() >= 3 && group.exists());
    drop(lab);
    assert_eq!(inhabitants(&spaces), [0_u32; 0]);
    assert!(!group.exists() && !group.parent().is_some_and(Path::exists));
    assert!(host.run(["true"]).is_err());
    Ok(())
}

#[test]
fn nothing_is_added_after_a_remover_has_removed() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    let spaces = hold(host.anchor())?;
    let remover = lab.remover();
    std::thread::spawn(move || remover.remove())
        .join()
        .expect("no panic")?;
    assert_eq!(inhabitants(&spaces), [0_u32; 0]);
    assert!(matches!(lab.host("two"), Err(LabError::Removed)));
    lab.remover().remove()?;
    Ok(())
}

/// A lab of another process (`examples/lab.rs`).
struct Foreign {
    process: Child,
    anchor: u32,
}

fn foreign_lab() -> std::result::Result<Foreign, Box<dyn Error>> {
    let folder = std::env::current_exe()?;
    let folder = folder.ancestors().nth(2).ok_or("no folder")?;
    let mut process = Command::new(folder.join("examples/lab"))
        .args(["one", "two"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = process.stdout.take().ok_or("no output")?;
    let mut anchor = None;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some(pid) = line
            .strip_prefix("one ")
            .and_then(|_| line.split(' ').nth(6))
        {
            anchor = pid.parse().ok();
        }
        if line == "ready" {
            break;
        }
    }
    let anchor = anchor.ok_or("the lab did not say its anchor")?;
    Ok(Foreign { process, anchor })
}

fn groups_of(pid: u32) -> std::io::Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let folder = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))
        .and_then(|line| line.split(' ').nth(1))
        .unwrap_or_default();
    let prefix = format!("usher-lab-{pid}-");
    Ok(fs::read_dir(folder)?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect())
}

#[test]
fn a_killed_lab_takes_its_hosts_along() -> Result {
    let mut foreign = foreign_lab()?;
    let pid = foreign.process.id();
    let spaces = hold(foreign.anchor)?;
    let sleeper = Command::new("nsenter")
        .args(["--target", &foreign.anchor.to_string(), "--all", "--"])
        .args(["setsid", "sleep", "1000"])
        .spawn();
    let mut sleeper = sleeper?;
    assert_eq!(groups_of(pid)?.len(), 1);

    // While its process lives, another lab leaves it alone.
    drop(Lab::new()?);
    assert_eq!(groups_of(pid)?.len(), 1);
    eventually("the sleeper is in the host", || {
        Ok(inhabitants(&spaces).len() >= 2)
    })?;

    foreign.process.kill()?;
    foreign.process.wait()?;
    sleeper.wait()?;
    // The kernel needs a moment to tear down a killed process.
    eventually("no process outlives a killed lab", || {
        Ok(inhabitants(&spaces).is_empty())
    })?;
    drop(Lab::new()?);
    assert_eq!(groups_of(pid)?, [] as [PathBuf; 0]);
    Ok(())
}
