//! Measures where the time of `connect_by_user` goes: the library's steps, with a clock between
//! them. Prints the nanoseconds of each step, one line per connection. Run it inside a lab's host.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use usher_bench::announced::announced;
use usher_bench::exchange::exchange_tcp;
use usher_proto::local::LocalRequest;

/// Rounds that do not count: they warm up caches, sessions and workers.
const WARM_UP: usize = 50;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
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
            let words: Vec<_> = times
                .iter()
                .map(|time| time.as_nanos().to_string())
                .collect();
            writeln!(output, "{}", words.join(" "))?;
        }
    }
    Ok(())
}

/// Makes one connection; returns the times of the request to the signer, its answer, connecting,
/// releasing, and the exchange.
fn connection(request: &LocalRequest) -> Result<Vec<Duration>, Box<dyn Error + Send + Sync>> {
    let mut times = vec![Instant::now()];
    let connection = announced(request, || times.push(Instant::now()))?;
    exchange_tcp(connection)?;
    times.push(Instant::now());
    let steps = times.windows(2).map(|step| step[1] - step[0]);
    Ok(steps.collect())
}
