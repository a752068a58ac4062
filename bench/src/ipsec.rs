//! Measures what IPsec protection costs: see `usher-bench-ipsec`. The rows `.../work` are the pairwise
//! differences between a governed process and one that the monitor does not see.

use std::error::Error;
use std::time::Duration;

use usher_bench::Samples;
use usher_lab::{Lab, PATIENCE};

use crate::report::{Row, relate_by_ending};

const HELPER: &str = "usher-bench-ipsec";
const PORT: &str = "7020";
/// The time for all of it.
const LIMIT: Duration = Duration::from_secs(1800);

/// Measures, with so many turns of each process.
pub fn measure(rounds: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("making two hosts; up to 100,000 sockets and 2,000 applications on one of them ...");
    let lab = Lab::new()?;
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    let mut serving = server.spawn([HELPER, "serve", PORT])?;
    serving.read_past("ready\n", PATIENCE)?;
    let address = format!("{}:{PORT}", server.ipv4());
    let group = client.cgroup().display().to_string();
    // The addresses of the sockets are the client's.
    let to_client = client.ipv4().to_string();
    server.run(["ip", "route", "add", "10.99.0.0/24", "via", &to_client])?;
    let rounds = rounds.to_string();
    let measuring = client.command([HELPER, "measure", &address, &group, &rounds]);
    let output = measuring.limit(LIMIT).succeed()?;
    eprint!("{}", output.stderr);
    let all: Vec<Samples> = serde_json::from_str(&output.stdout)?;
    let mut rows: Vec<Row> = all
        .into_iter()
        .map(|one| Row::new(&one.name, one.samples))
        .collect();
    relate_by_ending(&mut rows, "/bare", &["/bare", "/other", "/governed"]);
    Ok(rows)
}
