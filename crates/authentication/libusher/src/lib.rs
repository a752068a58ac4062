//! Usher's programming interface.
//!
//! [`connect_by_user`] makes a TCP connection to a service. The server knows the local user before it
//! accepts (netAuth, USENIX Security 2008, section 4). [`ByUserListener`] is for
//! services: their processes become the user before they accept. The C interface is
//! `include/usher.h`; see connect_by_user(3) and usher_accept_by_user(3).
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = "mailhost".parse()?;
//! let service = "imap".parse()?;
//! let connection = usher::connect_by_user(&host, &service)?;
//! # Ok(()) }
//! ```
//!
//! [`mac`] has the labels of mandatory access control.
//!
//! Room: the caller's sockets, the local sockets of signer and keeper, and the labels of files that the
//! caller names. Programs of users and services use it, without a privilege.
#![deny(unsafe_code)]

mod connect;
mod conversation;
#[allow(unsafe_code)]
mod ffi;
pub mod mac;
#[allow(unsafe_code)]
mod process;
mod service;
mod service_error;
mod table;
mod token;

pub use connect::{
    ConnectError, connect_by_user, connect_on_behalf, how_ended, owner_at_the_proxy,
};
pub use service::{
    ByUserListener, ConnectionInfo, Reservation, UserListener, connection_info, connection_info_by,
};
pub use service_error::ServiceError;
pub use token::draw_token;
pub use usher_base::{ConnectionTuple, HostName, ServiceName, UserName};
pub use usher_proto::program_end::ProgramEnd;
pub use usher_proto::refusal::Refusal;
