//! Requests to the kernel's IPsec, and its messages about changes (netlink, NETLINK_XFRM).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    DecodeError, ErrorBuffer, NLM_F_ACK, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_xfrm::constants::{
    AF_INET, AF_INET6, XFRM_MSG_ACQUIRE, XFRM_MSG_DELPOLICY, XFRM_MSG_NEWAE, XFRM_MSG_NEWPOLICY,
    XFRM_MSG_NEWSA, XFRM_MSG_UPDPOLICY, XFRMNLGRP_ACQUIRE, XFRMNLGRP_POLICY,
};
use netlink_packet_xfrm::policy::{DelGetMessage, GetSpdInfoMessage, NewSpdInfoMessage};
use netlink_packet_xfrm::state::GetDumpMessage;
use netlink_packet_xfrm::{
    Address, AsyncEventId, GetAsyncEventMessage, Lifetime, NewAsyncEventMessage, UserSaId,
    UserSaInfo, XFRM_USER_SA_INFO_LEN, XfrmAttrs, XfrmMessage,
};
use netlink_sys::protocols::NETLINK_XFRM;
use netlink_sys::{Socket, SocketAddr};
use rustix::net::{RecvFlags, recv};
use zeroize::Zeroizing;

use crate::error::IpsecError;
use crate::marks::MarkMask;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// A socket for requests.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Socket,
    /// The address of the socket. Requests have it, and the kernel repeats it in messages about the
    /// changes that they ask for. Other programs that may change the SPD can write it into their
    /// requests, too.
    port: u32,
    sequence: u32,
}

