//! Programs that outlive the process without being attached, and programs that replace their functions
//! (BPF_PROG_TYPE_EXT).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::pins::{open_pin, pin, unpin_if_there};
use crate::table::clone;
use crate::{KernelError, Object, Opened, Pins, exists};

/// Prefix of the names of pinned programs.
const PROGRAM: &str = "program_";
/// Limit of the wait for a place that another program has left.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl Opened {
    /// Has each program replace a function of another, loaded program. `target` gets the name of the
    /// replacing program, and returns the other program and the name of the function.
    ///
    /// # Errors
    /// The error of `target`, or libbpf's when there is no such function.
    pub fn replace<'a, E: From<KernelError>>(
        mut self,
        mut target: impl FnMut(&str) -> Result<(BorrowedFd<'a>, String), E>,
    ) -> Result<Self, E> {
        for mut program in self.open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let (of, function) = target(&name)?;
            let of = clone(&of)?;
            program
                .set_attach_target(of.as_raw_fd(), Some(function))
                .map_err(KernelError::bpf("find the function to replace"))?;
            self.replaced.push(of);
        }
        Ok(self)
    }
}

impl Object {
    /// Pins a program without attaching it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn keep_program(&self, name: &str, pins: &Pins) -> Result<(), KernelError> {
        let place = pins.folder().join(format!("{PROGRAM}{name}"));
        pin(self.program_named(name)?.as_fd(), &place)
    }

    /// Attaches all programs of this object for good, each at the place for which it was loaded.
    ///
    /// # Errors
    /// The kernel's error. The programs before the one that failed are attached.
    pub fn keep_all(&self, pins: &Pins) -> Result<(), KernelError> {
        self.programs()?
            .iter()
            .try_for_each(|(name, program)| keep(name, program.as_fd(), pins))
    }
}

/// Attaches a program for good, at the place for which it was loaded: the link is pinned. The kernel detaches
/// a program after an RCU grace period, so this blocks for up to 10 seconds while the place is busy.
///
/// # Errors
/// The kernel's error.
pub fn keep(name: &str, program: BorrowedFd<'_>, pins: &Pins) -> Result<(), KernelError> {
    let link = when_free(LONGEST_WAIT, || usher_bpf_ffi::attach_program(program));
    let link = link.map_err(KernelError::system("attach a program"))?;
    pin(link.as_fd(), &pins.link(name))
}

/// Attaches a program for good to a control group and all groups below it, for packets that leave: the link
/// is pinned.
///
/// # Errors
/// The kernel's error.
pub fn keep_at_egress(
    name: &str,
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    pins: &Pins,
) -> Result<(), KernelError> {
    let link = usher_bpf_ffi::attach_at_egress(program, cgroup);
    let link = link.map_err(KernelError::system(
        "attach to the root of control groups, beside what `bpftool cgroup show` has there",
    ))?;
    pin(link.as_fd(), &pins.link(name))
}

/// Detaches a program that [`keep`] or [`keep_at_egress`] has attached. Returns whether it was attached.
///
/// # Errors
/// The kernel's error.
pub fn leave(name: &str, pins: &Pins) -> Result<bool, KernelError> {
    unpin_if_there(&pins.link(name))
}

/// Whether a program is attached by [`keep`].
///
/// # Errors
/// When the check fails.
pub fn is_kept(name: &str, pins: &Pins) -> Result<bool, KernelError> {
    exists(&pins.link(name))
}

impl Pins {
    /// The program that [`Object::keep_program`] has pinned here, if any.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn program(&self, name: &str) -> Result<Option<OwnedFd>, KernelError> {
        let place = self.folder().join(format!("{PROGRAM}{name}"));
        if !exists(&place)? {
            return Ok(None);
        }
        open_pin(&place).map(Some)
    }
}

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Attaches a program. The kernel frees a place some time after a program has left it (an RCU grace
/// period), so this tries again, at most for this long, while the place is busy.
///
/// # Errors
/// The error of the last attempt.
pub(crate) fn when_free<T>(
    limit: Duration,
    mut attach: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match attach() {
            Err(error) if is_busy(&error) && begun.elapsed() < limit => sleep(PAUSE),
            attached => return attached,
        }
    }
}

/// Whether another program has the place.
pub(crate) fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}
