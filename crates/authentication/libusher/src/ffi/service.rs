//! The calls of a service, for C. They take the listening socket's descriptor, as the paper's calls do, so
//! this module keeps the state of a listener by the number of its descriptor.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use rustix::io::{DupFlags, FdFlags};
use usher_base::address_bytes;

use super::fail;
use crate::service::{
    ConnectionInfo, FirstAccept, Reservation, ServicePort, accept, connection_info, is_nonblocking,
};
use crate::service_error::ServiceError;
use crate::table;

/// `USHER_ACCEPT_BY_USER`.
const ACCEPT_BY_USER: c_int = 1;
/// Limit of listeners of one process in a mode: the default limit of descriptors.
const LISTENERS: usize = 1024;

/// The state of a listener.
enum Listener {
    /// The listener is in the mode acceptByUser; with the last reserved user.
    ByUser(ServicePort, Option<Reservation>),
    /// This process has become the user, and the descriptor is the user's queue. It is non-blocking if the
    /// service's own listener was.
    Queue {
        /// The conversation in which the keeper has yet to be told of the first accepted connection.
        untold: Option<FirstAccept>,
        nonblocking: bool,
    },
}

static LISTENERS_OF_PROCESS: Mutex<Option<HashMap<RawFd, Listener>>> = Mutex::new(None);

/// A failure in the form for C.
pub(super) struct Failure(pub(super) String, pub(super) c_int);

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Self(error.to_string(), error.errno())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(error.to_string(), error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

fn with_table<T>(
    act: impl FnOnce(&mut HashMap<RawFd, Listener>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut table = table::lock(&LISTENERS_OF_PROCESS)?;
    act(table.get_or_insert_default())
}

pub(super) fn status_for_c(result: Result<c_int, Failure>) -> c_int {
    result.unwrap_or_else(|Failure(text, errno)| fail(&text, errno))
}

/// A call that makes no sense: in the state of its socket, or with these arguments.
pub(super) fn invalid(text: impl ToString) -> Failure {
    Failure(text.to_string(), libc::EINVAL)
}

fn not_in_the_mode() -> Failure {
    invalid("the socket is not in the mode USHER_ACCEPT_BY_USER, or this process has become a user")
}

/// A descriptor that a C caller lends for the time of the call.
pub(super) fn opened<'a>(descriptor: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if descriptor < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: not -1. The caller keeps it open during the call, as for any system call; where it is
    // not open, the kernel says EBADF in the next line.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::io::fcntl_getfd(borrowed)?;
    Ok(borrowed)
}

/// See usher_accept_by_user(3).
#[unsafe(no_mangle)]
pub extern "C" fn usher_set_accept_mode(listener: c_int, mode: c_int) -> c_int {
    status_for_c(set_accept_mode(listener, mode).map(|()| 0))
}

fn set_accept_mode(listener: c_int, mode: c_int) -> Result<(), Failure> {
    if mode != ACCEPT_BY_USER {
        return Err(invalid(format!("unknown accept mode {mode}")));
    }
    let by_user = ServicePort::of_socket(opened(listener)?)?;
    with_table(|table| {
        // Forgets listeners whose descriptors are closed. A number in use again may be another file's.
        table.retain(|&known, _| opened(known).is_ok());
        if table.len() >= LISTENERS && !table.contains_key(&listener) {
            return Err(Failure(
                format!("{LISTENERS} listeners of this process are already in a mode"),
                libc::EMFILE,
            ));
        }
        table.insert(listener, Listener::ByUser(by_user, None));
        Ok(())
    })
}

/// See usher_accept_by_user(3).
#[unsafe(no_mangle)]
pub extern "C" fn usher_pre_accept(listener: c_int) -> c_int {
    status_for_c(pre_accept(listener).map(|()| 0))
}

fn pre_accept(listener: c_int) -> Result<(), Failure> {
    opened(listener)?;
    let by_user = with_table(|table| match table.get(&listener) {
        Some(Listener::ByUser(by_user, _)) => Ok(*by_user),
        _ => Err(not_in_the_mode()),
    })?;
    let reserved = by_user.pre_accept()?;
    with_table(|table| match table.get_mut(&listener) {
        Some(Listener::ByUser(_, reservation)) => {
            *reservation = Some(reserved);
            Ok(())
        }
        _ => Err(not_in_the_mode()),
    })
}

/// See usher_accept_by_user(3).
#[unsafe(no_mangle)]
pub extern "C" fn usher_set_net_user(listener: c_int) -> c_int {
    status_for_c(set_net_user(listener).map(|()| 0))
}

fn set_net_user(listener: c_int) -> Result<(), Failure> {
    let socket = opened(listener)?;
    let nonblocking = is_nonblocking(socket)?;
    let cloexec = rustix::io::fcntl_getfd(socket)?.contains(FdFlags::CLOEXEC);
    let reservation = with_table(|table| match table.get_mut(&listener) {
        Some(Listener::ByUser(_, reservation)) => reservation
            .take()
            .ok_or_else(|| invalid("nothing is reserved: call usher_pre_accept first")),
        Some(Listener::Queue { .. }) => Err(Failure(
            "the process has already become a user".into(),
            libc::EPERM,
        )),
        None => Err(not_in_the_mode()),
    })?;
    let queue = match reservation.claim() {
        Ok(queue) => queue,
        Err(error) => {
            let used = matches!(
                error,
                ServiceError::Shared
                    | ServiceError::Prepared
                    | ServiceError::Change(_)
                    | ServiceError::ChangedInPart { .. }
            );
            if !used && error.errno() != libc::ESTALE {
                // The reservation still stands: the caller may remove the cause and call again.
                with_table(|table| {
                    if let Some(Listener::ByUser(_, kept)) = table.get_mut(&listener) {
                        *kept = Some(reservation);
                    }
                    Ok(())
                })?;
            }
            return Err(error.into());
        }
    };
    // From here on the descriptor is the user's queue, in this process.
    let (queue, first_accept) = queue.into_parts();
    replace(listener, &queue, cloexec).map_err(|error| {
        Failure(
            format!("this process has changed in part and must end: {error}"),
            libc::ENOTRECOVERABLE,
        )
    })?;
    with_table(|table| {
        let known = Listener::Queue {
            untold: first_accept,
            nonblocking,
        };
        table.insert(listener, known);
        Ok(())
    })
}

/// Makes `listener` the same socket as `queue`.
fn replace(listener: RawFd, queue: &OwnedFd, cloexec: bool) -> rustix::io::Result<()> {
    let flags = if cloexec {
        DupFlags::CLOEXEC
    } else {
        DupFlags::empty()
    };
    // SAFETY: the caller's open listener, which stays the caller's: it is not closed here.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(listener) });
    rustix::io::dup3(queue, &mut place, flags)
}

/// See usher_accept_by_user(3).
///
/// # Safety
/// `address` and `length` are both null, or point to a socket address of that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_accept_by_user(
    listener: c_int,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) -> c_int {
    status_for_c(accept_by_user(listener).map(|(connection, from)| {
        if !address.is_null() && !length.is_null() {
            // SAFETY: not null, and what they point to is this function's contract.
            unsafe { put_address(from, address, length) };
        }
        connection.into_raw_fd()
    }))
}