impl Channel {
    /// Opens a socket for the SPD of the caller's network namespace.
    pub fn open() -> Result<Self, IpsecError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_XFRM)?;
            let address = socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok((socket, address.port_number()))
        };
        let opened = open();
        let (socket, port) =
            opened.map_err(IpsecError::netlink("open the kernel's IPsec interface"))?;
        Ok(Self {
            socket,
            port,
            sequence: 0,
        })
    }

    /// The address of the socket.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Makes a request and waits for the kernel's confirmation.
    pub fn request(&mut self, what: &'static str, message: XfrmMessage) -> Result<(), IpsecError> {
        self.send(what, message, NLM_F_REQUEST | NLM_F_ACK)?;
        let mut error = None;
        self.receive(what, |payload| match payload {
            NetlinkPayload::Error(answer) => {
                error = answer.code.map(|_| answer.to_io());
                Ok(true)
            }
            _ => Ok(false),
        })?;
        error.map_or(Ok(()), |error| Err(IpsecError::netlink(what)(error)))
    }

    /// How the kernel searches the SPD.
    pub fn spd_info(&mut self) -> Result<NewSpdInfoMessage, IpsecError> {
        let what = "ask how the SPD is searched";
        let get = XfrmMessage::GetSpdInfo(GetSpdInfoMessage::default());
        self.send(what, get, NLM_F_REQUEST)?;
        let mut info = None;
        self.receive(what, |payload| match payload {
            NetlinkPayload::InnerMessage(XfrmMessage::NewSpdInfo(found)) => {
                info = Some(found);
                Ok(true)
            }
            NetlinkPayload::Error(answer) if answer.code.is_some() => {
                Err(IpsecError::netlink(what)(answer.to_io()))
            }
            _ => Ok(false),
        })?;
        Ok(info.unwrap_or_default())
    }

    /// All entries of the SPD.
    pub fn policies(&mut self) -> Result<Vec<XfrmMessage>, IpsecError> {
        let what = "list the SPD";
        let get = XfrmMessage::GetPolicy(DelGetMessage::default());
        self.send(what, get, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut all = Vec::new();
        self.receive(what, |payload| match payload {
            NetlinkPayload::InnerMessage(message) => {
                all.push(message);
                Ok(false)
            }
            NetlinkPayload::Error(answer) if answer.code.is_some() => {
                Err(IpsecError::netlink(what)(answer.to_io()))
            }
            NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => Ok(true),
            _ => Ok(false),
        })?;
        Ok(all)
    }

    /// Hands on the fixed part and the kinds of attributes of each SA. The kernel sends the keys
    /// along; they are wiped, and nothing copies them.
    pub fn sas(&mut self, mut take: impl FnMut(&UserSaInfo, &[u16])) -> Result<(), IpsecError> {
        let what = "list the SAs";
        let unreadable = |reason| IpsecError::Answer { what, reason };
        let get = XfrmMessage::GetDumpSa(GetDumpMessage::default());
        self.send(what, get, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut buffer = Zeroizing::new(vec![0; LARGEST_DATAGRAM]);
        loop {
            let received = recv(&self.socket, &mut buffer[..], RecvFlags::empty());
            let (_, length) = received.map_err(|error| IpsecError::netlink(what)(error.into()))?;
            let whole = buffer.get(..length);
            let mut rest = whole.ok_or_else(|| {
                unreadable(DecodeError::from(format!("a message of {length} bytes")))
            })?;
            while !rest.is_empty() {
                let message = NetlinkBuffer::new_checked(rest).map_err(unreadable)?;
                rest = rest
                    .get((message.length() as usize).next_multiple_of(4)..)
                    .unwrap_or_default();
                if message.sequence_number() != self.sequence {
                    continue;
                }
                match message.message_type() {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let error = ErrorBuffer::new_checked(message.payload());
                        let code = error.map_err(unreadable)?.code();
                        let code = code.map_or(0, |code| code.get().wrapping_neg());
                        let error = io::Error::from_raw_os_error(code);
                        return Err(IpsecError::netlink(what)(error));
                    }
                    XFRM_MSG_NEWSA => {
                        let (info, kinds) = sa(message.payload()).map_err(unreadable)?;
                        take(&info, &kinds);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The present lifetime of one SA, its sender and its reqid, without its keys (XFRM_MSG_GETAE). None:
    /// there is no such SA.
    pub fn lifetime(&mut self, id: UserSaId) -> Result<Option<SaLifetime>, IpsecError> {
        let what = "ask for the lifetime of an SA";
        let asked = AsyncEventId {
            sa_id: id,
            ..AsyncEventId::default()
        };
        let get = XfrmMessage::GetAsyncEvent(GetAsyncEventMessage { id: asked });
        self.send(what, get, NLM_F_REQUEST)?;
        let mut found = None;
        self.receive(what, |payload| match payload {
            NetlinkPayload::InnerMessage(XfrmMessage::NewAsyncEvent(event)) => {
                let lifetime = event.nlas.iter().find_map(|attribute| match attribute {
                    XfrmAttrs::LifetimeBytes(lifetime) => Some(*lifetime),
                    _ => None,
                });
                let from = decode_address(&event.id.saddr, id.family);
                found = from.zip(lifetime).map(|(from, lifetime)| SaLifetime {
                    from,
                    reqid: event.id.reqid,
                    lifetime,
                });
                Ok(true)
            }
            NetlinkPayload::Error(answer) if is_gone(&answer.to_io()) => Ok(true),
            NetlinkPayload::Error(answer) if answer.code.is_some() => {
                Err(IpsecError::netlink(what)(answer.to_io()))
            }
            _ => Ok(false),
        })?;
        Ok(found)
    }

    /// Sets the lifetime of one SA (XFRM_MSG_NEWAE). Returns false if there is no such SA.
    pub fn set_lifetime(&mut self, id: UserSaId, lifetime: Lifetime) -> Result<bool, IpsecError> {
        let what = "set the lifetime of an SA";
        let set = XfrmMessage::NewAsyncEvent(NewAsyncEventMessage {
            id: AsyncEventId {
                sa_id: id,
                ..AsyncEventId::default()
            },
            nlas: vec![XfrmAttrs::LifetimeBytes(lifetime)],
        });
        self.send(what, set, NLM_F_REQUEST | NLM_F_ACK | NLM_F_REPLACE)?;
        let mut outcome = Ok(true);
        self.receive(what, |payload| match payload {
            NetlinkPayload::Error(answer) => {
                if answer.code.is_some() {
                    let error = answer.to_io();
                    outcome = if is_gone(&error) {
                        Ok(false)
                    } else {
                        Err(IpsecError::netlink(what)(error))
                    };
                }
                Ok(true)
            }
            _ => Ok(false),
        })?;
        outcome
    }

    fn send(
        &mut self,
        what: &'static str,
        message: XfrmMessage,
        flags: u16,
    ) -> Result<(), IpsecError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        header.port_number = self.port;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut buffer = vec![0; message.buffer_len()];
        message.serialize(&mut buffer);
        let sent = self.socket.send(&buffer, 0);
        sent.map(drop).map_err(IpsecError::netlink(what))
    }

    /// Reads answers to the last request until `take` returns true.
    fn receive(
        &self,
        what: &'static str,
        mut take: impl FnMut(NetlinkPayload<XfrmMessage>) -> Result<bool, IpsecError>,
    ) -> Result<(), IpsecError> {
        loop {
            let (bytes, _) = self
                .socket
                .recv_from_full()
                .map_err(IpsecError::netlink(what))?;
            for message in messages(&bytes) {
                let message = message.map_err(|reason| IpsecError::Answer { what, reason })?;
                if message.header.sequence_number == self.sequence && take(message.payload)? {
                    return Ok(());
                }
            }
        }
    }
}

/// What the kernel says of the lifetime of one SA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SaLifetime {
    /// Its sender.
    pub from: IpAddr,
    /// Its request id.
    pub reqid: u32,
    /// What it has carried, and since when it is there.
    pub lifetime: Lifetime,
}

/// Returns whether the error means that the kernel does not have the named SA.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// The kernel puts at most 32 KiB of an answer into one datagram.
const LARGEST_DATAGRAM: usize = 64 * 1024;

/// The fixed part of an SA, and the kinds of its attributes.
fn sa(payload: &[u8]) -> Result<(UserSaInfo, Vec<u16>), DecodeError> {
    let info = UserSaInfo::parse(payload)?;
    let attributes = payload.get(XFRM_USER_SA_INFO_LEN..).unwrap_or_default();
    let kinds =
        NlasIterator::new(attributes).map(|attribute| attribute.map(|attribute| attribute.kind()));
    Ok((info, kinds.collect::<Result<_, DecodeError>>()?))
}

/// Refuses a message that is shorter than the fixed part of its kind, on which the parser panics.
fn whole(bytes: &[u8]) -> Result<(), DecodeError> {
    let message = NetlinkBuffer::new_checked(bytes)?;
    let fixed = match message.message_type() {
        XFRM_MSG_ACQUIRE => 280,
        XFRM_MSG_NEWPOLICY | XFRM_MSG_UPDPOLICY => 168,
        XFRM_MSG_DELPOLICY => 64,
        XFRM_MSG_NEWAE => 48,
        _ => 0,
    };
    if message.payload().len() < fixed {
        Err(DecodeError::from("a message that is cut short"))
    } else {
        Ok(())
    }
}

/// The messages of one datagram.
fn messages(
    bytes: &[u8],
) -> impl Iterator<Item = Result<NetlinkMessage<XfrmMessage>, DecodeError>> + '_ {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = whole(rest).and_then(|()| NetlinkMessage::<XfrmMessage>::deserialize(rest));
        match message {
            Ok(message) => {
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length.max(4)..).unwrap_or_default();
                Some(Ok(message))
            }
            Err(error) => {
                rest = &[];
                Some(Err(error))
            }
        }
    })
}

