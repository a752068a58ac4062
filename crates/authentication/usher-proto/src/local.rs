//! Local caller to signer and back: one packet each on a local SOCK_SEQPACKET socket.
//!
//! The kernel says who asks (SO_PEERCRED), never the packet. The socket to be bound and announced
//! travels beside the request as a descriptor (SCM_RIGHTS).

use crate::Refusal;
use std::net::SocketAddr;
use usher_base::codec::{messages, packets};
use usher_base::{HostName, ServiceName};

/// Longest packet in bytes, in both directions.
pub const MAX_LOCAL_PACKET: usize = 256;

/// The version of the packets: programs link against a library older than the signer.
pub const LOCAL_VERSION: u8 = 1;

messages! {
    /// What a local program asks of the signer.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub enum LocalRequest {
        /// Prepare the accompanying TCP socket for a connection of the asking user.
        1 => Connect {
            /// To which host, by local policy's name.
            host: HostName,
            /// To which of its services.
            service: ServiceName,
        },
        /// The same for the user at the other end of a second accompanying descriptor, a loopback
        /// connection the proxy accepted. Only the proxy's account may ask this.
        2 => ConnectOnBehalf {
            /// To which host.
            host: HostName,
            /// To which service.
            service: ServiceName,
        },
        /// The connection is made, or failed: the announcement is to be withdrawn.
        3 => Done {
            /// Whether connect(2) succeeded.
            connected: bool,
        },
        /// As [`Self::Connect`], of a program that knows tickets: where the user has one, the
        /// answer is [`LocalReply::Ticket`] and nothing is announced. When connecting with it
        /// fails, the program goes on with [`Self::Connect`].
        4 => ConnectWithTicket {
            /// To which host.
            host: HostName,
            /// To which of its services.
            service: ServiceName,
        },
        /// Have the user's ssh-agent sign, through the asking process, while the conversation
        /// lasts: see [`crate::lending`].
        5 => Lend,
    }
}

messages! {
    /// What the signer answers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum LocalReply {
        /// The socket is bound and announced: connect it there, within ten seconds.
        129 => Ready {
            /// Address and port of the service.
            server: SocketAddr,
        },
        /// No; the undisguised reason, it is the user's own machine.
        130 => Refused(refusal: Refusal),
        /// The announcement is withdrawn; the exchange is over.
        131 => Finished,
        /// The user's connections to this address carry tokens: draw one for the socket and
        /// connect it there.
        132 => Ticket {
            /// Address and port of the service.
            server: SocketAddr,
        },
    }
}

packets!(LOCAL_VERSION, MAX_LOCAL_PACKET, LocalRequest, LocalReply);