fn accept_by_user(listener: c_int) -> Result<(OwnedFd, SocketAddr), Failure> {
    let socket = opened(listener)?;
    let nonblocking = with_table(|table| match table.get(&listener) {
        Some(Listener::Queue { nonblocking, .. }) => Ok(*nonblocking),
        _ => Err(invalid(
            "this process has not become a user: call usher_set_net_user first",
        )),
    })?;
    let accepted = accept(socket, nonblocking)?;
    with_table(|table| {
        if let Some(Listener::Queue { untold, .. }) = table.get_mut(&listener)
            && let Some(untold) = untold.take()
        {
            untold.tell();
        }
        Ok(())
    })?;
    Ok(accepted)
}

/// Writes an address as accept(2) does: cut to the room that there is, with its full length. The queue is an
/// AF_INET6 socket, so an IPv4 peer appears as `::ffff:a.b.c.d`.
///
/// # Safety
/// `length` points to the bytes that `address` has room for.
unsafe fn put_address(
    from: SocketAddr,
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
) {
    let scope = match from {
        SocketAddr::V6(from) => from.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let whole = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: from.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr {
            s6_addr: address_bytes(from.ip()),
        },
        sin6_scope_id: scope,
    };
    let size = size_of_val(&whole);
    // SAFETY: as many bytes as fit, from one whole structure to memory of the caller's that by its
    // contract has room for them; bytes have no alignment.
    unsafe {
        let room = usize::try_from(*length).unwrap_or(0).min(size);
        std::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), address.cast::<u8>(), room);
        *length = size as libc::socklen_t;
    }
}