/// An event that the kernel reports of its own accord.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An entry of the SPD was changed, by whomever: see [`crate::Ipsec::put_back`].
    SpdChanged,
    /// A packet needs an SA that is not there.
    Acquire {
        /// This host's address, from which the packet goes.
        source: IpAddr,
        /// The other host's address.
        peer: IpAddr,
        /// The request id of the class; see [`crate::reqid`].
        reqid: u32,
    },
    /// Messages were lost, because there were too many: anything may have happened.
    Lost,
}

impl Event {
    /// The events in a datagram from the kernel. A message that cannot be read counts as
    /// [`Event::Lost`], and is the last one.
    pub fn all_in(datagram: &[u8]) -> impl Iterator<Item = Self> + '_ {
        messages(datagram).filter_map(event)
    }
}

/// Listens for changes of the SPD and for packets that need an SA.
#[derive(Debug)]
pub struct Watcher(Socket);

impl AsFd for Watcher {
    /// Readable while there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Watcher {
    /// Begins to listen in the caller's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> Result<Self, IpsecError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_XFRM)?;
            socket.bind_auto()?;
            socket.set_non_blocking(true)?;
            socket.add_membership(XFRMNLGRP_POLICY)?;
            socket.add_membership(XFRMNLGRP_ACQUIRE)?;
            Ok(socket)
        };
        open()
            .map(Self)
            .map_err(IpsecError::netlink("listen to the kernel's IPsec"))
    }

    /// The events that have come; does not wait.
    ///
    /// # Errors
    /// The kernel's error. Messages that cannot be read count as [`Event::Lost`].
    pub fn take(&self) -> Result<Vec<Event>, IpsecError> {
        Ok(self.take_of_others(None)?.events)
    }

    /// As [`Self::take`], without changes of the SPD that are not to be put back. `ours` tells them apart:
    /// this process's own changes, and those of other parties' entries. Others could pass their changes off
    /// as this process's own, so the SPD is to be compared from time to time without an event as well. After
    /// 1,024 messages the rest waits for the next call.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_of_others(&self, ours: Option<&Ours>) -> Result<Taken, IpsecError> {
        let mut events = Vec::new();
        for _ in 0..MOST_TAKEN {
            match self.0.recv_from_full() {
                // The sender is not the kernel.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((bytes, _)) => {
                    let messages = messages(&bytes).filter(|message| match (message, ours) {
                        (Ok(message), Some(ours)) => ours.concern(message),
                        _ => true,
                    });
                    events.extend(messages.filter_map(event));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Taken {
                        events,
                        is_all: true,
                    });
                }
                // ENOBUFS: the socket's buffer was full.
                Err(error) if error.raw_os_error() == Some(NO_BUFFER) => events.push(Event::Lost),
                Err(error) => {
                    return Err(IpsecError::netlink("listen to the kernel's IPsec")(error));
                }
            }
        }
        Ok(Taken {
            events,
            is_all: false,
        })
    }
}

