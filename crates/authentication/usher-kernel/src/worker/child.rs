//! The new process between clone3(2) and execve(2). Nothing here may allocate, lock or unwind. The
//! parent is the starter. It has prepared what a child inherits ([`super::Starter::prepare`]):
//! signals, umask, an empty bounding set.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::{Input, Prepared, Stage, label};
use crate::listener::waiting;

/// A worker's limit of open files unless it asks for more: programs that use select(2) expect this
/// one, not the starter's.
const OPEN_FILES: libc::rlim_t = 1024;

/// The variable of the environment that the child completes.
pub(super) const LISTEN_PID: &[u8] = b"LISTEN_PID=";
/// First report of a child that takes the listener.
pub(super) const ALIVE: u8 = 0xff;
/// First report of a child that accepts a connection, once it has accepted one. The number of waiting
/// connections follows, and the client's [`Endpoint`].
pub(super) const ACCEPTED: u8 = 0xfe;
/// Bytes of an endpoint: an IPv6 address and a port. IPv4 addresses are mapped, other families are zeros.
pub(super) const ENDPOINT: usize = 18;
/// The address and the port of a client.
type Endpoint = [u8; ENDPOINT];
/// Digits of the process id that the child may write behind [`LISTEN_PID`].
pub(super) const PID_DIGITS: usize = 10;

/// The child's data. It needs no allocation and no lock.
pub(super) struct Child<'a> {
    pub prepared: &'a Prepared,
    pub arguments: &'a [*const libc::c_char],
    pub environment: &'a [*const libc::c_char],
    pub listen_pid: Option<*mut u8>,
    pub input: &'a Input<'a>,
    /// A zero written to this descriptor moves the process into its cgroup. None if it was made there.
    pub entrance: Option<RawFd>,
    pub null: RawFd,
    /// Standard error.
    pub errors: RawFd,
    pub reporting: RawFd,
    /// Rung when the child has accepted and other connections are still waiting.
    pub bell: RawFd,
    /// The starter.
    pub parent: libc::pid_t,
}

/// The descriptor of the listener while a connection is accepted, and for good in socket
/// activation.
const LISTENER: RawFd = 3;
/// The descriptor of the child's report, once it has placed its descriptors.
const REPORT: RawFd = 4;
/// The descriptor of the bell.
const BELL: RawFd = 5;

