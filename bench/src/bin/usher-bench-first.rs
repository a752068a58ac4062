//! First connections: users without a session connect, send 128 bytes and receive 128 bytes, one
//! user after the other. After each of them the same is done without authentication and after a
//! full mutual TLS handshake. Prints the nanoseconds of each, one line per user. Run it inside a
//! lab's host, as its root.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use usher_base::{HostName, ServiceName};
use usher_bench::exchange::{ORDERS, exchange, exchange_tcp, wait_for};
use usher_bench::tls::{Identity, client_config};
use usher_local::paths;

/// The servers, and how to connect to them.
struct Servers {
    plain: SocketAddr,
    tls: SocketAddr,
    config: Arc<ClientConfig>,
    host: HostName,
    service: ServiceName,
    pause: Duration,
}

impl Servers {
    /// Connects and exchanges behind a full handshake.
    fn shake_hands(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let connection = TcpStream::connect(self.tls)?;
        connection.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.tls.ip().into());
        let session = ClientConnection::new(Arc::clone(&self.config), name)?;
        Ok(exchange(StreamOwned::new(session, connection))?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [
        address,
        plain,
        tls,
        server,
        host,
        service,
        uid,
        users,
        pause,
    ] = arguments.as_slice()
    else {
        return Err(
            "usage: ADDRESS PLAIN-PORT TLS-PORT SERVER-KEY HOST SERVICE FIRST-UID USERS \
             PAUSE-MICROSECONDS"
                .into(),
        );
    };
    let address: IpAddr = address.parse()?;
    let own = Identity::load(Path::new(paths::HOST_KEY))?;
    let servers = Servers {
        plain: SocketAddr::new(address, plain.parse()?),
        tls: SocketAddr::new(address, tls.parse()?),
        config: Arc::new(client_config(&own, server.parse()?)?),
        host: host.parse()?,
        service: service.parse()?,
        pause: Duration::from_micros(pause.parse()?),
    };
    let (first_uid, users): (u32, u32) = (uid.parse()?, users.parse()?);
    wait_for(servers.plain)?;
    wait_for(servers.tls)?;
    // The provider gathers randomness when a process first uses it, which takes 50 ms.
    servers
        .shake_hands()
        .map_err(|error| format!("the first handshake: {error}"))?;
    for number in 0..users {
        // A thread for each user: a thread has its own identity, and each is as new to the library
        // as to the daemons.
        let [plain, tls, usher] = std::thread::scope(|scope| {
            let measuring = scope.spawn(|| measure(&servers, first_uid + number, number as usize));
            measuring
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the measuring thread panicked").into()))
        })
        .map_err(|error| format!("user {}: {error}", first_uid + number))?;
        println!("{plain} {tls} {usher}");
    }
    Ok(())
}

/// Runs each of the three ways once, as this user.
fn measure(
    servers: &Servers,
    uid: u32,
    round: usize,
) -> Result<[u128; 3], Box<dyn Error + Send + Sync>> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    let mut nanoseconds = [0; 3];
    for way in ORDERS[round % ORDERS.len()] {
        std::thread::sleep(servers.pause);
        let begun = Instant::now();
        match way {
            0 => exchange_tcp(TcpStream::connect(servers.plain)?)?,
            1 => servers.shake_hands()?,
            _ => exchange_tcp(usher::connect_by_user(&servers.host, &servers.service)?)?,
        }
        nanoseconds[way] = begun.elapsed().as_nanos();
    }
    Ok(nanoseconds)
}
