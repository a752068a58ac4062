//! Requests to the kernel's IPsec, and its messages about changes (netlink, NETLINK_XFRM).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_xfrm::constants::{AF_INET, AF_INET6, XFRMNLGRP_ACQUIRE, XFRMNLGRP_POLICY};
use netlink_packet_xfrm::policy::DelGetMessage;
use netlink_packet_xfrm::{Address, XfrmAttrs, XfrmMessage};
use netlink_sys::protocols::NETLINK_XFRM;
use netlink_sys::{Socket, SocketAddr};

use crate::error::IpsecError;

/// A socket for requests.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Socket,
    sequence: u32,
}

impl Channel {
    /// For the SPD of the caller's network namespace.
    pub fn open() -> Result<Self, IpsecError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_XFRM)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        Ok(Self {
            socket: open().map_err(IpsecError::netlink("opening the kernel's IPsec interface"))?,
            sequence: 0,
        })
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

    /// All entries of the SPD.
    pub fn policies(&mut self) -> Result<Vec<XfrmMessage>, IpsecError> {
        let what = "listing the SPD";
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

/// The messages of one datagram.
fn messages(
    bytes: &[u8],
) -> impl Iterator<Item = Result<NetlinkMessage<XfrmMessage>, String>> + '_ {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match NetlinkMessage::<XfrmMessage>::deserialize(rest) {
            Ok(message) => {
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length.max(4)..).unwrap_or_default();
                Some(Ok(message))
            }
            Err(error) => {
                rest = &[];
                Some(Err(error.to_string()))
            }
        }
    })
}

/// What the kernel tells of its own accord.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An entry of the SPD was changed, by whomever: see [`crate::Ipsec::put_back`].
    SpdChanged,
    /// A packet needs an SA that is not there.
    Acquire {
        /// The other end.
        peer: IpAddr,
        /// The request id of the class; see [`crate::reqid`].
        reqid: u32,
    },
    /// Messages were lost, because there were too many: anything may have happened.
    Lost,
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
    /// For the caller's network namespace.
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
            .map_err(IpsecError::netlink("listening to the kernel's IPsec"))
    }

    /// The events that have come; does not wait.
    ///
    /// # Errors
    /// The kernel's error. Messages that cannot be read count as [`Event::Lost`].
    pub fn take(&self) -> Result<Vec<Event>, IpsecError> {
        let mut events = Vec::new();
        loop {
            match self.0.recv_from_full() {
                Ok((bytes, _)) => events.extend(messages(&bytes).filter_map(event)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(events),
                // ENOBUFS: the socket's buffer was full.
                Err(error) if error.raw_os_error() == Some(NO_BUFFER) => events.push(Event::Lost),
                Err(error) => {
                    return Err(IpsecError::netlink("listening to the kernel's IPsec")(
                        error,
                    ));
                }
            }
        }
    }
}

const NO_BUFFER: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

fn event(message: Result<NetlinkMessage<XfrmMessage>, String>) -> Option<Event> {
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
                peer: address(&acquire.acquire.id.daddr, family)?,
                reqid: templates?.reqid,
            })
        }
        _ => None,
    }
}

pub(crate) fn address(address: &Address, family: u16) -> Option<IpAddr> {
    match family {
        AF_INET => Some(address.to_ipv4().into()),
        AF_INET6 => Some(address.to_ipv6().into()),
        _ => None,
    }
}
