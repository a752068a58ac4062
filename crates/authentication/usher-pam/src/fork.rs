//! System calls without a safe form: fork(2), and handlers of signals.

use std::io;

use rustix::process::Pid;

/// The process in which [`fork`] returned.
pub enum Forked {
    /// The new process.
    Child,
    /// The former process, with the id of the new one.
    Parent(Pid),
}

/// Makes a copy of this process.
///
/// # Errors
/// Like fork(2).
pub fn fork() -> io::Result<Forked> {
    // SAFETY: this program makes no threads, so the child finds no lock that another thread holds.
    let pid = unsafe { libc::fork() };
    match Pid::from_raw(pid) {
        None => Ok(Forked::Child),
        Some(pid) if pid.as_raw_nonzero().get() > 0 => Ok(Forked::Parent(pid)),
        Some(_) => Err(io::Error::last_os_error()),
    }
}

/// Survives SIGTERM, SIGINT and SIGHUP, because the session must be closed after its workers have ended. A
/// handler, not SIG_IGN, so that programs executed from here have the default actions again.
pub fn outlast_requests_to_end() {
    extern "C" fn ignore(_: libc::c_int) {}
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(signal, ignore as extern "C" fn(_) as libc::sighandler_t) };
    }
}
