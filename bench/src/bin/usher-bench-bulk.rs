//! The receiving client of the bulk rows. One connection: plain, by `connect_by_user`, through the
//! proxy and through `usher connect`, alternating. Many at once: plain and through the proxy,
//! alternating. Prints kilobytes per second, one line per round. Run it inside a lab's host.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Instant;

use usher_bench::exchange::wait_for;

/// Bytes read at once.
const BUFFER: usize = 256 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [
        address,
        plain,
        proxy,
        host,
        service,
        megabytes,
        crowd,
        rounds,
    ] = arguments.as_slice()
    else {
        return Err(
            "usage: ADDRESS PLAIN-PORT PROXY-ADDRESS HOST SERVICE MEGABYTES CROWD \
             ROUNDS"
                .into(),
        );
    };
    let address: IpAddr = address.parse()?;
    let plain = SocketAddr::new(address, plain.parse()?);
    let proxy: SocketAddr = proxy.parse()?;
    let bytes = megabytes.parse::<usize>()? * 1_000_000;
    let crowd: usize = crowd.parse()?;
    let rounds: usize = rounds.parse()?;
    wait_for(plain)?;
    wait_for(proxy)?;
    let mut output = std::io::stdout().lock();
    // The first round does not count.
    for round in 0..=rounds {
        let mut rates = Vec::new();
        if crowd > 1 {
            // Alternating, so that neither is always the first.
            let mut ways = [plain, proxy];
            ways.rotate_left(round % 2);
            let mut measured = [0; 2];
            for way in ways {
                measured[usize::from(way == proxy)] = crowd_rate(way, crowd, bytes / crowd)?;
            }
            rates.extend(measured);
        } else {
            let mut measured = [0; 4];
            for turn in 0..4 {
                let way = (turn + round) % 4;
                measured[way] = match way {
                    0 => rate(TcpStream::connect(plain)?, bytes)?,
                    1 => rate(
                        usher::connect_by_user(&host.parse()?, &service.parse()?)?,
                        bytes,
                    )?,
                    2 => rate(TcpStream::connect(proxy)?, bytes)?,
                    _ => connect_rate(&format!("{host}:{service}"), bytes)?,
                };
            }
            rates.extend(measured);
        }
        if round > 0 {
            let rates: Vec<String> = rates.iter().map(u64::to_string).collect();
            writeln!(output, "{}", rates.join(" "))?;
        }
    }
    Ok(())
}

fn rate(mut connection: TcpStream, bytes: usize) -> Result<u64, Box<dyn Error>> {
    writeln!(connection, "{bytes}")?;
    receive(&mut connection, bytes)
}

fn connect_rate(destination: &str, bytes: usize) -> Result<u64, Box<dyn Error>> {
    let mut child = Command::new("usher")
        .args(["connect", destination])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("no pipes".into());
    };
    writeln!(input, "{bytes}")?;
    let rate = receive(&mut output, bytes)?;
    drop(input);
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("usher connect: {status}").into());
    }
    Ok(rate)
}

/// Kilobytes per second, from the first bytes on.
fn receive(from: &mut impl Read, bytes: usize) -> Result<u64, Box<dyn Error>> {
    let mut buffer = vec![0; BUFFER];
    let first = from.read(&mut buffer)?;
    let begun = Instant::now();
    let mut received = first;
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            length => received += length,
        }
    }
    if received != bytes {
        return Err(format!("{received} bytes have come instead of {bytes}").into());
    }
    Ok(per_second(received - first, begun))
}

/// The rate of all connections together, which are open before the bytes are requested.
fn crowd_rate(server: SocketAddr, crowd: usize, bytes: usize) -> Result<u64, Box<dyn Error>> {
    let mut connections = (0..crowd)
        .map(|_| TcpStream::connect(server))
        .collect::<Result<Vec<_>, _>>()?;
    // The proxy has then opened the connection behind each.
    for connection in &mut connections {
        writeln!(connection, "{bytes}")?;
        connection.read_exact(&mut [0])?;
    }
    let begun = Instant::now();
    let received = std::thread::scope(|scope| {
        // A few threads serve all, as in a server: this does not measure threads.
        let readers: Vec<_> = connections
            .chunks_mut(crowd.div_ceil(8))
            .map(|share| {
                scope.spawn(|| -> std::io::Result<usize> {
                    let mut buffer = vec![0; BUFFER];
                    let mut received = 0;
                    for connection in share {
                        loop {
                            match connection.read(&mut buffer)? {
                                0 => break,
                                length => received += length,
                            }
                        }
                    }
                    Ok(received)
                })
            })
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap_or(Ok(0)))
            .sum::<std::io::Result<usize>>()
    })?;
    if received != (bytes - 1) * crowd {
        return Err(format!("{received} bytes have come, which are not all").into());
    }
    Ok(per_second(received, begun))
}

fn per_second(bytes: usize, begun: Instant) -> u64 {
    (bytes as f64 / 1000.0 / begun.elapsed().as_secs_f64()) as u64
}
