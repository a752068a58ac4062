//! How a permitted connection is made and served: what people ask after "may they".

use std::net::{IpAddr, SocketAddrV4};

use serde::Serialize;
use usher_policy::{
    ClientService, Destinations, FileRule, Host, Name, Programs, Protocol, ServedBy, Service,
    Style, Transform,
};

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Route {
    /// The client's.
    pub from: IpAddr,
    /// The server's.
    pub to: IpAddr,
}

/// Both sides, as far as their policies are known and speak of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct How {
    /// TCP port of the service, by the policies that are known; none where they disagree.
    pub port: Option<u16>,
    /// The addresses that a connection can have, where both sides are known.
    pub routes: Vec<Route>,
    /// By the client's policy.
    pub client: Option<Request>,
    /// By the server's policy.
    pub server: Option<Offer>,
}

/// What the client's policy says of how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Whose connections are authenticated.
    pub programs: Programs,
    /// The user's key that opens sessions; none: the one without a name.
    pub key: Option<Name>,
    /// What the proxy makes of the protocol.
    pub protocol: Protocol,
    /// Where the proxy stands for the service.
    pub proxy: Vec<SocketAddrV4>,
}

/// What the server's policy says of how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// What each process is for.
    pub style: Style,
    /// The program that the keeper starts as the user, with its arguments.
    pub program: Option<Vec<String>>,
    /// What its processes may do with files; none: what the user may.
    pub files: Option<Vec<FileRule>>,
    /// Permissions that files which its processes make do not get (umask(2)); none with an account.
    pub umask: Option<u16>,
    /// Whether programs that its processes execute may become another user or group.
    pub setuid: bool,
    /// Whether each of its processes runs inside a PAM session.
    pub pam_session: bool,
    /// Where its processes may connect; none: where the user may.
    pub connect: Option<Destinations>,
    /// In place of a program, the account whose processes become the user.
    pub account: Option<String>,
    /// What the admitted keys are for; none: nothing in particular.
    pub keys: Option<Name>,
    /// The longest session.
    pub session_seconds: u64,
    /// How often users are authenticated again.
    pub reauthenticate_seconds: Option<u64>,
    /// How IPsec must protect its connections; none: they may pass in the clear.
    pub protection: Option<Transform>,
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
        }
    }
}

impl Offer {
    pub(crate) fn of(service: &Service) -> Self {
        let started = match &service.served_by {
            ServedBy::Program(program) => Some(program),
            ServedBy::Account(_) => None,
        };
        let (program, files, account) = match &service.served_by {
            ServedBy::Program(program) => {
                let path = std::iter::once(&program.path);
                let command = path.chain(&program.arguments).cloned().collect();
                (Some(command), program.files.clone(), None)
            }
            ServedBy::Account(account) => (None, None, Some(account.to_string())),
        };
        Self {
            style: service.style,
            program,
            files,
            umask: started.map(|program| program.umask),
            setuid: started.is_some_and(|program| program.setuid),
            pam_session: started.is_some_and(|program| program.pam_session),
            connect: service.connect.clone(),
            account,
            keys: service.keys.clone(),
            session_seconds: service.session.as_secs(),
            reauthenticate_seconds: service.reauthenticate.map(|interval| interval.as_secs()),
            protection: service
                .protection
                .as_ref()
                .map(|required| required.transform),
        }
    }
}
