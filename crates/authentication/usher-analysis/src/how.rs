//! How a permitted connection is made and served.

use std::net::{IpAddr, SocketAddrV4};

use serde::Serialize;
use usher_policy::{
    ClientService, Destinations, FileRule, Host, Name, Programs, Protocol, ServedBy, Service,
    Style,
    protection::{Application, Kind},
};

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Route {
    /// The client's address.
    pub from: IpAddr,
    /// The server's address.
    pub to: IpAddr,
}

/// Both sides, as far as their policies are known and define it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct How {
    /// TCP port of the service by the known policies; none if they disagree.
    pub port: Option<u16>,
    /// The possible addresses of a connection, if both sides are known.
    pub routes: Vec<Route>,
    /// The client's side.
    pub client: Option<Request>,
    /// The server's side.
    pub server: Option<Offer>,
    /// The client's programs whose connections are protected as the service demands; empty unless
    /// both sides are known and the service demands it.
    pub protected_programs: Vec<String>,
}

/// The client's policy on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// The programs whose connections are authenticated.
    pub programs: Programs,
    /// The name of the user's key that opens sessions; none: the unnamed one.
    pub key: Option<Name>,
    /// The proxy's handling of the protocol.
    pub protocol: Protocol,
    /// The addresses at which the proxy stands in for the service.
    pub proxy: Vec<SocketAddrV4>,
    /// How IPsec protects the connections of programs without an `application` block.
    pub protection: Option<Kind>,
}

/// The server's policy on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// The purpose of each process.
    pub style: Style,
    /// The program that the keeper starts as the user, or as the account, with its arguments.
    pub program: Option<Vec<String>>,
    /// The files that its processes may use; none: all that the user may.
    pub files: Option<Vec<FileRule>>,
    /// Permissions withheld from files that its processes make (umask(2)); none with an account.
    pub umask: Option<u16>,
    /// Whether programs that its processes execute may become another user or group.
    pub setuid: bool,
    /// Whether each of its processes runs inside a PAM session.
    pub pam_session: bool,
    /// The destinations of its processes; none: all that the user may reach.
    pub connect: Option<Destinations>,
    /// The account of the service's own processes; with style `shared` these serve all users, else they become
    /// the user.
    pub account: Option<String>,
    /// How the connection is passed on to a server of the account, and its socket.
    pub identify: Option<String>,
    /// The purpose of the admitted keys; none: no particular one.
    pub keys: Option<Name>,
    /// The longest session, in seconds.
    pub session_seconds: u64,
    /// The interval of authentication of users, in seconds.
    pub reauthenticate_seconds: Option<u64>,
    /// The IPsec protection that its connections need; none: they may be unprotected.
    pub protection: Option<Kind>,
}

impl Request {
    pub(crate) fn of(entry: &ClientService, host: Option<&Host>) -> Self {
        let loopback = host.map_or(&[][..], |host| host.loopback.as_slice());
        let at_port = |address: &_| SocketAddrV4::new(*address, entry.port);
        Self {
            programs: entry.programs.clone(),
            key: entry.key.clone(),
            protocol: entry.protocol,
            proxy: loopback.iter().map(at_port).collect(),
            protection: entry.protection,
        }
    }
}

/// The names of all programs of some blocks.
pub(crate) fn programs_of(blocks: &[&Application]) -> Vec<String> {
    let programs = blocks.iter().flat_map(|block| &block.programs);
    programs.map(ToString::to_string).collect()
}

impl Offer {
    pub(crate) fn of(service: &Service) -> Self {
        let (started, backend) = match &service.served_by {
            ServedBy::Program(program) => (Some(program), None),
            ServedBy::Backend(backend) => (None, Some(backend)),
            ServedBy::Account(_) => (None, None),
        };
        Self {
            style: service.style,
            program: started.map(|program| {
                let path = std::iter::once(&program.path);
                path.chain(&program.arguments).cloned().collect()
            }),
            files: started.and_then(|program| program.files.clone()),
            umask: started.map(|program| program.umask),
            setuid: started.is_some_and(|program| program.setuid),
            pam_session: started.is_some_and(|program| program.pam_session),
            connect: service.connect.clone(),
            account: service.account().map(ToString::to_string),
            identify: backend.map(ToString::to_string),
            keys: service.keys.clone(),
            session_seconds: service.session.as_secs(),
            reauthenticate_seconds: service.reauthenticate.map(|interval| interval.as_secs()),
            protection: service.protection.as_ref().map(|required| required.kind),
        }
    }
}
