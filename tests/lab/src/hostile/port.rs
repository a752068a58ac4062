//! Sockets in a host's network.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::host::Host;
use crate::waiting::PATIENCE;

/// Runs `act` on a thread in the host's network; its sockets stay in that network.
///
/// # Errors
/// The error of `act`; or when the network cannot be entered.
pub fn in_network<T: Send>(
    host: &Host,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let network = File::open(format!("/proc/{}/ns/net", host.anchor()))?;
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            act()
        });
        acting
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the acting thread panicked")))
    })
}

/// Connects from any address and port of a host.
///
/// # Errors
/// As connect(2): `ConnectionRefused` for a RST.
pub fn dial(from: &Host, server: SocketAddr) -> io::Result<TcpStream> {
    in_network(from, || {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    })
}

/// A bound TCP socket that is not connected yet.
#[derive(Debug)]
pub struct Port {
    socket: OwnedFd,
    /// Its address and port.
    pub address: SocketAddr,
}

impl Port {
    /// Binds a port of the kernel's choice at an address of the host.
    ///
    /// # Errors
    /// As socket(2) and bind(2).
    pub fn any(host: &Host, address: impl Into<IpAddr>) -> io::Result<Self> {
        Self::at(host, SocketAddr::new(address.into(), 0))
    }

    /// Binds this port.
    ///
    /// # Errors
    /// As socket(2) and bind(2): `AddrInUse` while another socket has it.
    pub fn at(host: &Host, address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        in_network(host, || {
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            // This also bounds connect(2), see socket(7).
            set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            rustix::net::bind(&socket, &address)?;
            let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            Ok(Self { socket, address })
        })
    }

    /// Connects from it.
    ///
    /// # Errors
    /// As connect(2): `ConnectionRefused` for a RST.
    pub fn connect(self, server: SocketAddr) -> io::Result<TcpStream> {
        rustix::net::connect(&self.socket, &server)?;
        Ok(self.socket.into())
    }
}

/// Reads a line, such as a server's greeting.
///
/// # Errors
/// When the peer sends none.
pub fn read_line(stream: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}
