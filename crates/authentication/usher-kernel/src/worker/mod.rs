//! Starting a worker: a process that runs as its user from its first instruction.
//!
//! A process with no other task, the starter, makes them: it has little memory to copy and few
//! descriptors to close, however many queues the keeper has, and no other thread. It prepares once
//! what every child inherits. The child is made in its cgroup (clone3, `CLONE_INTO_CGROUP`, 5.7
//! on), becomes the user, takes its connection or listener and executes the program. In style
//! `connection`, the child accepts the connection, already as the user: neither the keeper nor the
//! starter ever holds a connection, so their deaths drop none.

mod child;
mod files;
mod label;
mod message;
mod newborn;
mod reaping;

use std::ffi::{CString, NulError};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use usher_base::codec::address_bytes;
use usher_system::privileges::{self, Capabilities};

use crate::KernelError;
use child::{Child, LISTEN_PID, PID_DIGITS};
use files::Confinement;
pub use files::FileAccess;
pub use message::{Event, MAX_REQUEST, Order, REPORT_SIZE, Report, Request};
pub use newborn::{Accepted, Newborn, Progress};
pub use reaping::{Ended, Ends, block_requests_to_end};

/// Limit of the time that a child takes to execute its program.
pub const BIRTH: Duration = Duration::from_secs(30);

/// The program to start, and its user.
#[derive(Debug, Clone)]
pub struct Command {
    /// Absolute path.
    pub program: PathBuf,
    /// Arguments, without the program's own name.
    pub arguments: Vec<String>,
    /// The program's whole environment; socket activation adds LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES.
    pub environment: Vec<(String, String)>,
    /// User; never 0.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups, for setgroups(2).
    pub groups: Vec<u32>,
    /// Working directory; `/` if it is missing or closed to the user.
    pub directory: PathBuf,
    /// The service: name of the descriptor in socket activation, and the worker's element of the module
    /// `ubns` (see `label`).
    pub name: String,
    /// The elements of a label that the worker's user gets at login.
    pub label: Option<String>,
    /// All files and folders that the worker may touch besides the program, with everything below them; none:
    /// everything that its user may touch. Paths that are missing at the worker's start are left out.
    pub files: Option<Vec<(PathBuf, FileAccess)>>,
    /// The worker's file mode creation mask (umask(2)).
    pub umask: u16,
    /// Whether set-user-ID and set-group-ID bits apply to programs that the worker executes; never combined
    /// with `files`. The worker's bounding set is empty in either case, so no program confers capabilities.
    pub setuid: bool,
    /// Whether the starter runs inside a PAM session of the user. Then the worker keeps the
    /// starter's limit of open files, and the session keyring if it is the user's. Otherwise both
    /// belong to the keeper, and the worker gets its own.
    pub pam_session: bool,
    /// A worker that accepts a connection resets connections from these addresses, and takes the next one.
    pub refused: Vec<IpAddr>,
    /// Such a worker also resets connections from all other addresses than this one.
    pub only: Option<IpAddr>,
    /// Standard error; none: /dev/null. Never the caller's: a worker's output would stand among the
    /// caller's messages as if the caller had written it.
    pub errors: Option<Arc<OwnedFd>>,
}

/// The socket that the worker serves.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// One connection of this listener, accepted by the child, as standard input and output.
    AcceptOne(BorrowedFd<'a>),
    /// The listener itself, as descriptor 3 (sd_listen_fds(3)); standard input and output are
    /// /dev/null.
    Listener(BorrowedFd<'a>),
}

/// The reason why no worker was started.
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
    /// [`Command::setuid`] beside [`Command::files`].
    #[error("a process with `files` cannot have `setuid permit`: Landlock needs no_new_privs")]
    SetuidConfined,
    /// Root is never a worker's user.
    #[error("a worker never runs as root")]
    Root,
    /// No child could be made.
    #[error("cannot make a process: {0}")]
    Parent(io::Error),
    /// The child could not become the worker.
    #[error("cannot {0} in the new process: {1}")]
    Child(Stage, io::Error),
    /// The child was killed as soon as it was made, twice.
    #[error("the new process was killed at once")]
    Killed,
    /// The child did not execute its program within [`BIRTH`].
    #[error("the new process took longer than {} seconds", BIRTH.as_secs())]
    Late,
    /// The starter ended before it reported on the child.
    #[error("the starter has ended")]
    StarterGone,
    /// The command exceeds the size of a request.
    #[error("the program, its arguments and its environment take more than {MAX_REQUEST} bytes")]
    TooLong,
    /// [`Input::AcceptOne`]: no connection waits.
    #[error("no connection waits")]
    NothingWaiting,
}

