//! A connection that the signer announces, step by step, as if there were no ticket.

use std::error::Error;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use usher_base::address_bytes;
use usher_daemon::packet::PacketSocket;
use usher_local::paths;
use usher_proto::local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};

/// Makes one, and calls `step` after each of its steps: the request to the signer, its answer, connecting,
/// releasing.
///
/// # Errors
/// When the signer refuses, or the server.
pub fn announced(
    request: &LocalRequest,
    mut step: impl FnMut(),
) -> Result<TcpStream, Box<dyn Error + Send + Sync>> {
    let signer = PacketSocket::connect(Path::new(paths::SIGNER_APPLICATIONS))?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    signer.send(&request.encode(), &[socket.as_fd()])?;
    step();
    let reply = LocalReply::decode(&signer.receive(MAX_LOCAL_PACKET)?.bytes)?;
    let LocalReply::Ready { server } = reply else {
        return Err(format!("{reply:?}").into());
    };
    step();
    let address = Ipv6Addr::from(address_bytes(server.ip()));
    rustix::net::connect(&socket, &SocketAddr::new(address.into(), server.port()))?;
    step();
    signer.send(&LocalRequest::Done { connected: true }.encode(), &[])?;
    drop(signer);
    step();
    Ok(socket.into())
}
