//! Starting a worker: a process that is its user from its first instruction.
//!
//! The child is made in its cgroup (clone3, `CLONE_INTO_CGROUP`, 5.7 on), becomes the user, takes
//! what it is to serve and executes the program. In style `connection` it is the child, already
//! the user, that accepts: the keeper never holds a connection, so its death drops none.

mod child;
mod files;

use std::ffi::{CString, NulError, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

use crate::cgroup::Group;
use child::{ALIVE, Child, LISTEN_PID, PID_DIGITS};
use files::Confinement;
pub(crate) use files::landlock_version;
pub use files::{FileAccess, confines_files};

/// How long a child may take to execute its program.
pub const BIRTH: Duration = Duration::from_secs(30);

/// What to start, as whom.
#[derive(Debug, Clone)]
pub struct Command {
    /// Absolute path.
    pub program: PathBuf,
    /// Arguments, without the program's own name.
    pub arguments: Vec<String>,
    /// Its whole environment; socket activation adds LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES.
    pub environment: Vec<(String, String)>,
    /// User; never 0.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
    /// Where it starts; `/` when that is missing or closed to the user.
    pub directory: PathBuf,
    /// Name of the descriptor in socket activation.
    pub name: String,
    /// All files and folders that it may touch, with what is below them, besides the program; none:
    /// all that its user may. Those that are not there when it starts are left out.
    pub files: Option<Vec<(PathBuf, FileAccess)>>,
    /// Standard error; none: /dev/null. Not the caller's: what a worker writes there would stand
    /// among the caller's messages as if the caller had written it.
    pub errors: Option<Arc<OwnedFd>>,
}

/// What the worker serves.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// One connection of this listener, accepted by the child, as standard input and output.
    AcceptOne(BorrowedFd<'a>),
    /// The listener itself, as descriptor 3 (sd_listen_fds(3)); standard input and output are
    /// /dev/null.
    Listener(BorrowedFd<'a>),
}

/// A started worker. Its end shows as readability of `pidfd`; the caller reaps it.
#[derive(Debug)]
pub struct Worker {
    /// Process id.
    pub pid: u32,
    /// Refers to exactly this process.
    pub pidfd: OwnedFd,
}

/// Why no worker was started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// A string with a zero byte.
    #[error("the program, an argument or the environment has a zero byte: {0}")]
    Text(#[from] NulError),
    /// [`Command::files`] on a kernel without Landlock.
    #[error(
        "this kernel has no Landlock, or it is not among lsm=...: no process is confined to files"
    )]
    NoLandlock,
    /// Root is never a worker's user.
    #[error("a worker never runs as root")]
    Root,
    /// The keeper could not make the child.
    #[error("making a process: {0}")]
    Parent(io::Error),
    /// The child could not become the worker.
    #[error("{stage} in the new process: {error}")]
    Child {
        /// What failed.
        stage: Stage,
        /// What the kernel says.
        error: io::Error,
    },
    /// It was killed as soon as it was made, twice.
    #[error("the new process was killed at once")]
    Killed,
    /// [`Input::AcceptOne`]: no connection waits.
    #[error("no connection waits")]
    NothingWaiting,
}

/// What the child does, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// New session, signal mask, umask.
    Session = 1,
    /// Supplementary groups.
    Groups,
    /// Bounding set and groups, then the user.
    User,
    /// The process is still somebody else.
    Check,
    /// PR_SET_NO_NEW_PRIVS and a session keyring of its own.
    NoNewPrivileges,
    /// accept4(2).
    Accept,
    /// Putting descriptors in their place.
    Descriptors,
    /// execve(2).
    Execute,
    /// Entering the cgroup; comes first where it is not made there.
    Group,
    /// Confining it to its files; after the descriptors.
    Files,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Session => "starting a session",
            Self::Groups => "taking the user's groups",
            Self::User => "becoming the user",
            Self::Check => "checking who it is",
            Self::NoNewPrivileges => "giving up new privileges",
            Self::Accept => "accepting the connection",
            Self::Descriptors => "placing descriptors",
            Self::Execute => "executing the program",
            Self::Group => "entering the cgroup",
            Self::Files => "confining it to its files",
        })
    }
}

impl Stage {
    fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Session,
            2 => Self::Groups,
            3 => Self::User,
            4 => Self::Check,
            5 => Self::NoNewPrivileges,
            6 => Self::Accept,
            7 => Self::Descriptors,
            9 => Self::Group,
            10 => Self::Files,
            _ => Self::Execute,
        }
    }
}

