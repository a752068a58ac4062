//! A connection to charon's control socket. Every operation has a time limit for its whole answer, and
//! every answer a limit of bytes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::message::{LARGEST_MESSAGE, MessageError, Section};
use crate::error::IkeError;

/// charon's socket, unless strongswan.conf names another.
pub const PATH: &str = "/run/charon.vici";

/// Limit of bytes of the messages that come before a confirmation, an event or the answer of a command.
const LARGEST_STREAM: usize = 16 << 20;

/// Limit of bytes of a list: enough for 24,000 IKE SAs with two pairs of SAs each. Its messages are read one
/// after the other and never kept.
const LARGEST_LIST: usize = 64 << 20;

const COMMAND: u8 = 0;
const ANSWER: u8 = 1;
const UNKNOWN_COMMAND: u8 = 2;
const REGISTER: u8 = 3;
const CONFIRMED: u8 = 5;
const UNKNOWN_EVENT: u8 = 6;
const EVENT: u8 = 7;

/// A connection to charon. After an error that does not
/// [leave it usable](IkeError::leaves_the_connection_usable) it must be dropped: an answer that comes
/// late would be taken for another's.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    limit: Duration,
    /// Received bytes of the next packets.
    received: Vec<u8>,
}

/// A packet of charon's.
enum Packet {
    Answer(Section),
    UnknownCommand,
    Confirmed,
    UnknownEvent,
    Event(Section),
}

impl Connection {
    /// Connects to the socket; `limit` holds for every operation from here on.
    ///
    /// # Errors
    /// [`IkeError::Absent`], also when charon has stopped taking connections.
    pub async fn open(path: &Path, limit: Duration) -> Result<Self, IkeError> {
        let absent = |source| IkeError::Absent {
            path: PathBuf::from(path),
            source,
        };
        let stream = match timeout(limit, UnixStream::connect(path)).await {
            Ok(stream) => stream.map_err(absent)?,
            Err(_) => return Err(absent(std::io::ErrorKind::TimedOut.into())),
        };
        Ok(Self {
            stream,
            limit,
            received: Vec::new(),
        })
    }

    /// Sets another limit for the operations from here on.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Sends charon a command and returns its answer. Events that come before it are dropped.
    ///
    /// # Errors
    /// [`IkeError::Refused`] when the answer is a refusal, [`IkeError::Unknown`], or that of the
    /// connection.
    pub async fn command(&mut self, command: &str, message: &Section) -> Result<Section, IkeError> {
        self.ask(command, message, LARGEST_STREAM, &mut drop).await
    }

    /// As [`Self::command`], for a command that sends events before its answer: hands each to `take`. charon
    /// sends only events that [`Self::register`] has asked for.
    ///
    /// # Errors
    /// As [`Self::command`]; some events may have been taken.
    pub async fn listing(
        &mut self,
        command: &str,
        message: &Section,
        mut take: impl FnMut(Section),
    ) -> Result<Section, IkeError> {
        self.ask(command, message, LARGEST_LIST, &mut take).await
    }

    /// Asks charon for these events from here on. Events that come before its confirmation are dropped.
    ///
    /// # Errors
    /// [`IkeError::Unknown`] for an event that it does not have, or that of the connection.
    pub async fn register(&mut self, event: &str) -> Result<(), IkeError> {
        self.limited(event, async |connection| {
            connection.send(REGISTER, event, &Section::new()).await?;
            let mut room = LARGEST_STREAM;
            loop {
                match connection.packet(&mut room).await? {
                    Packet::Confirmed => return Ok(()),
                    Packet::UnknownEvent => return Err(IkeError::Unknown(event.to_owned())),
                    Packet::Event(_) => {}
                    Packet::Answer(_) => return Err(MessageError::Unexpected(ANSWER).into()),
                    Packet::UnknownCommand => {
                        return Err(MessageError::Unexpected(UNKNOWN_COMMAND).into());
                    }
                }
            }
        })
        .await
    }

    /// Waits for the next event, without a limit of time. May be cancelled.
    ///
    /// # Errors
    /// The error of the connection.
    pub async fn event(&mut self) -> Result<Section, IkeError> {
        let mut room = LARGEST_STREAM;
        match self.packet(&mut room).await? {
            Packet::Event(message) => Ok(message),
            Packet::Answer(_) => Err(MessageError::Unexpected(ANSWER).into()),
            Packet::UnknownCommand => Err(MessageError::Unexpected(UNKNOWN_COMMAND).into()),
            Packet::Confirmed => Err(MessageError::Unexpected(CONFIRMED).into()),
            Packet::UnknownEvent => Err(MessageError::Unexpected(UNKNOWN_EVENT).into()),
        }
    }

