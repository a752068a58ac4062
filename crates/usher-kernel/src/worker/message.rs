//! What the keeper says to the starter, and what the starter tells. Both are the same program, started
//! one by the other, so the form has no version; it never leaves a socket that only they have.
//!
//! Numbers are little-endian, 32 bits unless said; a text or path is its length and its bytes; a list
//! is its length and its entries. With an order come two or three descriptors: the folder of the
//! cgroup, the listener, and the worker's standard error unless that is /dev/null.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::reaping::Ended;
use super::{Command, Entry, FileAccess, Stage};

/// Most bytes of a request: what a packet socket takes by default, less its own need.
pub const MAX_REQUEST: usize = 180 * 1024;
/// Bytes of a report.
pub const REPORT_SIZE: usize = 24;

/// What does not have the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message between keeper and starter is malformed")]
pub struct MalformedMessage;

/// What the keeper says.
#[derive(Debug, Clone)]
pub enum Request {
    /// Start workers.
    Order(Box<Order>),
    /// End all orders: they may not be what the policy says any more.
    End,
    /// Say something.
    Ping,
}

/// Workers that are to be started: one that takes the listener, or one for each connection that comes,
/// until nobody has come for a while.
#[derive(Debug, Clone)]
pub struct Order {
    /// By which reports name it.
    pub number: u64,
    /// How workers come into their cgroup.
    pub entry: Entry,
    /// Whether each accepts one connection, or one takes the listener.
    pub accepts: bool,
    /// How many of this order may live at once.
    pub most: u32,
    /// What the accounts were like when the user was looked up. The order ends when they are another.
    pub accounts: u64,
    /// What to start.
    pub command: Command,
}

const ORDER: u8 = 0;
const END: u8 = 1;
const PING: u8 = 2;

impl Request {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Order(order) => order.encode(),
            Self::End => vec![END],
            Self::Ping => vec![PING],
        }
    }

    /// From the bytes. Descriptors come beside them: [`Command::errors`] is none.
    ///
    /// # Errors
    /// [`MalformedMessage`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        match bytes {
            [END] => Ok(Self::End),
            [PING] => Ok(Self::Ping),
            [ORDER, order @ ..] => Ok(Self::Order(Box::new(Order::decode(order)?))),
            _ => Err(MalformedMessage),
        }
    }
}

impl Order {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        out.push(ORDER);
        out.extend(self.number.to_le_bytes());
        out.push(u8::from(self.entry == Entry::Enters));
        out.push(u8::from(self.accepts));
        put(&mut out, self.most);
        out.extend(self.accounts.to_le_bytes());
        let command = &self.command;
        put_path(&mut out, &command.program);
        put_list(&mut out, &command.arguments, |out, text| {
            put_bytes(out, text.as_bytes());
        });
        put_list(&mut out, &command.environment, |out, (name, value)| {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        });
        put(&mut out, command.uid);
        put(&mut out, command.gid);
        put_list(&mut out, &command.groups, |out, group| put(out, *group));
        put_path(&mut out, &command.directory);
        put_bytes(&mut out, command.name.as_bytes());
        put(&mut out, u32::from(command.umask));
        out.push(u8::from(command.setuid));
        out.push(u8::from(command.pam_session));
        out.push(u8::from(command.files.is_some()));
        if let Some(files) = &command.files {
            put_list(&mut out, files, |out, (path, access)| {
                out.push(u8::from(*access == FileAccess::Write));
                put_path(out, path);
            });
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut rest = Rest(bytes);
        let number = u64::from_le_bytes(rest.array()?);
        let entry = if rest.flag()? {
            Entry::Enters
        } else {
            Entry::Made
        };
        let order = Self {
            number,
            entry,
            accepts: rest.flag()?,
            most: rest.number()?,
            accounts: u64::from_le_bytes(rest.array()?),
            command: Command {
                program: rest.path()?,
                arguments: rest.list(Rest::text)?,
                environment: rest.list(|rest| Ok((rest.text()?, rest.text()?)))?,
                uid: rest.number()?,
                gid: rest.number()?,
                groups: rest.list(Rest::number)?,
                directory: rest.path()?,
                name: rest.text()?,
                umask: u16::try_from(rest.number()?)
                    .ok()
                    .filter(|umask| *umask <= 0o777)
                    .ok_or(MalformedMessage)?,
                setuid: rest.flag()?,
                pam_session: rest.flag()?,
                files: if rest.flag()? {
                    Some(rest.list(|rest| {
                        let access = if rest.flag()? {
                            FileAccess::Write
                        } else {
                            FileAccess::Read
                        };
                        Ok((rest.path()?, access))
                    })?)
                } else {
                    None
                },
                errors: None,
            },
        };
        if rest.0.is_empty() {
            Ok(order)
        } else {
            Err(MalformedMessage)
        }
    }
}

/// What the starter tells. A packet has one report or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The order's; 0 for [`Told::Ended`], which is told of a process, and [`Told::Pong`].
    pub number: u64,
    /// Its process; 0 when there is none.
    pub pid: u32,
    /// What is told.
    pub told: Told,
}