// linux/sched.h, as clone3(2) takes them: 64 bits wide.
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Everything the child needs, made before the fork: after it, only system calls are safe.
struct Prepared {
    program: CString,
    directory: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    /// Place of LISTEN_PID in `environment`.
    listen_pid: Option<usize>,
    groups: Vec<libc::gid_t>,
    uid: u32,
    gid: u32,
    confinement: Option<Confinement>,
    errors: Option<Arc<OwnedFd>>,
}

impl Prepared {
    fn new(command: &Command, input: &Input<'_>) -> Result<Self, SpawnError> {
        if command.uid == 0 {
            return Err(SpawnError::Root);
        }
        let program = CString::new(command.program.as_os_str().as_bytes())?;
        let mut arguments = vec![program.clone()];
        for argument in &command.arguments {
            arguments.push(CString::new(argument.as_str())?);
        }
        let mut environment = Vec::new();
        for (name, value) in &command.environment {
            environment.push(CString::new(format!("{name}={value}"))?);
        }
        let mut listen_pid = None;
        if matches!(input, Input::Listener(_)) {
            listen_pid = Some(environment.len());
            let mut pid = LISTEN_PID.to_vec();
            pid.extend([b'0'; PID_DIGITS]);
            environment.push(CString::new(pid)?);
            environment.push(CString::new("LISTEN_FDS=1")?);
            environment.push(CString::new(format!("LISTEN_FDNAMES={}", command.name))?);
        }
        Ok(Self {
            directory: CString::new(OsString::from(&command.directory).as_bytes())?,
            program,
            arguments,
            environment,
            listen_pid,
            groups: command.groups.clone(),
            uid: command.uid,
            gid: command.gid,
            confinement: command
                .files
                .as_ref()
                .map(|files| Confinement::new(&command.program, files))
                .transpose()?,
            errors: command.errors.clone(),
        })
    }
}

/// Starts a worker in `group`. Returns when it has executed its program. Blocks as long as that
/// takes, at most for [`BIRTH`]; [`Input::AcceptOne`] does not wait for a connection.
///
/// # Errors
/// See [`SpawnError`]. A connection that the child had accepted when it failed is closed. A child
/// that is killed before it executes its program is a started worker that has ended; so is one
/// that takes too long, as when it is stopped by its user or waits for the user's home.
pub fn spawn(command: &Command, input: Input<'_>, group: &Group) -> Result<Worker, SpawnError> {
    let prepared = Prepared::new(command, &input)?;
    if !group.newborns_are_killed() {
        match attempt(&prepared, input, group, None)? {
            Birth::Started(worker) => return Ok(worker),
            Birth::Stillborn => group.note_killed_newborn(),
        }
    }
    let entrance = group
        .entrance()
        .map_err(|error| SpawnError::Parent(io::Error::other(error)))?;
    match attempt(&prepared, input, group, Some(entrance.as_fd()))? {
        Birth::Started(worker) => Ok(worker),
        Birth::Stillborn => Err(SpawnError::Killed),
    }
}

/// What became of a child.
enum Birth {
    Started(Worker),
    /// Killed before its first instruction. Kernels from 6.14 on do that to every child that is
    /// made in a group (CLONE_INTO_CGROUP) that was ever killed (cgroup.kill): they compare the
    /// group's count of kills with that of the maker's group.
    Stillborn,
}

