//! Supervision of daemons in the way of systemd: readiness, log, file descriptor store, restart.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cgroup;
use crate::command::{Streams, owned};
use crate::error::{Attempt, LabError};
use crate::host::Host;
use crate::notify::Unit;
use crate::running::Running;
use crate::waiting::PATIENCE;

/// Usher's daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `usherd keeper`: admission tables, listeners, workers. Workers outlive it.
    Keeper,
    /// `usherd verifier`: the control channel's server side.
    Verifier,
    /// `usherd recorder`: the log of authentications.
    Recorder,
    /// `usherd signer`: the users' keys.
    Signer,
    /// `usherd courier`: the control channel's client side.
    Courier,
    /// `usher proxy`: for unmodified programs.
    Proxy,
    /// `usherd protector`: IPsec for the traffic of programs.
    Protector,
    /// `usherd resolver`: names for the protector.
    Resolver,
    /// `usherd labeller`: modules of mandatory access control.
    Labeller,
    /// `usherd exporter`: numbers for Prometheus.
    Exporter,
}

impl Role {
    /// Its name, also that of its log, cgroup and unit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Keeper => "keeper",
            Self::Verifier => "verifier",
            Self::Recorder => "recorder",
            Self::Signer => "signer",
            Self::Courier => "courier",
            Self::Proxy => "proxy",
            Self::Protector => "protector",
            Self::Resolver => "resolver",
            Self::Labeller => "labeller",
            Self::Exporter => "exporter",
        }
    }
}

/// A daemon under supervision. It never restarts by itself: a test that kills it decides when.
/// Dropping the value kills it; its children are killed with the host.
#[derive(Debug)]
pub struct Daemon {
    host: Host,
    name: String,
    launcher: Vec<OsString>,
    arguments: Vec<OsString>,
    group: PathBuf,
    log: PathBuf,
    notify_socket: PathBuf,
    unit: Unit,
    running: Option<Running>,
}

impl Host {
    /// Starts one of Usher's daemons and waits until it is ready.
    ///
    /// # Errors
    /// [`LabError::NotReady`] with its log; [`LabError::NotBuilt`].
    pub fn start_daemon(&self, role: Role) -> Result<Daemon, LabError> {
        self.start_daemon_with(role, [] as [&str; 0])
    }

