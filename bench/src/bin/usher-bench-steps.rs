//! Measures where the time of `connect_by_user` goes: the library's steps, with a clock between
//! them. Prints the nanoseconds of each step, one line per connection. Run it inside a lab's host.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use usher_bench::exchange::exchange_tcp;
use usher_daemon::packet::PacketSocket;
use usher_local::paths;
use usher_proto::local::{LocalReply, LocalRequest, MAX_LOCAL_PACKET};

/// Rounds that do not count: they warm up caches, sessions and workers.
const WARM_UP: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, service, rounds, pause] = arguments.as_slice() else {
        return Err("usage: HOST SERVICE ROUNDS PAUSE-MICROSECONDS".into());
    };
    let request = LocalRequest::Connect {
        host: host.parse()?,
        service: service.parse()?,
    };
    let rounds: usize = rounds.parse()?;
    let pause = Duration::from_micros(pause.parse()?);
    let mut output = std::io::stdout().lock();
    for round in 0..WARM_UP + rounds {
        std::thread::sleep(pause);
        let times = connection(&request)?;
        if round >= WARM_UP {
            let words = times.map(|time| time.as_nanos().to_string());
            writeln!(output, "{}", words.join(" "))?;
        }
    }
    Ok(())
}

/// Makes one connection; returns the times of the request to the signer, its answer, connecting,
/// releasing, and the exchange.
fn connection(request: &LocalRequest) -> Result<[Duration; 5], Box<dyn Error>> {
    let begun = Instant::now();
    let signer = PacketSocket::connect(Path::new(paths::SIGNER_APPLICATIONS))?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    signer.send(&request.encode(), &[socket.as_fd()])?;
    let asked = Instant::now();
    let reply = LocalReply::decode(&signer.receive(MAX_LOCAL_PACKET)?.bytes)?;
    let LocalReply::Ready { server } = reply else {
        return Err(format!("{reply:?}").into());
    };
    let announced = Instant::now();
    let server = match server.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), server.port()),
        IpAddr::V6(_) => server,
    };
    rustix::net::connect(&socket, &server)?;
    let connected = Instant::now();
    signer.send(&LocalRequest::Done { connected: true }.encode(), &[])?;
    drop(signer);
    let told = Instant::now();
    exchange_tcp(socket.into())?;
    let exchanged = Instant::now();
    Ok([
        asked - begun,
        announced - asked,
        connected - announced,
        told - connected,
        exchanged - told,
    ])
}