/// Makes a child in the group, or with `entrance`, the group's list of processes, one that enters
/// the group as its first deed.
fn attempt(
    prepared: &Prepared,
    input: Input<'_>,
    group: &Group,
    entrance: Option<BorrowedFd<'_>>,
) -> Result<Birth, SpawnError> {
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(|error| SpawnError::Parent(error.into()))?;
    let (report, reporting) = report_pipe().map_err(|error| SpawnError::Parent(error.into()))?;
    let arguments = pointers(&prepared.arguments);
    // The child writes its process id into this string.
    let mut listen_pid = prepared
        .listen_pid
        .map(|place| prepared.environment[place].clone().into_bytes_with_nul());
    let mut environment = pointers(&prepared.environment);
    if let (Some(place), Some(text)) = (prepared.listen_pid, listen_pid.as_ref()) {
        environment[place] = text.as_ptr().cast();
    }
    let child = Child {
        prepared,
        arguments: &arguments,
        environment: &environment,
        listen_pid: listen_pid.as_mut().map(|text| text.as_mut_ptr()),
        input: &input,
        entrance: entrance.map(|entrance| entrance.as_raw_fd()),
        null: null.as_raw_fd(),
        errors: prepared
            .errors
            .as_ref()
            .map_or(null.as_raw_fd(), |errors| errors.as_raw_fd()),
        reporting: reporting.as_raw_fd(),
    };
    let cgroup = match entrance {
        None => Some(
            group
                .directory()
                .map_err(|error| SpawnError::Parent(io::Error::other(error)))?,
        ),
        Some(_) => None,
    };
    let (pid, pidfd) = fork_into(cgroup.as_ref().map(File::as_fd), child)?;
    drop(reporting);
    let outcome = match read_report(report, Instant::now() + BIRTH).map_err(SpawnError::Parent)? {
        Report::Executed => return Ok(Birth::Started(Worker { pid, pidfd })),
        Report::Late => {
            // It ends when it can.
            return match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => Ok(Birth::Started(Worker { pid, pidfd })),
                Err(error) => Err(SpawnError::Parent(error.into())),
            };
        }
        Report::None => Ok(Birth::Stillborn),
        Report::Failed(Stage::Accept, libc::EAGAIN) => Err(SpawnError::NothingWaiting),
        Report::Failed(stage, errno) => Err(SpawnError::Child {
            stage,
            error: io::Error::from_raw_os_error(errno),
        }),
    };
    // It ends by itself or has been killed; reaped here since the caller gets nothing.
    rustix::process::waitid(
        rustix::process::WaitId::PidFd(pidfd.as_fd()),
        rustix::process::WaitIdOptions::EXITED,
    )
    .map_err(|error| SpawnError::Parent(error.into()))?;
    outcome
}

/// The pipe for the child's report, its writing end above the places that the child fills.
fn report_pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (report, low) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let reporting = rustix::io::fcntl_dupfd_cloexec(&low, 10)?;
    // `low` closes here: the report ends when the last writing end does.
    Ok((report, reporting))
}

/// A null-terminated array of pointers into `strings`.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain(std::iter::once(std::ptr::null()))
        .collect()
}

/// What the child has to say.
enum Report {
    /// Nothing, not even that it lives.
    None,
    /// It lives, and nothing else: it has executed its program, which closes the pipe.
    Executed,
    /// A stage and an errno.
    Failed(Stage, i32),
    /// It lives and is not done.
    Late,
}

fn read_report(report: OwnedFd, deadline: Instant) -> io::Result<Report> {
    use std::io::Read;
    let mut report = File::from(report);
    let mut bytes = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut waiting = [PollFd::new(&report, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, Some(&left)) {
            Ok(0) => return Ok(Report::Late),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut part = [0; 16];
        match report.read(&mut part)? {
            0 => break,
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
    match bytes.as_slice() {
        [] => Ok(Report::None),
        [ALIVE] => Ok(Report::Executed),
        [ALIVE, stage, errno @ ..] if errno.len() == 4 => {
            let errno = [errno[0], errno[1], errno[2], errno[3]];
            Ok(Report::Failed(
                Stage::from_number(*stage),
                i32::from_ne_bytes(errno),
            ))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn fork_into(
    cgroup: Option<BorrowedFd<'_>>,
    child: Child<'_>,
) -> Result<(u32, OwnedFd), SpawnError> {
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain numbers, for which all zeros is a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
    arguments.pidfd = (&raw mut pidfd) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    }
    // SAFETY: without CLONE_VM this is fork(2): the child has a copy of the memory, and goes on to
    // run `Child::run` only, which makes system calls and neither allocates, locks nor returns.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut arguments,
            std::mem::size_of::<libc::clone_args>(),
        )
    };
    match pid {
        0 => {
            // SAFETY: this is the child of a fork; see `Child::run`.
            unsafe { child.run() }
        }
        pid if pid > 0 => {
            // SAFETY: the kernel has made this descriptor for us (CLONE_PIDFD).
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok((u32::try_from(pid).unwrap_or(u32::MAX), pidfd))
        }
        _ => Err(SpawnError::Parent(io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_child_that_says_no_more_than_that_it_lives_is_late_until_the_pipe_closes() {
        let (report, reporting) = report_pipe().unwrap();
        let again = report.try_clone().unwrap();
        let mut reporting = std::fs::File::from(reporting);
        reporting.write_all(&[ALIVE]).unwrap();
        let late = read_report(report, Instant::now() + Duration::from_millis(10)).unwrap();
        assert!(matches!(late, Report::Late));
        reporting.write_all(&[ALIVE]).unwrap();
        drop(reporting);
        let done = read_report(again, Instant::now() + BIRTH).unwrap();
        assert!(matches!(done, Report::Executed));
    }
}