impl Child<'_> {
    /// Becomes the worker.
    ///
    /// # Safety
    /// Only in the child of a fork: it changes the process and never returns. Everything it calls
    /// is async-signal-safe (signal-safety(7)) or a bare system call.
    pub(super) unsafe fn run(mut self) -> ! {
        // SAFETY: see this function's contract.
        let (stage, errno) = unsafe { self.become_worker() };
        let mut report = [0; 5];
        report[0] = stage as u8;
        report[1..].copy_from_slice(&errno.to_ne_bytes());
        // SAFETY: writes a local array, and ends the process without running any of the parent's
        // code.
        unsafe {
            libc::write(self.reporting, report.as_ptr().cast(), report.len());
            libc::_exit(127)
        }
    }

    /// Returns only when a stage fails.
    unsafe fn become_worker(&mut self) -> (Stage, i32) {
        let prepared = self.prepared;
        let command = &prepared.command;
        // SAFETY: bare system calls on this process, with pointers into memory that was made before
        // the fork and that the child has a copy of.
        unsafe {
            // Until its group changes, the child ends with its parent. The kernel clears this signal whenever
            // group or user change (PR_SET_PDEATHSIG(2const)); from then on the keeper looks after the child.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) < 0
                || libc::getppid() != self.parent
                || matches!(self.input, Input::Listener(_)) && !self.say(&[ALIVE])
            {
                return (Stage::Session, errno());
            }
            if let Some(entrance) = self.entrance
                && libc::write(entrance, c"0".as_ptr().cast(), 1) != 1
            {
                return (Stage::Group, errno());
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            if libc::setsid() < 0
                || libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) < 0
            {
                return (Stage::Session, errno());
            }
            // Descriptors are placed before the child is the user, whose other processes can reach it from
            // then on.
            if let Err(errno) = self.place() {
                return (Stage::Descriptors, errno);
            }
            if let Err(errno) = label::take_element(&prepared.element) {
                return (Stage::Label, errno);
            }
            if let Some(elements) = &command.label
                && let Err(errno) = label::take_label(elements)
            {
                return (Stage::UserLabel, errno);
            }
            // Raw calls: glibc's wrappers of these would signal other threads.
            if libc::syscall(
                libc::SYS_setgroups,
                command.groups.len(),
                command.groups.as_ptr(),
            ) < 0
            {
                return (Stage::Groups, errno());
            }
            let (uid, gid) = (command.uid, command.gid);
            if libc::syscall(libc::SYS_setresgid, gid, gid, gid) < 0
                || libc::syscall(libc::SYS_setresuid, uid, uid, uid) < 0
            {
                return (Stage::User, errno());
            }
            if !drop_capabilities() {
                return (Stage::User, errno());
            }
            if !self.is_the_user() {
                return (Stage::Check, libc::EPERM);
            }
            libc::umask(libc::mode_t::from(command.umask));
            // Without no_new_privs, set-ID bits take effect, and Landlock is unavailable.
            if !command.setuid && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
                return (Stage::NoNewPrivileges, errno());
            }
            // The starter's keyring is not the user's, and no two users share one. A kernel without
            // keyrings has none to leave.
            let has_keyring = command.pam_session && has_session_keyring_of(command.uid);
            if !has_keyring
                && libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, 0) < 0
                && errno() != libc::ENOSYS
            {
                return (Stage::NoNewPrivileges, errno());
            }
            if let Input::AcceptOne(_) = self.input {
                let Some((connection, client)) = self.take_connection() else {
                    return (Stage::Accept, errno());
                };
                // The starter may have ended: the child still serves the connection.
                let waiting = waiting(BorrowedFd::borrow_raw(LISTENER))
                    .unwrap_or(0)
                    .min(255) as u8;
                let mut said = [0; 2 + ENDPOINT];
                (said[0], said[1]) = (ACCEPTED, waiting);
                said[2..].copy_from_slice(&client);
                if self.say(&said) && waiting > 0 {
                    let one = 1_u64;
                    libc::write(BELL, (&raw const one).cast(), size_of::<u64>());
                }
                if libc::dup2(connection, 0) < 0 || libc::dup2(connection, 1) < 0 {
                    return (Stage::Descriptors, errno());
                }
            }
            let mut files: libc::rlimit = std::mem::zeroed();
            if !command.pam_session && libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
                files.rlim_cur = OPEN_FILES.min(files.rlim_max);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
            }
            // The worker serves even if its home folder is missing or closed to the user.
            if libc::chdir(prepared.directory.as_ptr()) < 0 && libc::chdir(c"/".as_ptr()) < 0 {
                return (Stage::Session, errno());
            }
            if let Some(confinement) = &prepared.confinement
                && let Err(errno) = confinement.enforce()
            {
                return (Stage::Files, errno);
            }
            if let Some(text) = self.listen_pid {
                write_number(text.add(LISTEN_PID.len()), libc::getpid().unsigned_abs());
            }
            // SIGPIPE was ignored until here.
            if libc::signal(libc::SIGPIPE, libc::SIG_DFL) == libc::SIG_ERR {
                return (Stage::Session, errno());
            }
            libc::execve(
                prepared.program.as_ptr(),
                self.arguments.as_ptr(),
                self.environment.as_ptr(),
            );
            (Stage::Execute, errno())
        }
    }

    /// Accepts the first waiting connection from an address that the worker serves, and resets those
    /// before it; none with errno if none waits.
    unsafe fn take_connection(&self) -> Option<(RawFd, Endpoint)> {
        // SAFETY: system calls on this process's descriptors, with pointers to local variables.
        unsafe {
            loop {
                let mut peer: libc::sockaddr_storage = std::mem::zeroed();
                let connection = accept(LISTENER, &mut peer);
                if connection < 0 {
                    return None;
                }
                let client = endpoint_of(&peer);
                let address = client.and_then(|client| client.first_chunk().copied());
                if self.serves(address) {
                    return Some((connection, client.unwrap_or([0; ENDPOINT])));
                }
                // The reset tells the client that it is refused; an orderly end would look like an answer.
                let reset = libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                libc::setsockopt(
                    connection,
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    (&raw const reset).cast(),
                    size_of::<libc::linger>() as libc::socklen_t,
                );
                libc::close(connection);
            }
        }
    }

    /// Whether the worker serves clients at this address.
    fn serves(&self, client: Option<[u8; 16]>) -> bool {
        let Prepared { refused, only, .. } = self.prepared;
        match client {
            Some(client) => {
                !refused.contains(&client) && only.as_ref().is_none_or(|only| *only == client)
            }
            None => refused.is_empty() && only.is_none(),
        }
    }

    /// Writes a part of the report.
    unsafe fn say<const N: usize>(&self, part: &[u8; N]) -> bool {
        // SAFETY: an array that lives until the call returns.
        unsafe { libc::write(self.reporting, part.as_ptr().cast(), N) == N as isize }
    }

    /// Whether this process has only the user's identities and groups.
    unsafe fn is_the_user(&self) -> bool {
        let (mut real, mut effective, mut saved) = (0, 0, 0);
        // SAFETY: writes three local numbers each.
        unsafe {
            let (uid, gid) = (self.prepared.command.uid, self.prepared.command.gid);
            if libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) < 0
                || [real, effective, saved] != [uid; 3]
            {
                return false;
            }
            if libc::getresgid(&raw mut real, &raw mut effective, &raw mut saved) < 0
                || [real, effective, saved] != [gid; 3]
            {
                return false;
            }
            // The process must not be able to become root again, either.
            libc::syscall(libc::SYS_setresuid, 0, 0, 0) < 0
        }
    }

    /// Puts /dev/null at 0 and 1, standard error at 2, the listener at [`LISTENER`], the report at
    /// [`REPORT`] and the bell at [`BELL`], and closes all others. The following steps run as the
    /// user and touch the user's files, which can block this process indefinitely.
    unsafe fn place(&mut self) -> Result<(), i32> {
        let (listener, kept) = match self.input {
            Input::AcceptOne(listener) => (listener, libc::O_CLOEXEC),
            Input::Listener(listener) => (listener, 0),
        };
        // SAFETY: descriptor numbers of this process only.
        unsafe {
            // Moves the descriptors away from the places that are about to be filled.
            let aside = |source| libc::fcntl(source, libc::F_DUPFD_CLOEXEC, BELL + 1);
            let (listener, null) = (aside(listener.as_raw_fd()), aside(self.null));
            let (errors, reporting) = (aside(self.errors), aside(self.reporting));
            let bell = aside(self.bell);
            if listener < 0 || null < 0 || errors < 0 || reporting < 0 || bell < 0 {
                return Err(errno());
            }
            self.reporting = reporting;
            if libc::dup2(null, 0) < 0
                || libc::dup2(null, 1) < 0
                || libc::dup2(errors, 2) < 0
                || libc::dup3(listener, LISTENER, kept) < 0
                // The report closes on exec, which tells the starter of the success.
                || libc::dup3(reporting, REPORT, libc::O_CLOEXEC) < 0
                || libc::dup3(bell, BELL, libc::O_CLOEXEC) < 0
            {
                return Err(errno());
            }
            self.reporting = REPORT;
            if libc::syscall(libc::SYS_close_range, BELL + 1, u32::MAX, 0) < 0 {
                return Err(errno());
            }
            Ok(())
        }
    }
}

