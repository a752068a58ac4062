//! `usher whois`: the user on the other end of a connection, by the client's endpoint, as a server's log has
//! it.

use std::net::SocketAddr;

use serde_json::json;
use usher::{ConnectionInfo, ConnectionTuple, Refusal, ServiceError, connection_info_by};
use usher_daemon::clock::unix_time;

use crate::failure::Failure;
use crate::output::{Output, row, table};
use crate::tcp_sockets::{HAS_PEER, sockets};

/// Prints the users of the connections that come from this endpoint: one connection, unless the endpoint is
/// connected to several ports. Root sees the user of each connection, a user only the user's own connections,
/// and the account of a service with `style shared` the users of that service.
///
/// # Errors
/// When there is none that the caller may know of, or the keeper does not answer.
pub fn run(output: &Output, client: SocketAddr) -> Result<(), Failure> {
    // A program that listens for both families logs an IPv4 address as IPv6.
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    let mut servers: Vec<SocketAddr> = sockets()
        .filter(|socket| socket.remote == client && HAS_PEER.contains(&socket.state))
        .map(|socket| socket.local)
        .collect();
    servers.sort_unstable();
    servers.dedup();
    let mut found = Vec::new();
    for server in &servers {
        let Ok(connection) = ConnectionTuple::new(client, *server) else {
            continue;
        };
        match connection_info_by(connection) {
            Ok(info) => found.push((connection, info)),
            Err(ServiceError::Refused(Refusal::NoConnection | Refusal::ForeignConnection)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if found.is_empty() {
        let reason = if servers.is_empty() {
            "this host has no connection from there"
        } else {
            "Usher has admitted none of the connections from there, or they are not yours to ask about"
        };
        return Err(Failure::Refused(format!("{client}: {reason}")));
    }
    let now = unix_time();
    let views = found
        .iter()
        .map(|(connection, info)| view(connection, info));
    // JSON of `usher whois`: a list of [`whois`].
    output.print(&views.collect::<Vec<_>>(), || {
        let rows = found.iter().map(|(connection, info)| {
            row![
                info.user,
                info.uid,
                info.host,
                info.service,
                super::who::age(info.expires.saturating_sub(now)),
                connection.server,
                info.key_fingerprint,
            ]
        });
        let heading = ["USER", "UID", "HOST", "SERVICE", "ENDS IN", "SERVER", "KEY"];
        table(heading, rows)
    });
    Ok(())
}

fn view(connection: &ConnectionTuple, info: &ConnectionInfo) -> serde_json::Value {
    // JSON object [`whois`]:
    //   user: The user.
    //   uid: Number: the user's account on this host.
    //   service: The service.
    //   host: The client's host, by this host's name for it.
    //   client: The client's endpoint.
    //   server: The endpoint of this host.
    //   key: SHA256:... of the key that signed for the session.
    //   principals: List of texts: those of the key's certificate that its authority is trusted to name.
    //   opened: Number: when the session was opened.
    //   expires: Number: when it ends at the latest.
    json!({
        "user": info.user, "uid": info.uid, "service": info.service, "host": info.host,
        "client": connection.client, "server": connection.server,
        "key": info.key_fingerprint.to_string(), "principals": info.principals,
        "opened": info.opened, "expires": info.expires,
    })
}