impl SpawnError {
    /// The error for a child that failed at a stage with an errno.
    #[must_use]
    pub fn failed(stage: Stage, errno: i32) -> Self {
        match (stage, errno) {
            (Stage::Accept, libc::EAGAIN) => Self::NothingWaiting,
            (stage, errno) => Self::Child(stage, io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The stages of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// New session, signal mask, folder.
    Session = 1,
    /// Supplementary groups.
    Groups,
    /// The primary group, then the user.
    User,
    /// Checking that the process is only the user.
    Check,
    /// PR_SET_NO_NEW_PRIVS and a new session keyring.
    NoNewPrivileges,
    /// accept4(2).
    Accept,
    /// Putting descriptors in their places.
    Descriptors,
    /// execve(2).
    Execute,
    /// Entering the cgroup; the first stage if the child is not made there.
    Group,
    /// Confining the child to its files; follows the descriptors.
    Files,
    /// Taking the service's element of a label; follows the descriptors.
    Label,
    /// Taking the user's label; follows the service's element.
    UserLabel,
}

impl Stage {
    /// All stages, each with its text for behind "cannot".
    const ALL: [(Self, &str); 12] = [
        (Self::Session, "start a session"),
        (Self::Groups, "take the user's groups"),
        (Self::User, "become the user"),
        (Self::Check, "check that it is only the user"),
        (Self::NoNewPrivileges, "give up gaining privileges"),
        (Self::Accept, "accept the connection"),
        (Self::Descriptors, "place descriptors"),
        (Self::Execute, "execute the program"),
        (Self::Group, "enter the cgroup"),
        (Self::Files, "confine it to its files"),
        (Self::Label, "take the label of its service"),
        (
            Self::UserLabel,
            "take the label that mac.login has for its user (`usher mac list` shows the modules)",
        ),
    ];

    fn from_number(number: u8) -> Self {
        let mut all = Self::ALL.into_iter().map(|(stage, _)| stage);
        all.find(|stage| *stage as u8 == number)
            .unwrap_or(Self::Execute)
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (_, action) = Self::ALL[*self as usize - 1];
        formatter.write_str(action)
    }
}

// linux/sched.h, as clone3(2) expects them: 64 bits wide.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

impl Command {
    /// Refuses commands that no child could run, before the starter gets them.
    ///
    /// # Errors
    /// [`SpawnError::Root`], [`SpawnError::Text`], [`SpawnError::NoLandlock`],
    /// [`SpawnError::SetuidConfined`].
    pub fn check(&self) -> Result<(), SpawnError> {
        Prepared::new(self, false).map(drop)
    }
}

/// The data that all children of a command need, made before the first of them: after the fork,
/// only system calls are safe.
pub struct Prepared {
    command: Command,
    program: CString,
    directory: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    /// Index of LISTEN_PID in `environment`.
    listen_pid: Option<usize>,
    /// The text of the service's element of a label.
    element: String,
    /// [`Command::refused`] and [`Command::only`], as IPv6 addresses.
    refused: Vec<[u8; 16]>,
    only: Option<[u8; 16]>,
    confinement: Option<Confinement>,
}

impl Prepared {
    /// Prepares a command. Its workers take one connection each (`accepts`) or the listener.
    ///
    /// # Errors
    /// Like [`Command::check`].
    pub fn new(command: &Command, accepts: bool) -> Result<Self, SpawnError> {
        if command.uid == 0 {
            return Err(SpawnError::Root);
        }
        if command.files.is_some() && command.setuid {
            return Err(SpawnError::SetuidConfined);
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
        if !accepts {
            listen_pid = Some(environment.len());
            let mut pid = LISTEN_PID.to_vec();
            pid.extend([b'0'; PID_DIGITS]);
            environment.push(CString::new(pid)?);
            environment.push(CString::new("LISTEN_FDS=1")?);
            environment.push(CString::new(format!("LISTEN_FDNAMES={}", command.name))?);
        }
        Ok(Self {
            directory: CString::new(command.directory.as_os_str().as_bytes())?,
            program,
            arguments,
            environment,
            listen_pid,
            element: label::element(&command.name),
            refused: command.refused.iter().copied().map(address_bytes).collect(),
            only: command.only.map(address_bytes),
            confinement: command
                .files
                .as_ref()
                .map(|files| Confinement::new(&command.program, files))
                .transpose()?,
            command: command.clone(),
        })
    }
}

/// Whether a child is made in its cgroup or first enters it. Kernels from 6.14 on kill every child
/// that is made (CLONE_INTO_CGROUP) in a group that was ever killed (cgroup.kill): they compare the
/// group's count of kills with that of the maker's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The child is made in its cgroup.
    Made,
    /// The child enters its cgroup.
    Enters,
}

/// The process that makes workers.
#[derive(Debug)]
pub struct Starter {
    null: OwnedFd,
    /// Rung by a child that has accepted while other connections are waiting.
    bell: OwnedFd,
    pid: libc::pid_t,
}

impl Starter {
    /// Turns the calling process into a starter of workers, for good: it holds `kept` (CAP_SETUID,
    /// CAP_SETGID and CAP_KILL are needed) and passes none of them on, all signals have their
    /// default actions, and the umask is 077. Call it while the process has one thread.
    ///
    /// # Errors
    /// When the process lacks a capability, or the kernel's error.
    pub fn prepare(kept: Capabilities) -> Result<Self, KernelError> {
        privileges::keep_to_itself(kept)?;
        privileges::no_core_dumps()?;
        reaping::default_signals();
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(KernelError::system("open /dev/null"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(KernelError::system("make an eventfd"))?;
        Ok(Self {
            null,
            bell,
            pid: rustix::process::getpid().as_raw_nonzero().get(),
        })
    }

    /// An eventfd that becomes readable when a child has accepted while other connections are
    /// waiting.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes a child in the cgroup whose folder is `group`. The kind of input must be the one that
    /// the command was prepared for. Returns at once; [`Newborn`] reports the child's progress.
    ///
    /// # Errors
    /// See [`SpawnError`]; there is no child then.
    pub fn make(
        &self,
        prepared: &Prepared,
        input: Input<'_>,
        group: BorrowedFd<'_>,
        entry: Entry,
    ) -> Result<Newborn, SpawnError> {
        let failed = |error: Errno| SpawnError::Parent(error.into());
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (report, reporting) = rustix::pipe::pipe_with(flags).map_err(failed)?;
        let arguments = pointers(&prepared.arguments);
        // The child writes its process id into this string.
        let mut listen_pid = prepared
            .listen_pid
            .map(|place| prepared.environment[place].clone().into_bytes_with_nul());
        let mut environment = pointers(&prepared.environment);
        if let (Some(place), Some(text)) = (prepared.listen_pid, listen_pid.as_ref()) {
            environment[place] = text.as_ptr().cast();
        }
        let entrance = match entry {
            Entry::Made => None,
            Entry::Enters => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(group, "cgroup.procs", flags, Mode::empty());
                Some(opened.map_err(failed)?)
            }
        };
        let child = Child {
            prepared,
            arguments: &arguments,
            environment: &environment,
            listen_pid: listen_pid.as_mut().map(|text| text.as_mut_ptr()),
            input: &input,
            entrance: entrance.as_ref().map(AsRawFd::as_raw_fd),
            null: self.null.as_raw_fd(),
            errors: match &prepared.command.errors {
                Some(errors) => errors.as_raw_fd(),
                None => self.null.as_raw_fd(),
            },
            reporting: reporting.as_raw_fd(),
            bell: self.bell.as_raw_fd(),
            parent: self.pid,
        };
        let pid = fork_into((entry == Entry::Made).then_some(group), child)?;
        Ok(Newborn::new(pid, report))
    }
}

/// A null-terminated array of pointers into `strings`.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain(std::iter::once(std::ptr::null()))
        .collect()
}

fn fork_into(cgroup: Option<BorrowedFd<'_>>, child: Child<'_>) -> Result<u32, SpawnError> {
    // SAFETY: clone_args is plain numbers, for which all zeros is a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_CLEAR_SIGHAND;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    }
    // SAFETY: without CLONE_VM this is fork(2): the child has a copy of the memory. It runs only
    // `Child::run`, which makes system calls and neither allocates, locks nor returns.
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
        pid if pid > 0 => Ok(u32::try_from(pid).unwrap_or(u32::MAX)),
        _ => Err(SpawnError::Parent(io::Error::last_os_error())),
    }
}
