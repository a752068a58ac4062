//! A starter for one worker: a separate process, like the keeper's. It ends when the worker has
//! executed its program. From then on the worker is the test's child.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use usher_daemon::role::HasRole;
use usher_kernel::cgroup::Group;
use usher_kernel::worker::{
    Command, Entry, Event, Input, Prepared, Progress, REPORT_SIZE, Report, SpawnError, Starter,
};
use usher_local::roles;

/// A worker.
#[derive(Debug)]
pub struct Worker {
    pub pid: u32,
    pub pidfd: OwnedFd,
}

/// The worker's exit status, or the negated number of the signal that killed it.
pub fn wait(worker: &Worker) -> i32 {
    let status = waitid(WaitId::PidFd(worker.pidfd.as_fd()), WaitIdOptions::EXITED)
        .unwrap()
        .unwrap();
    status
        .exit_status()
        .unwrap_or_else(|| -status.terminating_signal().unwrap())
}

/// Starts a worker as the keeper does: made in its group or, if that kills it, entering it.
pub fn spawn(command: &Command, input: Input<'_>, group: &Group) -> Result<Worker, SpawnError> {
    match attempt(command, input, group) {
        Err(SpawnError::Killed) => {
            group.note_killed_newborn();
            attempt(command, input, group)
        }
        outcome => outcome,
    }
}

fn attempt(command: &Command, input: Input<'_>, group: &Group) -> Result<Worker, SpawnError> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let directory = group.directory().unwrap();
    let (mut outcome, mut telling) = io::pipe().unwrap();
    // SAFETY: the child has a copy of this thread only. It makes a worker, which allocates; the C
    // library's allocator works after a fork. It unwinds nothing of the test.
    let starter = unsafe { libc::fork() };
    assert!(starter >= 0);
    if starter == 0 {
        let report = make(command, input, directory.as_fd(), group.entry());
        telling.write_all(&report.encode()).unwrap();
        // SAFETY: ends the process without running anything of the test.
        unsafe { libc::_exit(0) }
    }
    drop(telling);
    let mut report = [0; REPORT_SIZE];
    outcome.read_exact(&mut report).unwrap();
    // The starter holds the other end of the pipe.
    let _ = outcome.read(&mut [0]).unwrap();
    waitid(
        WaitId::Pid(Pid::from_raw(starter).unwrap()),
        WaitIdOptions::EXITED,
    )
    .unwrap();
    let report = Report::decode(&report).unwrap();
    let worker = || {
        let pid = Pid::from_raw(report.pid.cast_signed()).unwrap();
        Worker {
            pid: report.pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty()).unwrap(),
        }
    };
    let error = match report.event {
        Event::Begun(_) => return Ok(worker()),
        Event::NotMade(errno) => {
            return Err(SpawnError::Parent(io::Error::from_raw_os_error(errno)));
        }
        Event::Stillborn => SpawnError::Killed,
        Event::Failed(stage, errno) => SpawnError::failed(stage, errno),
        event => panic!("{event:?}"),
    };
    // The starter has left the worker to this process.
    wait(&worker());
    Err(error)
}

fn make(
    command: &Command,
    input: Input<'_>,
    group: rustix::fd::BorrowedFd<'_>,
    entry: Entry,
) -> Report {
    let starter = Starter::prepare(roles::Starter::ROLE.capabilities).unwrap();
    let event = |pid, event| Report {
        number: 0,
        pid,
        event,
    };
    let prepared = Prepared::new(command, matches!(input, Input::AcceptOne(_)));
    let made = prepared.and_then(|prepared| starter.make(&prepared, input, group, entry));
    let mut newborn = match made {
        Ok(newborn) => newborn,
        Err(error) => {
            eprintln!("{error}");
            return event(0, Event::NotMade(libc::EINVAL));
        }
    };
    loop {
        let mut ready = [PollFd::from_borrowed_fd(newborn.report(), PollFlags::IN)];
        rustix::event::poll(&mut ready, None).unwrap();
        let outcome = match newborn.progress().unwrap() {
            Progress::Made | Progress::Accepted => continue,
            Progress::Executed => Event::Begun(None),
            Progress::Stillborn => Event::Stillborn,
            Progress::Failed(stage, errno) => Event::Failed(stage, errno),
        };
        return event(newborn.pid, outcome);
    }
}