/// `struct usher_connection` of usher.h.
#[repr(C)]
pub struct CConnection {
    uid: libc::uid_t,
    user: [c_char; 33],
    service: [c_char; 33],
    host: [c_char; 64],
    key_fingerprint: [c_char; 52],
    principals: [c_char; 512],
    opened: i64,
    expires: i64,
}

/// See usher_accept_by_user(3).
///
/// # Safety
/// `info` is null or points to `size` bytes, aligned for `struct usher_connection`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn usher_connection_info(
    connection: c_int,
    info: *mut CConnection,
    size: usize,
) -> c_int {
    if info.is_null() || size != size_of::<CConnection>() {
        return fail(
            "not the size of struct usher_connection: are header and library of one version?",
            libc::EINVAL,
        );
    }
    status_for_c(
        opened(connection)
            .and_then(|connection| Ok(connection_info(connection)?))
            .map(|known| {
                // SAFETY: not null, aligned and of this size by this function's contract.
                unsafe { info.write(CConnection::from(&known)) };
                0
            }),
    )
}

impl From<&ConnectionInfo> for CConnection {
    fn from(info: &ConnectionInfo) -> Self {
        Self {
            uid: info.uid,
            user: text_for_c(info.user.as_str()),
            service: text_for_c(info.service.as_str()),
            host: text_for_c(info.host.as_str()),
            key_fingerprint: text_for_c(&info.key_fingerprint.to_string()),
            principals: text_for_c(&info.principals.join(",")),
            opened: i64::try_from(info.opened).unwrap_or(i64::MAX),
            expires: i64::try_from(info.expires).unwrap_or(i64::MAX),
        }
    }
}

/// Text with its ending zero. Names are validated to be shorter than their fields.
fn text_for_c<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    for (place, byte) in bytes[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Prints the sizes and offsets that the compiler of C finds in the header.
    const PROGRAM: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <usher.h>

#define FIELD(name) printf(#name " %zu %zu\n", offsetof(struct usher_connection, name), \
	sizeof(((struct usher_connection *)0)->name))

int main(void)
{
	printf("whole %zu %zu\n", sizeof(struct usher_connection), _Alignof(struct usher_connection));
	FIELD(uid);
	FIELD(user);
	FIELD(service);
	FIELD(host);
	FIELD(key_fingerprint);
	FIELD(principals);
	FIELD(opened);
	FIELD(expires);
	printf("mode %d\n", USHER_ACCEPT_BY_USER);
	return 0;
}
"#;

    macro_rules! fields {
        ($($name:ident: $type:ty),*) => {
            vec![$(format!(
                "{} {} {}",
                stringify!($name),
                offset_of!(CConnection, $name),
                size_of::<$type>()
            )),*]
        };
    }

    #[test]
    fn c_and_rust_agree_on_the_structure_and_the_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
        std::fs::write(&source, PROGRAM).unwrap();
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../include");
        let compiled = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
            .args([&include, Path::new("-o"), &program, &source])
            .status()
            .unwrap();
        assert!(compiled.success());
        let printed = Command::new(&program).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        let mut expected = vec![format!(
            "whole {} {}",
            size_of::<CConnection>(),
            align_of::<CConnection>()
        )];
        expected.extend(fields!(
            uid: u32,
            user: [c_char; 33],
            service: [c_char; 33],
            host: [c_char; 64],
            key_fingerprint: [c_char; 52],
            principals: [c_char; 512],
            opened: i64,
            expires: i64
        ));
        expected.push(format!("mode {ACCEPT_BY_USER}"));
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    }

    /// The table's lock is held for ever, as in a child that was forked while another thread held it.
    #[test]
    fn a_table_that_nobody_lets_go_of_is_an_error_and_no_hang() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        let errno = || accept_by_user(file.as_raw_fd()).map_err(|Failure(_, errno)| errno);
        let held = LISTENERS_OF_PROCESS.lock().unwrap();
        let waiting = std::thread::scope(|scope| scope.spawn(|| errno().unwrap_err()).join());
        assert_eq!(waiting.unwrap(), libc::EDEADLK);
        drop(held);
        assert_eq!(errno().unwrap_err(), libc::EINVAL);
    }

    #[test]
    fn text_ends_in_a_zero_whatever_its_length() {
        assert_eq!(
            text_for_c::<4>("ab"),
            [b'a' as c_char, b'b' as c_char, 0, 0]
        );
        assert_eq!(
            text_for_c::<4>("abcd"),
            [b'a', b'b', b'c', 0].map(|byte| byte as c_char)
        );
    }
}
