//! The server of the TLS row: the loop of the plain server (accept, receive 128 bytes, send them
//! back, close) behind a full mutual handshake. Run it inside a lab's host, as its root.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use usher_bench::exchange::MESSAGE;
use usher_bench::tls::{Identity, server_config};
use usher_local::paths;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, client] = arguments.as_slice() else {
        return Err("usage: PORT CLIENT-KEY".into());
    };
    let own = Identity::load(Path::new(paths::HOST_KEY))?;
    let config = Arc::new(server_config(&own, client.parse()?)?);
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port.parse()?))?;
    loop {
        let (connection, _) = listener.accept()?;
        // Ignore a client that only checks whether the server listens, or that leaves early.
        if let Err(error) = serve(&config, connection) {
            eprintln!("a connection failed: {error}");
        }
    }
}

fn serve(config: &Arc<ServerConfig>, connection: TcpStream) -> Result<(), Box<dyn Error>> {
    connection.set_nodelay(true)?;
    let session = ServerConnection::new(Arc::clone(config))?;
    let mut stream = StreamOwned::new(session, connection);
    let mut message = [0; MESSAGE.len()];
    stream.read_exact(&mut message)?;
    stream.write_all(&message)?;
    Ok(())
}