/// Limit of messages that are taken at a time.
const MOST_TAKEN: usize = 1_024;

/// The kernel's reports that were taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// No more were waiting.
    pub is_all: bool,
}

/// Distinguishes this process's changes of the SPD, and its entries, from those of others.
#[derive(Debug, Clone, Copy)]
pub struct Ours {
    pub(crate) port: u32,
    pub(crate) mask: MarkMask,
}

impl Ours {
    /// Returns whether a message may mean that somebody else has changed our entries.
    fn concern(&self, message: &NetlinkMessage<XfrmMessage>) -> bool {
        let NetlinkPayload::InnerMessage(inner) = &message.payload else {
            return true;
        };
        let is_of_others = message.header.port_number != self.port;
        match inner {
            XfrmMessage::AddPolicy(policy) | XfrmMessage::UpdatePolicy(policy) => {
                is_of_others && is_marked(&policy.nlas, self.mask)
            }
            XfrmMessage::DeletePolicy(policy) => is_of_others && is_marked(&policy.nlas, self.mask),
            XfrmMessage::FlushPolicy(_) => is_of_others,
            _ => true,
        }
    }
}

const NO_BUFFER: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

fn event(message: Result<NetlinkMessage<XfrmMessage>, DecodeError>) -> Option<Event> {
    let Ok(message) = message else {
        return Some(Event::Lost);
    };
    let NetlinkPayload::InnerMessage(message) = message.payload else {
        return None;
    };
    match message {
        XfrmMessage::AddPolicy(_)
        | XfrmMessage::UpdatePolicy(_)
        | XfrmMessage::DeletePolicy(_)
        | XfrmMessage::FlushPolicy(_) => Some(Event::SpdChanged),
        XfrmMessage::Acquire(acquire) => {
            let family = acquire.acquire.selector.family;
            let templates = acquire.nlas.iter().find_map(|attribute| match attribute {
                XfrmAttrs::Template(templates) => templates.first(),
                _ => None,
            });
            Some(Event::Acquire {
                source: decode_address(&acquire.acquire.saddr, family)?,
                peer: decode_address(&acquire.acquire.id.daddr, family)?,
                reqid: templates?.reqid,
            })
        }
        _ => None,
    }
}

pub(crate) fn decode_address(address: &Address, family: u16) -> Option<IpAddr> {
    match family {
        AF_INET => Some(address.to_ipv4().into()),
        AF_INET6 => Some(address.to_ipv6().into()),
        _ => None,
    }
}

/// Returns whether an entry with these attributes selects by bits of our mask, as all of ours do.
fn is_marked(attributes: &[XfrmAttrs], mask: MarkMask) -> bool {
    let bits = [mask.class_bits(), mask.signature_bits()];
    attributes
        .iter()
        .any(|attribute| matches!(attribute, XfrmAttrs::Mark(mark) if bits.contains(&mark.mask)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_has_the_events_that_it_names() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/netlink");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("the corpus") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            let datagram = std::fs::read(&path).expect("a file");
            let events: Vec<Event> = Event::all_in(&datagram).collect();
            let acquired = |source: &str, peer: &str, reqid| Event::Acquire {
                source: source.parse().expect("an address"),
                peer: peer.parse().expect("an address"),
                reqid,
            };
            let expected = match name.as_ref() {
                "acquire-ipv4" => acquired("10.9.0.1", "10.9.0.2", 0x7501),
                "acquire-ipv6-ah" => acquired("fd09::1", "fd09::2", 0x7504),
                name if name.starts_with("changed-") => Event::SpdChanged,
                name if name.starts_with("lost-") => Event::Lost,
                other => panic!("{other}: no such outcome"),
            };
            assert_eq!(events, [expected], "{name}");
            count += 1;
        }
        assert!(count >= 8, "{count}");
    }
}
