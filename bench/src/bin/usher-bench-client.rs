//! The measuring client: connects, sends 128 bytes, receives 128 bytes, in each of three ways in
//! turn, and prints the nanoseconds of each, one line per round. Run it inside a lab's host.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use usher_bench::exchange::{ORDERS, exchange_tcp, wait_for};

/// Rounds that do not count: they warm up caches, sessions and workers.
const WARM_UP: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, plain, fork, host, service, rounds, pause] = arguments.as_slice() else {
        return Err("usage: ADDRESS PLAIN-PORT FORK-PORT HOST SERVICE ROUNDS \
             PAUSE-MICROSECONDS"
            .into());
    };
    let address: IpAddr = address.parse()?;
    let plain = SocketAddr::new(address, plain.parse()?);
    let fork = SocketAddr::new(address, fork.parse()?);
    let (host, service) = (host.parse()?, service.parse()?);
    let rounds: usize = rounds.parse()?;
    let pause = Duration::from_micros(pause.parse()?);
    for server in [plain, fork] {
        wait_for(server)?;
    }
    let mut output = std::io::stdout().lock();
    for round in 0..WARM_UP + rounds {
        let mut nanoseconds = [0; 3];
        for way in ORDERS[round % ORDERS.len()] {
            // The pause keeps left-over work of the previous way (a child that exits, a withdrawal)
            // out of the measurement.
            std::thread::sleep(pause);
            let begun = Instant::now();
            let connection = match way {
                0 => TcpStream::connect(plain)?,
                1 => TcpStream::connect(fork)?,
                _ => usher::connect_by_user(&host, &service)?,
            };
            exchange_tcp(connection)?;
            nanoseconds[way] = begun.elapsed().as_nanos();
        }
        if round >= WARM_UP {
            let [plain, fork, usher] = nanoseconds;
            writeln!(output, "{plain} {fork} {usher}")?;
        }
    }
    Ok(())
}