/// See [`Report`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// There is a worker: it is the user and has accepted its connection, or has executed its program.
    Begun,
    /// See [`super::Progress::Stillborn`]: workers of this order enter their cgroup from now on.
    Stillborn,
    /// It has ended. Comes after all else that is told of it.
    Ended(Ended),
    /// The answer to [`Request::Ping`].
    Pong,
    /// The order is over: it is done, nobody has come for a while, or it was ended.
    Over,
    /// The order is over: a worker has failed, with this errno.
    Failed(Stage, i32),
    /// The order is over: a worker was killed at once, though it entered its cgroup.
    Killed,
    /// The order is over: a worker was killed, as it took too long.
    Late,
    /// The order is over: no process could be made, with this errno.
    NotMade(i32),
}

impl Told {
    /// Whether it is the last that is told of an order.
    #[must_use]
    pub fn is_last(self) -> bool {
        !matches!(
            self,
            Self::Begun | Self::Stillborn | Self::Ended(_) | Self::Pong
        )
    }
}

impl Report {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; REPORT_SIZE] {
        let (kind, first, second) = match self.told {
            Told::Begun => (1, 0, 0),
            Told::Over => (2, 0, 0),
            Told::Stillborn => (3, 0, 0),
            Told::Failed(stage, errno) => (4, stage as i32, errno),
            Told::Late => (5, 0, 0),
            Told::NotMade(errno) => (6, errno, 0),
            Told::Ended(Ended {
                code: Some(code), ..
            }) => (7, code, 0),
            Told::Ended(Ended { signal, .. }) => (8, signal.unwrap_or_default(), 0),
            Told::Killed => (9, 0, 0),
            Told::Pong => (10, 0, 0),
        };
        let mut out = [0; REPORT_SIZE];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..12].copy_from_slice(&self.pid.to_le_bytes());
        out[12..16].copy_from_slice(&i32::to_le_bytes(kind));
        out[16..20].copy_from_slice(&i32::to_le_bytes(first));
        out[20..].copy_from_slice(&i32::to_le_bytes(second));
        out
    }

    /// From the bytes.
    ///
    /// # Errors
    /// [`MalformedMessage`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let mut rest = Rest(bytes);
        let number = u64::from_le_bytes(rest.array()?);
        let pid = rest.number()?;
        let [kind, first, second] =
            [rest.number()?, rest.number()?, rest.number()?].map(u32::cast_signed);
        if !rest.0.is_empty() {
            return Err(MalformedMessage);
        }
        let ended = |code, signal| Told::Ended(Ended { code, signal });
        let told = match kind {
            1 => Told::Begun,
            2 => Told::Over,
            3 => Told::Stillborn,
            4 => {
                let stage = u8::try_from(first).map_err(|_| MalformedMessage)?;
                Told::Failed(Stage::from_number(stage), second)
            }
            5 => Told::Late,
            6 => Told::NotMade(first),
            7 => ended(Some(first), None),
            8 => ended(None, Some(first)),
            9 => Told::Killed,
            10 => Told::Pong,
            _ => return Err(MalformedMessage),
        };
        Ok(Self { number, pid, told })
    }
}

/// A length that no packet has room for is refused when the packet is sent.
fn put_length(out: &mut Vec<u8>, length: usize) {
    put(out, u32::try_from(length).unwrap_or(u32::MAX));
}

fn put(out: &mut Vec<u8>, number: u32) {
    out.extend(number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend(bytes);
}

fn put_path(out: &mut Vec<u8>, path: &Path) {
    put_bytes(out, path.as_os_str().as_bytes());
}

fn put_list<T>(out: &mut Vec<u8>, list: &[T], mut each: impl FnMut(&mut Vec<u8>, &T)) {
    put_length(out, list.len());
    for entry in list {
        each(out, entry);
    }
}

/// What is still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedMessage> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedMessage> {
        self.take(N)?.try_into().map_err(|_| MalformedMessage)
    }

    fn number(&mut self) -> Result<u32, MalformedMessage> {
        self.array().map(u32::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, MalformedMessage> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err(MalformedMessage),
        }
    }

    fn bytes(&mut self) -> Result<&'a [u8], MalformedMessage> {
        let length = self.number()?;
        self.take(usize::try_from(length).map_err(|_| MalformedMessage)?)
    }

    fn text(&mut self) -> Result<String, MalformedMessage> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| MalformedMessage)
    }

    fn path(&mut self) -> Result<PathBuf, MalformedMessage> {
        Ok(OsString::from_vec(self.bytes()?.to_vec()).into())
    }

    /// Each entry takes a byte at least, so a length that is a lie ends soon.
    fn list<T>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<T, MalformedMessage>,
    ) -> Result<Vec<T>, MalformedMessage> {
        let count = self.number()?;
        (0..count).map(|_| each(self)).collect()
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
                umask: 0o027,
                setuid: true,
                pam_session: false,
                files,
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
        let ended = |code, signal| Told::Ended(Ended { code, signal });
        for told in [
            Told::Begun,
            Told::Stillborn,
            Told::Pong,
            Told::Over,
            Told::Killed,
            Told::Failed(Stage::Files, libc::EACCES),
            Told::Late,
            Told::NotMade(libc::EAGAIN),
            ended(Some(0), None),
            ended(None, Some(34)),
        ] {
            let report = Report {
                number: 7,
                pid: 4_000_000,
                told,
            };
            let bytes = report.encode();
            assert_eq!(Report::decode(&bytes), Ok(report));
            for length in 0..bytes.len() {
                assert_eq!(Report::decode(&bytes[..length]), Err(MalformedMessage));
            }
        }
        assert_eq!(Report::decode(&[9; REPORT_SIZE]), Err(MalformedMessage));
    }
}