    /// Starts one of Usher's daemons with more arguments.
    ///
    /// # Errors
    /// As [`Host::start_daemon`].
    pub fn start_daemon_with(
        &self,
        role: Role,
        more: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Daemon, LabError> {
        let program = if role == Role::Proxy {
            "usher"
        } else {
            "usherd"
        };
        let mut arguments: Vec<OsString> =
            vec![self.program(program)?.into_os_string(), role.name().into()];
        let mut group = self.cgroup().join(role.name());
        cgroup::create(&group)?;
        if role == Role::Keeper {
            arguments.extend(["--cgroup".into(), group.clone().into()]);
            arguments.extend(["--users-cgroup".into(), self.cgroup().into()]);
            // Like systemd's `DelegateSubgroup=keeper`.
            group.push("keeper");
            cgroup::create(&group)?;
        }
        if matches!(role, Role::Signer | Role::Protector) {
            arguments.extend(["--cgroup".into(), self.cgroup().into()]);
        }
        // Programs that hold for a whole host are for virtual machines (tests/vm).
        let without = match role {
            Role::Keeper => Some("--without-ownership"),
            Role::Protector => Some("--without-lsm"),
            _ => None,
        };
        if std::env::var_os("USHER_VM").is_none() {
            arguments.extend(without.map(Into::into));
        }
        arguments.extend(owned(more));
        self.supervise_in(group, role.name(), arguments)
    }

    /// Starts any program that speaks `sd_notify(3)` as a daemon called `name`, and waits until it
    /// is ready.
    ///
    /// # Errors
    /// [`LabError::NotReady`] with its log.
    pub fn supervise(
        &self,
        name: &str,
        arguments: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Daemon, LabError> {
        let group = self.cgroup().join(name);
        cgroup::create(&group)?;
        self.supervise_in(group, name, owned(arguments).collect())
    }

    fn supervise_in(
        &self,
        group: PathBuf,
        name: &str,
        arguments: Vec<OsString>,
    ) -> Result<Daemon, LabError> {
        let notify_socket = Path::new("/run/lab/notify").join(name);
        let logs = self.path("/var/log/usher");
        fs::create_dir_all(&logs).attempt(|| format!("cannot make {}", logs.display()))?;
        let mut daemon = Daemon {
            host: self.clone(),
            name: name.into(),
            launcher: Vec::new(),
            arguments,
            group,
            log: logs.join(format!("{name}.log")),
            unit: Unit::bind(&self.path(&notify_socket))
                .attempt(|| format!("cannot make the notification socket of {name}"))?,
            notify_socket,
            running: None,
        };
        daemon.start()?;
        Ok(daemon)
    }
}

impl Daemon {
    /// Its name; for Usher's daemons the role's.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds arguments from its next start on.
    pub fn add_arguments(&mut self, more: impl IntoIterator<Item: AsRef<OsStr>>) {
        self.arguments.extend(owned(more));
    }

    /// Has another program execute it, with the daemon's command as arguments, from its next start on;
    /// no words mean no such program.
    pub fn set_launcher(&mut self, launcher: impl IntoIterator<Item: AsRef<OsStr>>) {
        self.launcher = owned(launcher).collect();
    }

    /// Starts it, with its stored descriptors, and waits until it is ready. It must not be running.
    ///
    /// # Errors
    /// [`LabError::NotReady`] with its log; it does not run then.
    pub fn start(&mut self) -> Result<(), LabError> {
        self.start_without_waiting()?;
        self.wait_ready(PATIENCE)
    }

    /// Starts it, with its stored descriptors.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_without_waiting(&mut self) -> Result<(), LabError> {
        // End an earlier one that still runs; two would share the log and the socket.
        self.running = None;
        self.unit.begin();
        let stored = self
            .unit
            .stored()
            .attempt(|| "cannot pass stored descriptors".into())?;
        let mut command = self
            .host
            .command(self.launcher.iter().chain(&self.arguments))
            .environment("NOTIFY_SOCKET", &self.notify_socket);
        let (names, descriptors): (Vec<_>, Vec<_>) = stored.into_iter().unzip();
        if !names.is_empty() {
            command = command
                .environment("LISTEN_FDS", names.len().to_string())
                .environment("LISTEN_FDNAMES", names.join(":"));
        }
        let log = || {
            File::options()
                .append(true)
                .create(true)
                .open(&self.log)
                .attempt(|| format!("cannot open the log of {}", self.name))
        };
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: log()?.into(),
            stderr: log()?.into(),
            descriptors,
        };
        let mut running = command.start(self.group.clone(), streams)?;
        running.leave_group();
        self.running = Some(running);
        Ok(())
    }