/// Whether the session keyring is one that pam_keyinit(8) has made for this user: unnamed, and
/// owned by the user.
///
/// # Safety
/// Only in the child of a fork, like everything here; it changes nothing.
unsafe fn has_session_keyring_of(uid: u32) -> bool {
    // "keyring;UID;GID;PERMISSIONS;_ses": keyctl(2), KEYCTL_DESCRIBE.
    let mut description = [0_u8; 128];
    // SAFETY: the kernel writes no more bytes than the given size.
    let length = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_DESCRIBE,
            libc::KEY_SPEC_SESSION_KEYRING,
            description.as_mut_ptr(),
            description.len(),
        )
    };
    let described = usize::try_from(length).ok().and_then(|length| {
        // The last byte is a zero.
        description.get(..length.checked_sub(1)?)
    });
    described.is_some_and(|description| is_anonymous_keyring_of(description, uid))
}

fn is_anonymous_keyring_of(description: &[u8], uid: u32) -> bool {
    let mut fields = description.splitn(5, |byte| *byte == b';');
    let (kind, owner) = (fields.next(), fields.next());
    let owner = owner.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    kind == Some(b"keyring") && owner == Some(uid) && fields.nth(2) == Some(b"_ses")
}

/// Empties the permitted, effective, inheritable and ambient sets. Leaving uid 0 has already
/// emptied all but the inheritable set, unless the starter's securebits prevent it.
///
/// # Safety
/// Only in the child of a fork: it changes the process.
unsafe fn drop_capabilities() -> bool {
    // linux/capability.h: version 3, this process, and two times three sets of 32 bits.
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0_u32; 6];
    // SAFETY: pointers to local arrays of the size that version 3 has.
    unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        ) == 0
            && libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) == 0
    }
}

/// The endpoint of a socket's peer; none for other families than IPv6 and IPv4.
fn endpoint_of(peer: &libc::sockaddr_storage) -> Option<Endpoint> {
    let place = (&raw const *peer).cast::<u8>();
    let mut endpoint = [0; ENDPOINT];
    match i32::from(peer.ss_family) {
        libc::AF_INET6 => {
            // SAFETY: the storage is large and aligned enough for every family's structure, and this
            // family's is in it.
            let peer = unsafe { place.cast::<libc::sockaddr_in6>().read() };
            endpoint[..16].copy_from_slice(&peer.sin6_addr.s6_addr);
            endpoint[16..].copy_from_slice(&peer.sin6_port.to_ne_bytes());
        }
        libc::AF_INET => {
            // SAFETY: as above.
            let peer = unsafe { place.cast::<libc::sockaddr_in>().read() };
            endpoint[10..12].fill(0xff);
            endpoint[12..16].copy_from_slice(&peer.sin_addr.s_addr.to_ne_bytes());
            endpoint[16..].copy_from_slice(&peer.sin_port.to_ne_bytes());
        }
        _ => return None,
    }
    Some(endpoint)
}

