//! Local caller to signer and back: one packet each on a local SOCK_SEQPACKET socket.
//!
//! The kernel identifies the caller (SO_PEERCRED), never the packet. The socket to be bound and
//! announced travels beside the request as a descriptor (SCM_RIGHTS).

use crate::{ProgramEnd, Refusal};
use std::net::SocketAddr;
use usher_base::codec::{messages, packets};
use usher_base::{HostName, ServiceName};

/// Longest packet in bytes, in both directions.
pub const MAX_LOCAL_PACKET: usize = 256;

/// The version of the packets: a program may use a library that is older than the signer.
pub const LOCAL_VERSION: u8 = 1;

messages! {
    /// Requests of a local program to the signer.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum LocalRequest {
        /// Prepare the accompanying TCP socket for a connection of the asking user.
        1 => Connect {
            /// The host to connect to, by local policy's name.
            host: HostName,
            /// The service on that host.
            service: ServiceName,
        },
        /// As [`Self::Connect`], for the user at the other end of a loopback connection that the proxy
        /// accepted and sends as a second descriptor. Only the proxy's account may ask this.
        2 => ConnectOnBehalf {
            /// The host to connect to.
            host: HostName,
            /// The service on that host.
            service: ServiceName,
        },
        /// The connection is made, or failed: withdraw the announcement.
        3 => Done {
            /// Whether connect(2) succeeded.
            connected: bool,
        },
        /// As [`Self::Connect`], from a program that supports tickets. If the user has one, the
        /// answer is [`LocalReply::Ticket`] and nothing is announced. If connecting with it fails, the
        /// program continues with [`Self::Connect`].
        4 => ConnectWithTicket {
            /// The host to connect to.
            host: HostName,
            /// The service on that host.
            service: ServiceName,
        },
        /// Lends the user's ssh-agent through the asking process while the conversation lasts: see
        /// [`crate::lending`].
        5 => Lend,
        /// Name the user at the other end of the accompanying loopback connection, which the proxy has
        /// accepted; the other end may be closed already. Only the proxy's account may ask this.
        8 => OwnerAtProxy {
            /// The host that the connection is for.
            host: HostName,
            /// The service on that host.
            service: ServiceName,
        },
        /// Asks how the service's program has ended for a connection on which nothing has come. Answered by
        /// [`LocalReply::Ended`], for connections of the asking user.
        9 => HowEnded {
            /// The service's host.
            host: HostName,
            /// The service.
            service: ServiceName,
            /// This host's end of the connection.
            client: SocketAddr,
        },
        /// There is no way to the address: withdraw the announcement as after [`Self::Done`], and name another
        /// address next time.
        10 => Unreachable,
    }
}

messages! {
    /// Answers of the signer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum LocalReply {
        /// The socket is bound and announced: connect it to this address within ten seconds.
        129 => Ready {
            /// Address and port of the service.
            server: SocketAddr,
        },
        /// The request is refused, with the true reason, because this is the user's own machine.
        130 => Refused(refusal: Refusal),
        /// The announcement is withdrawn; the exchange is over.
        131 => Finished,
        /// The user has a ticket: draw a token for the socket and connect it to this address.
        132 => Ticket {
            /// Address and port of the service.
            server: SocketAddr,
        },
        /// The answer to [`LocalRequest::OwnerAtProxy`].
        136 => Owner {
            /// The user's number, in the initial user namespace.
            uid: u32,
        },
        /// The answer to [`LocalRequest::HowEnded`]: none if the server has not reported a failure.
        137 => Ended(end: Option<ProgramEnd>),
    }
}

packets!(LOCAL_VERSION, MAX_LOCAL_PACKET, LocalRequest, LocalReply);