    /// Waits until it is ready, at most for `limit`.
    ///
    /// # Errors
    /// [`LabError::NotReady`] with its log; it does not run then.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<(), LabError> {
        let deadline = Instant::now() + limit;
        let reason = loop {
            if self.unit.wait_ready(Duration::from_millis(20)) {
                return Ok(());
            }
            if let Some(status) = self.wait(Duration::ZERO)? {
                break format!("ended before it was ready, with {status}");
            }
            if Instant::now() >= deadline {
                break format!("is not ready after {limit:?}");
            }
        };
        self.running = None;
        Err(LabError::NotReady {
            host: self.host.name().into(),
            daemon: self.name.clone(),
            reason,
            log: self.log()?,
        })
    }

    /// Its process id, as seen from outside.
    ///
    /// # Errors
    /// [`LabError::NotRunning`].
    pub fn pid(&mut self) -> Result<u32, LabError> {
        self.running()?.pid()
    }

    /// Sends it a signal, and not its children.
    ///
    /// # Errors
    /// [`LabError::NotRunning`].
    pub fn kill(&mut self, signal: Signal) -> Result<(), LabError> {
        self.running()?.kill(signal)
    }

    /// Waits for its end, at most for `limit`; `None` if it still runs then.
    ///
    /// # Errors
    /// [`LabError::NotRunning`] when it was never started.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, LabError> {
        self.running()?.wait(limit)
    }

    /// Returns whether it is running.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn is_running(&mut self) -> Result<bool, LabError> {
        match self.running.as_mut() {
            Some(running) => Ok(!running.has_ended()?),
            None => Ok(false),
        }
    }

    /// Ends it (SIGTERM, then SIGKILL if needed) and waits for that. Its stored descriptors stay, for
    /// the next [`Daemon::start`].
    ///
    /// # Errors
    /// When the system refuses.
    pub fn end(&mut self) -> Result<(), LabError> {
        if let Some(running) = self.running.as_mut() {
            running.kill_if_running(Signal::TERM)?;
            if running.wait(PATIENCE)?.is_none() {
                eprintln!(
                    "usher-lab: {} does not end when asked to: killed",
                    self.name
                );
            }
            running.end()?;
        }
        self.running = None;
        Ok(())
    }

    /// Like `systemctl stop`: ends it and forgets its stored descriptors.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn stop(&mut self) -> Result<(), LabError> {
        self.end()?;
        self.unit.clear();
        Ok(())
    }

    /// Like `systemctl restart`: ends it, then starts it with its stored descriptors.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn restart(&mut self) -> Result<(), LabError> {
        self.end()?;
        self.start()
    }

    /// Like a crash and systemd's `Restart=`: SIGKILL, then a start with its stored descriptors.
    ///
    /// # Errors
    /// As [`Daemon::start`]; [`LabError::NotRunning`].
    pub fn crash(&mut self) -> Result<(), LabError> {
        self.kill(Signal::KILL)?;
        self.running()?.end()?;
        self.start()
    }

    /// The names of its stored descriptors, in the order of storing.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn stored(&self) -> Result<Vec<String>, LabError> {
        let stored = self
            .unit
            .stored()
            .attempt(|| "cannot look at the store".into())?;
        Ok(stored.into_iter().map(|(name, _)| name).collect())
    }

    /// The last `STATUS=` that it sent since its start.
    #[must_use]
    pub fn status(&self) -> Option<String> {
        self.unit.status()
    }

    /// How many times the daemon has asked the service manager for more time since it was started
    /// (`EXTEND_TIMEOUT_USEC=`).
    ///
    /// # Errors
    /// When its notification socket cannot be reached.
    pub fn extensions(&self) -> Result<usize, LabError> {
        self.unit
            .extensions()
            .attempt(|| format!("the messages of {}", self.name))
    }

    /// The number of watchdog messages since its start: 0, unless it has a watchdog (`WATCHDOG_USEC`
    /// in its environment). Counts every message that it sent before the call.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn beats(&self) -> Result<usize, LabError> {
        let beats = self.unit.beats();
        beats.attempt(|| format!("cannot count what {} tells its watchdog", self.name))
    }

    /// Everything it has written to standard output and standard error, over all its starts.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn log(&self) -> Result<String, LabError> {
        let bytes =
            fs::read(&self.log).attempt(|| format!("cannot read the log of {}", self.name))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until its log contains `text`, at most for `limit`; whether it does.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn wait_log(&self, text: &str, limit: Duration) -> Result<bool, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            if self.log()?.contains(text) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn running(&mut self) -> Result<&mut Running, LabError> {
        self.running.as_mut().ok_or_else(|| LabError::NotRunning {
            host: self.host.name().into(),
            what: self.name.clone(),
        })
    }
}

/// Returns whether output is shown only when a test fails: true for tests that cargo runs, but not
/// in virtual machines (tests/vm), nor for the demo and the bench.
fn is_shown_on_failure_only() -> bool {
    let program = std::env::current_exe().unwrap_or_default();
    let is_test = program
        .parent()
        .is_some_and(|folder| folder.ends_with("deps"));
    is_test && std::env::var_os("USHER_VM").is_none()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The log vanishes with the host, and a failed test needs it. A test that returns an error
        // cannot be distinguished here from one that succeeds.
        if std::thread::panicking() || is_shown_on_failure_only() {
            match self.log() {
                Ok(log) => eprintln!("--- log of {} on {}\n{log}", self.name, self.host.name()),
                Err(error) => eprintln!("usher-lab: {error}"),
            }
        }
    }
}