    async fn limited<T>(
        &mut self,
        asked: &str,
        operation: impl AsyncFnOnce(&mut Self) -> Result<T, IkeError>,
    ) -> Result<T, IkeError> {
        let limit = self.limit;
        match timeout(limit, operation(self)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(IkeError::Silent {
                asked: asked.to_owned(),
                waited: limit,
            }),
        }
    }

    /// Sends a command and reads what comes, at most `room` bytes, up to its answer.
    async fn ask(
        &mut self,
        command: &str,
        message: &Section,
        room: usize,
        take: &mut impl FnMut(Section),
    ) -> Result<Section, IkeError> {
        self.limited(command, async |connection| {
            connection.send(COMMAND, command, message).await?;
            connection.answer(command, room, take).await
        })
        .await
    }

    async fn answer(
        &mut self,
        command: &str,
        mut room: usize,
        take: &mut impl FnMut(Section),
    ) -> Result<Section, IkeError> {
        loop {
            match self.packet(&mut room).await? {
                Packet::Answer(answer) => {
                    return match answer.text("success").as_deref() {
                        None | Some("yes") => Ok(answer),
                        Some(_) => Err(IkeError::Refused {
                            command: command.to_owned(),
                            reason: answer
                                .text("errmsg")
                                .unwrap_or_else(|| "it names no reason".to_owned()),
                        }),
                    };
                }
                Packet::UnknownCommand => return Err(IkeError::Unknown(command.to_owned())),
                Packet::Event(message) => take(message),
                Packet::Confirmed => return Err(MessageError::Unexpected(CONFIRMED).into()),
                Packet::UnknownEvent => return Err(MessageError::Unexpected(UNKNOWN_EVENT).into()),
            }
        }
    }

    async fn send(&mut self, kind: u8, name: &str, message: &Section) -> Result<(), IkeError> {
        let too_long = |_| MessageError::TooLong;
        let body = message.encode()?;
        let length = 2 + name.len() + body.len();
        if length > LARGEST_MESSAGE {
            return Err(MessageError::TooLong.into());
        }
        let mut packet = Zeroizing::new(Vec::with_capacity(4 + length));
        packet.extend(u32::try_from(length).map_err(too_long)?.to_be_bytes());
        packet.extend([kind, u8::try_from(name.len()).map_err(too_long)?]);
        packet.extend(name.as_bytes());
        packet.extend(body.as_slice());
        self.stream.write_all(&packet).await?;
        Ok(())
    }

    /// Reads the next packet. When it is cancelled nothing is lost. `room`: bytes that may still come.
    async fn packet(&mut self, room: &mut usize) -> Result<Packet, IkeError> {
        loop {
            if let Some(length) = self.received.first_chunk::<4>() {
                let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                if length > LARGEST_MESSAGE {
                    return Err(MessageError::TooLarge.into());
                }
                if self.received.len() >= 4 + length {
                    *room = room.checked_sub(4 + length).ok_or(MessageError::TooMuch)?;
                    let packet = Packet::decode(&self.received[4..4 + length]);
                    self.received.drain(..4 + length);
                    return Ok(packet?);
                }
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(IkeError::Ended);
            }
        }
    }
}

impl Packet {
    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let (kind, rest) = bytes.split_first().ok_or(MessageError::Truncated)?;
        match *kind {
            ANSWER => Section::decode(rest).map(Self::Answer),
            UNKNOWN_COMMAND => Ok(Self::UnknownCommand),
            CONFIRMED => Ok(Self::Confirmed),
            UNKNOWN_EVENT => Ok(Self::UnknownEvent),
            EVENT => {
                let (length, rest) = rest.split_first().ok_or(MessageError::Truncated)?;
                let (name, message) = rest
                    .split_at_checked((*length).into())
                    .ok_or(MessageError::Truncated)?;
                std::str::from_utf8(name).map_err(|_| MessageError::Name)?;
                Section::decode(message).map(Self::Event)
            }
            other => Err(MessageError::Unexpected(other)),
        }
    }
}