/// Accepts a waiting connection, and stores its peer's address; EAGAIN if there is none.
///
/// The listener must block, for the sake of workers that accept from it themselves, so poll(2)
/// tells whether a connection is waiting. If another process takes it in between, the alarm ends
/// the wait. The alarm repeats, because it could ring before accept4 has begun to wait.
///
/// # Safety
/// Only in the child of a fork: it takes SIGALRM and the interval timer.
unsafe fn accept(listener: RawFd, peer: &mut libc::sockaddr_storage) -> i32 {
    const SECOND: libc::timeval = libc::timeval {
        tv_sec: 1,
        tv_usec: 0,
    };
    const NEVER: libc::timeval = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    extern "C" fn ring(_: i32) {}
    // SAFETY: system calls with pointers to local variables. sigaction without SA_RESTART lets the
    // alarm interrupt accept4; execve(2) restores the signal's default action.
    unsafe {
        let mut waiting = libc::pollfd {
            fd: listener,
            events: libc::POLLIN,
            revents: 0,
        };
        if libc::poll(&raw mut waiting, 1, 0) <= 0 {
            set_errno(libc::EAGAIN);
            return -1;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ring as extern "C" fn(i32) as libc::sighandler_t;
        let mut alarm = libc::itimerval {
            it_interval: SECOND,
            it_value: SECOND,
        };
        if libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) < 0
            || libc::setitimer(libc::ITIMER_REAL, &raw const alarm, std::ptr::null_mut()) < 0
        {
            return -1;
        }
        let mut size = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let connection = libc::accept4(
            listener,
            (&raw mut *peer).cast(),
            &raw mut size,
            libc::SOCK_CLOEXEC,
        );
        let outcome = if connection < 0 && errno() == libc::EINTR {
            libc::EAGAIN
        } else {
            errno()
        };
        alarm = libc::itimerval {
            it_interval: NEVER,
            it_value: NEVER,
        };
        libc::setitimer(libc::ITIMER_REAL, &raw const alarm, std::ptr::null_mut());
        set_errno(outcome);
        connection
    }
}

/// Writes a number in decimal and ends the string there. No leading zeros: sd_listen_fds(3) would
/// read an octal number.
///
/// # Safety
/// `to` points to [`PID_DIGITS`] bytes and one more that may be written.
unsafe fn write_number(to: *mut u8, number: u32) {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = number;
    for place in (0..digits).rev() {
        // SAFETY: a u32 has at most PID_DIGITS digits.
        unsafe { *to.add(place) = b'0' + (rest % 10) as u8 };
        rest /= 10;
    }
    // SAFETY: one byte past the last digit, as the contract guarantees.
    unsafe { *to.add(digits) = 0 };
}

fn set_errno(number: i32) {
    // SAFETY: this thread's errno is always writable.
    unsafe { *libc::__errno_location() = number };
}

pub(super) fn errno() -> i32 {
    // SAFETY: this thread's errno is always readable.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_anonymous_keyring_of_the_user_is_kept() {
        let is_kept = |text: &str| is_anonymous_keyring_of(text.as_bytes(), 2001);
        assert!(is_kept("keyring;2001;2001;3f130000;_ses"));
        for other in [
            "keyring;0;0;3f130000;_ses",
            "keyring;2001;2001;3f130000;_uid_ses.2001",
            "keyring;20010;2001;3f130000;_ses",
            "keyring;2001;2001;3f130000;_ses.more",
            "user;2001;2001;3f130000;_ses",
            "keyring;2001",
            "",
        ] {
            assert!(!is_kept(other), "{other}");
        }
    }

    #[test]
    fn process_ids_are_written_without_leading_zeros() {
        for number in [1_u32, 9, 10, 12_345, u32::MAX] {
            let mut text = [b'x'; PID_DIGITS + 1];
            // SAFETY: PID_DIGITS + 1 bytes.
            unsafe { write_number(text.as_mut_ptr(), number) };
            let end = text.iter().position(|byte| *byte == 0).unwrap();
            assert_eq!(
                std::str::from_utf8(&text[..end]).unwrap(),
                number.to_string()
            );
        }
    }
}
