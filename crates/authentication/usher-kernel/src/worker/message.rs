//! Messages between the keeper and the starter. Both are the same program, and one starts the
//! other, so the format has no version; it never leaves the socket between them.
//!
//! The codec is the one of all other messages. An order carries two or three descriptors: the
//! folder of the cgroup, the listener, and the worker's standard error unless that is /dev/null.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use usher_base::DecodeError;
use usher_base::codec::{
    self, Codec, List, Reader, address_bytes, fields, messages, put_string, socket_address,
};

use super::reaping::Ended;
use super::{Command, Entry, FileAccess, Stage};

/// Largest request in bytes: the default limit of a packet socket, less its overhead.
pub const MAX_REQUEST: usize = 180 * 1024;
/// Size of a report in bytes.
pub const REPORT_SIZE: usize = 42;

messages! {
    /// A message from the keeper.
    #[derive(Debug, Clone)]
    pub enum Request {
        /// Start workers.
        0 => Order(order: Box<Order>),
        /// End all orders, because the policy may have changed.
        1 => End,
        /// Answer with [`Event::Pong`].
        2 => Ping,
    }
}

/// An order for workers: one that takes the listener, or one for each arriving connection until
/// none has come for a while.
#[derive(Debug, Clone)]
pub struct Order {
    /// The order's number, by which reports name it.
    pub number: u64,
    /// How workers come into their cgroup.
    pub entry: Entry,
    /// True: each worker accepts one connection. False: one worker takes the listener.
    pub accepts: bool,
    /// The limit of this order's living workers.
    pub most: u32,
    /// The limit of all workers of the order: with the last of them the order is over, even if more
    /// connections come.
    pub total: Option<u32>,
    /// The state of the accounts when the user was looked up. The order ends when it changes.
    pub accounts: u64,
    /// The command to start.
    pub command: Command,
}

impl Request {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Decodes the bytes. Descriptors come separately: [`Command::errors`] is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        codec::decode(MAX_REQUEST, bytes)
    }
}

fields! {
    Order {
        number: u64,
        entry: Entry,
        accepts: bool,
        most: u32,
        total: Option<u32> as Optional<u32>,
        accounts: u64,
        command: Command,
    }
}

fields! {
    Command {
        program: PathBuf as Plain,
        arguments: Vec<String> as List<Plain>,
        environment: Vec<(String, String)> as List<Plain>,
        uid: u32,
        gid: u32,
        groups: Vec<u32> as List<u32>,
        directory: PathBuf as Plain,
        name: String as Plain,
        label: Option<String> as Optional<Plain>,
        umask: u16 as Plain,
        setuid: bool,
        pam_session: bool,
        files: Option<Vec<(PathBuf, FileAccess)>> as Optional<List<Plain>>,
        refused: Vec<IpAddr> as List<Plain>,
        only: Option<IpAddr> as Optional<Plain>,
        errors: Option<Arc<OwnedFd>> as Beside,
    }
}

