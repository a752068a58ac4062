//! `usher connect HOST:SERVICE`: a pipe for scripts, tunnels and ProxyCommand-like use.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::str::FromStr;

use usher::{HostName, ServiceName, connect_by_user};

use crate::failure::{At, Failure};

/// Where to connect.
#[derive(Debug, Clone)]
pub struct Destination {
    host: HostName,
    service: ServiceName,
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, service) = text
            .split_once(':')
            .ok_or("give a host and a service, as in mailhost:imap")?;
        Ok(Self {
            host: host.parse().map_err(|error| format!("{host}: {error}"))?,
            service: service
                .parse()
                .map_err(|error| format!("{service}: {error}"))?,
        })
    }
}

/// Connects and copies both ways until the server closes.
///
/// # Errors
/// When the connection is refused or breaks.
pub fn run(destination: &Destination) -> Result<(), Failure> {
    let connection = connect_by_user(&destination.host, &destination.service)?;
    let outgoing = connection.try_clone().at("connection")?;
    std::thread::spawn(move || {
        // A server that has closed ends the program from the other direction.
        let _ = send(outgoing);
    });
    receive(connection).at("connection")
}

fn send(mut connection: TcpStream) -> io::Result<()> {
    copy(&mut io::stdin().lock(), &mut connection)?;
    connection.shutdown(Shutdown::Write)
}

fn receive(mut connection: TcpStream) -> io::Result<()> {
    copy(&mut connection, &mut io::stdout().lock())
}

/// Copies and flushes what arrives as it arrives: a dialogue must not wait for a full buffer.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..length])?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::Destination;

    #[test]
    fn a_destination_is_host_and_service() {
        assert!("mailhost:imap".parse::<Destination>().is_ok());
        for wrong in ["mailhost", ":imap", "mailhost:", "mail host:imap", ""] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }
}
