//! The demo runs to its end, and leaves nothing behind wherever it is interrupted.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};
use usher_lab::{Lab, PATIENCE, Signal};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const HEADINGS: [&str; 9] = [
    "Hosts, users, keys, policy, daemons",
    "Each user is served by a process that runs as that user",
    "A user's second connection is taken by that user's queue",
    "A connection without an authenticated user is reset",
    "A user without permission is refused",
    "Unmodified mail programs: curl",
    "Unmodified mail programs: mbsync",
    "A LOGIN is answered on laptop; no password goes anywhere",
    "Protection: the mail crosses the network by IPsec only",
];

fn demo() -> Command {
    Command::new(env!("CARGO_BIN_EXE_usher-demo"))
}

/// cgroups and processes of the labs of process `pid`.
fn left_by(pid: u32) -> Result<Vec<PathBuf>> {
    let mark = format!("/usher-lab-{pid}-");
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let cgroups = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))
        .and_then(|line| line.split(' ').nth(1))
        .ok_or("no cgroup2")?;
    let folders = fs::read_dir(cgroups)?.flatten().map(|entry| entry.path());
    let mut left: Vec<_> = folders
        .filter(|path| path.to_string_lossy().contains(&mark))
        .collect();
    for entry in fs::read_dir("/proc")?.flatten() {
        let group = fs::read_to_string(entry.path().join("cgroup"));
        if group.is_ok_and(|group| group.contains(&mark)) {
            left.push(entry.path());
        }
    }
    Ok(left)
}

/// Runs the demo until it has printed `heading`.
fn demo_until(heading: &str) -> Result<Child> {
    let mut demo = demo()
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = demo.stdout.take().ok_or("no output")?;
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next().transpose()? {
        if line == heading {
            // The rest of the output is not read, which must not stop the demo.
            return Ok(demo);
        }
    }
    Err(format!("the demo ended before {heading:?}: {}", demo.wait()?).into())
}

fn send(process: &Child, signal: Signal) -> Result {
    kill_process(Pid::from_child(process), signal)?;
    Ok(())
}

#[test]
fn the_demo_tells_the_whole_story() -> Result {
    let demo = demo().stdin(Stdio::null()).output()?;
    let told = String::from_utf8(demo.stdout)?;
    let complaint = String::from_utf8_lossy(&demo.stderr).into_owned();
    assert!(demo.status.success(), "{told}\n{complaint}");
    let found: Vec<_> = HEADINGS
        .iter()
        .filter(|heading| !told.contains(*heading))
        .collect();
    assert_eq!(found, [] as [&&str; 0], "{told}");
    let protected = told.contains("packets of ESP, and none of TCP at port 143");
    let lacks = told.contains("this kernel lacks IPsec") && told.contains("make demo KERNEL=");
    assert!(protected != lacks, "shown, or why not: {told}");
    assert!(
        told.trim_end()
            .lines()
            .last()
            .is_some_and(|line| line.contains("removed")),
        "{told}"
    );
    assert!(
        !told.contains('\u{1b}'),
        "colour although this is no terminal"
    );
    assert_eq!(complaint, "");
    Ok(())
}

#[test]
fn an_interrupted_demo_leaves_nothing() -> Result {
    for (heading, signal, code) in [
        (HEADINGS[0], Signal::INT, 130),
        (HEADINGS[1], Signal::TERM, 143),
        (HEADINGS[3], Signal::HUP, 129),
        (HEADINGS[5], Signal::INT, 130),
    ] {
        let mut demo = demo_until(heading)?;
        send(&demo, signal)?;
        assert_eq!(demo.wait()?.code(), Some(code), "in {heading:?}");
        assert_eq!(
            left_at_last(demo.id())?,
            [] as [PathBuf; 0],
            "in {heading:?}"
        );
    }
    Ok(())
}

/// The left-overs of a demo, after the machine has had time to reap killed processes.
fn left_at_last(demo: u32) -> Result<Vec<PathBuf>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = left_by(demo)?;
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_demo_leaves_no_process() -> Result {
    let mut demo = demo_until(HEADINGS[4])?;
    assert!(left_by(demo.id())?.len() > 5, "there is something to leave");
    send(&demo, Signal::KILL)?;
    assert_eq!(demo.wait()?.signal(), Some(9));
    let begin = Instant::now();
    // The next lab removes the empty cgroups.
    loop {
        drop(Lab::new()?);
        let left = left_by(demo.id())?;
        if left.is_empty() {
            return Ok(());
        }
        assert!(begin.elapsed() < PATIENCE, "{left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