impl Codec for Entry {
    fn put(value: &Self, out: &mut Vec<u8>) {
        bool::put(&(*value == Self::Enters), out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError> {
        let enters = bool::read(reader, field)?;
        Ok(if enters { Self::Enters } else { Self::Made })
    }
}

/// Codec for types of the standard library.
struct Plain;

impl Codec<String> for Plain {
    fn put(value: &String, out: &mut Vec<u8>) {
        put_string(out, value.as_bytes());
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<String, DecodeError> {
        let bytes = reader.string(MAX_REQUEST)?.to_vec();
        String::from_utf8(bytes).map_err(|_| DecodeError::Malformed { field })
    }
}

impl Codec<PathBuf> for Plain {
    fn put(value: &PathBuf, out: &mut Vec<u8>) {
        put_string(out, value.as_os_str().as_bytes());
    }

    fn read(reader: &mut Reader<'_>, _: &'static str) -> Result<PathBuf, DecodeError> {
        Ok(OsString::from_vec(reader.string(MAX_REQUEST)?.to_vec()).into())
    }
}

/// IPv4 addresses as IPv4-mapped ones.
impl Codec<IpAddr> for Plain {
    fn put(value: &IpAddr, out: &mut Vec<u8>) {
        out.extend(address_bytes(*value));
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<IpAddr, DecodeError> {
        let bytes = <[u8; 16]>::read(reader, field)?;
        Ok(IpAddr::from(bytes).to_canonical())
    }
}

impl Codec<(String, String)> for Plain {
    fn put((name, value): &(String, String), out: &mut Vec<u8>) {
        Self::put(name, out);
        Self::put(value, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<(String, String), DecodeError> {
        Ok((Self::read(reader, field)?, Self::read(reader, field)?))
    }
}

/// A file mode creation mask.
impl Codec<u16> for Plain {
    fn put(value: &u16, out: &mut Vec<u8>) {
        u16::put(value, out);
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<u16, DecodeError> {
        let umask = u16::read(reader, field)?;
        (umask <= 0o777)
            .then_some(umask)
            .ok_or(DecodeError::Malformed { field })
    }
}

impl Codec<(PathBuf, FileAccess)> for Plain {
    fn put((path, access): &(PathBuf, FileAccess), out: &mut Vec<u8>) {
        bool::put(&(*access == FileAccess::Write), out);
        Self::put(path, out);
    }

    fn read(
        reader: &mut Reader<'_>,
        field: &'static str,
    ) -> Result<(PathBuf, FileAccess), DecodeError> {
        let access = if bool::read(reader, field)? {
            FileAccess::Write
        } else {
            FileAccess::Read
        };
        Ok((Self::read(reader, field)?, access))
    }
}

/// A bool, and the value in the form `F` if there is one.
struct Optional<F>(PhantomData<F>);

impl<T, F: Codec<T>> Codec<Option<T>> for Optional<F> {
    fn put(value: &Option<T>, out: &mut Vec<u8>) {
        bool::put(&value.is_some(), out);
        if let Some(value) = value {
            F::put(value, out);
        }
    }

    fn read(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<T>, DecodeError> {
        let is_some = bool::read(reader, field)?;
        is_some.then(|| F::read(reader, field)).transpose()
    }
}

/// Codec for a descriptor, which travels beside the bytes.
struct Beside;

impl<T> Codec<Option<T>> for Beside {
    fn put(_: &Option<T>, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>, _: &'static str) -> Result<Option<T>, DecodeError> {
        Ok(None)
    }
}

/// A report of the starter. A packet has one or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The order's number; 0 for [`Event::Ended`], which concerns a process, and for [`Event::Pong`].
    pub number: u64,
    /// The worker's process id; 0 if there is no process.
    pub pid: u32,
    /// The event.
    pub event: Event,
}

/// The content of a [`Report`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A worker exists. It has executed its program, or it is the user and has accepted a connection from
    /// this client's endpoint.
    Begun(Option<SocketAddr>),
    /// A child was killed before it had done anything: later workers of this order enter their cgroup
    /// themselves ([`super::Entry`]).
    Stillborn,
    /// The worker has ended. This is the last report about it.
    Ended(Ended),
    /// The answer to [`Request::Ping`].
    Pong,
    /// The order is over: it is done, no connection has come for a while, or the keeper ended it.
    Over,
    /// The order is over: a worker has failed, with this errno.
    Failed(Stage, i32),
    /// The order is over: a worker was killed at once, although it had entered its cgroup.
    Killed,
    /// The order is over: a worker was killed because it took too long.
    Late,
    /// The order is over: making a process failed with this errno.
    NotMade(i32),
}

impl Event {
    /// Whether this is the last report about an order.
    #[must_use]
    pub fn is_last(self) -> bool {
        !matches!(
            self,
            Self::Begun(_) | Self::Stillborn | Self::Ended(_) | Self::Pong
        )
    }
}

impl Report {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPORT_SIZE] {
        let (kind, first, second) = match self.event {
            Event::Begun(_) => (1, 0, 0),
            Event::Over => (2, 0, 0),
            Event::Stillborn => (3, 0, 0),
            Event::Failed(stage, errno) => (4, stage as i32, errno),
            Event::Late => (5, 0, 0),
            Event::NotMade(errno) => (6, errno, 0),
            Event::Ended(Ended {
                code: Some(code), ..
            }) => (7, code, 0),
            Event::Ended(Ended { signal, .. }) => (8, signal.unwrap_or_default(), 0),
            Event::Killed => (9, 0, 0),
            Event::Pong => (10, 0, 0),
        };
        let mut out = [0; REPORT_SIZE];
        out[..8].copy_from_slice(&self.number.to_be_bytes());
        out[8..12].copy_from_slice(&self.pid.to_be_bytes());
        out[12..16].copy_from_slice(&i32::to_be_bytes(kind));
        out[16..20].copy_from_slice(&i32::to_be_bytes(first));
        out[20..24].copy_from_slice(&i32::to_be_bytes(second));
        if let Event::Begun(Some(client)) = self.event {
            out[24..40].copy_from_slice(&address_bytes(client.ip()));
            out[40..].copy_from_slice(&client.port().to_be_bytes());
        }
        out
    }

    /// Decodes the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::bounded(bytes, REPORT_SIZE)?;
        let number = u64::read(&mut reader, "number")?;
        let pid = u32::read(&mut reader, "pid")?;
        let kind = i32::read(&mut reader, "kind")?;
        let first = i32::read(&mut reader, "first")?;
        let second = i32::read(&mut reader, "second")?;
        let (address, port) = (reader.array()?, reader.u16()?);
        reader.finish()?;
        let ended = |code, signal| Event::Ended(Ended { code, signal });
        let event = match kind {
            1 => Event::Begun(socket_address(address, port)),
            2 => Event::Over,
            3 => Event::Stillborn,
            4 => {
                let stage =
                    u8::try_from(first).map_err(|_| DecodeError::Malformed { field: "stage" })?;
                Event::Failed(Stage::from_number(stage), second)
            }
            5 => Event::Late,
            6 => Event::NotMade(first),
            7 => ended(Some(first), None),
            8 => ended(None, Some(first)),
            9 => Event::Killed,
            10 => Event::Pong,
            _ => return Err(DecodeError::UnknownType),
        };
        Ok(Self { number, pid, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(files: Option<Vec<(PathBuf, FileAccess)>>) -> Request {
        Request::Order(Box::new(Order {
            number: 1 << 40,
            entry: Entry::Enters,
            accepts: true,
            most: 64,
            total: Some(2),
            accounts: 1 << 50,
            command: Command {
                program: "/bin/sh".into(),
                arguments: vec!["-c".into(), String::new()],
                environment: vec![("HOME".into(), "/home/a b".into())],
                uid: 2001,
                gid: 2002,
                groups: vec![2002, 3000],
                directory: OsString::from_vec(b"/home/\xff".to_vec()).into(),
                name: "imap".into(),
                label: Some("test/secret".into()),
                umask: 0o027,
                setuid: true,
                pam_session: true,
                files,
                refused: vec![
                    [192, 0, 2, 1].into(),
                    [0x2001_u16, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
                ],
                only: Some([10, 0, 0, 1].into()),
                errors: None,
            },
        }))
    }

    #[test]
    fn requests_come_back_as_they_were_and_no_part_of_one_does() {
        let files = vec![
            ("/etc".into(), FileAccess::Read),
            ("/srv".into(), FileAccess::Write),
        ];
        let orders = [None, Some(Vec::new()), Some(files)].map(order);
        for request in orders.into_iter().chain([Request::End, Request::Ping]) {
            let mut bytes = request.encode();
            let decoded = Request::decode(&bytes).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{request:?}"));
            for length in 0..bytes.len() {
                Request::decode(&bytes[..length]).unwrap_err();
            }
            bytes.push(0);
            Request::decode(&bytes).unwrap_err();
        }
    }

    #[test]
    fn reports_come_back_as_they_were_and_no_part_of_one_does() {
        let ended = |code, signal| Event::Ended(Ended { code, signal });
        for event in [
            Event::Begun(None),
            Event::Begun(Some(([192, 0, 2, 1], 40_000).into())),
            Event::Stillborn,
            Event::Pong,
            Event::Over,
            Event::Killed,
            Event::Failed(Stage::Files, libc::EACCES),
            Event::Late,
            Event::NotMade(libc::EAGAIN),
            ended(Some(0), None),
            ended(None, Some(34)),
        ] {
            let report = Report {
                number: 7,
                pid: 4_000_000,
                event,
            };
            let bytes = report.encode();
            assert_eq!(Report::decode(&bytes), Ok(report));
            for length in 0..bytes.len() {
                assert_eq!(
                    Report::decode(&bytes[..length]),
                    Err(DecodeError::Truncated)
                );
            }
        }
        assert_eq!(
            Report::decode(&[9; REPORT_SIZE]),
            Err(DecodeError::UnknownType)
        );
    }
}
