//! Connects repeatedly for a second, from several clients at once, and prints how many connections per
//! second were served, and how many in all: 128 bytes sent, and received. Run it inside a lab's host.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use usher_base::{HostName, ServiceName};
use usher_bench::announced::announced;
use usher_bench::exchange::{exchange_tcp, wait_for};
use usher_proto::local::LocalRequest;

const SECOND: Duration = Duration::from_secs(1);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, host, service, way, clients] = arguments.as_slice() else {
        return Err("usage: ADDRESS HOST SERVICE token|announced|PORT CLIENTS".into());
    };
    let (host, service): (HostName, ServiceName) = (host.parse()?, service.parse()?);
    let request = LocalRequest::Connect {
        host: host.clone(),
        service: service.clone(),
    };
    let address: IpAddr = address.parse()?;
    let clients: usize = clients.parse()?;
    let connect = || -> Outcome<TcpStream> {
        match way.as_str() {
            "token" => Ok(usher::connect_by_user(&host, &service)?),
            "announced" => announced(&request, || ()),
            port => Ok(TcpStream::connect((address, port.parse::<u16>()?))?),
        }
    };
    match way.parse() {
        Ok(port) => wait_for(SocketAddr::new(address, port))?,
        // The first connection opens a session, whose tokens come soon after.
        Err(_) => exchange_tcp(connect()?)?,
    }
    let begun = Instant::now();
    let served: Vec<Outcome<usize>> = std::thread::scope(|scope| {
        let client = || -> Outcome<usize> {
            let mut served = 0;
            while begun.elapsed() < SECOND {
                exchange_tcp(connect()?)?;
                served += 1;
            }
            Ok(served)
        };
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        clients
            .into_iter()
            .map(|client| client.join().map_err(|_| "a thread failed")?)
            .collect()
    });
    let mut sum = 0;
    for served in served {
        sum += served?;
    }
    println!("{} {sum}", sum as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
