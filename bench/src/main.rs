//! `make bench` measures Usher between two hosts of a lab. The compared ways alternate in one
//! process, so that the machine's load affects all alike; quote ratios of one run. The cost of the
//! ownership programs, of mandatory access control, of file transfers by ESP and of floods is counted in
//! guests, in instructions.
#![forbid(unsafe_code)]

mod bulk;
mod first;
mod flood;
mod guest;
mod ipsec;
mod mac;
mod ownership;
mod policy;
mod report;
mod scale;
mod starts;
mod successive;
mod transfers;
mod verify;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use usher_lab::Lab;

/// Usher's figures; writes target/bench/results.json.
#[derive(Debug, Parser)]
struct Arguments {
    /// Number of counted rounds
    #[arg(long, default_value_t = 3000)]
    samples: usize,
    /// Microseconds between one connection and the next
    #[arg(long, default_value_t = 500)]
    pause: u64,
    /// The kernel of the guests that count instructions
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// The kernel of the guests that count mandatory access control; it needs the hooks of 6.18
    #[arg(long, default_value = "6.18")]
    mac_kernel: String,
    /// Sessions of the host with many sessions
    #[arg(long, default_value_t = 20_000)]
    sessions: u32,
    /// Workers of that host
    #[arg(long, default_value_t = 200)]
    workers: u32,
    /// Queues of the host on which workers are started beside them
    #[arg(long, default_value_t = 10_000)]
    queues: u32,
    /// Rounds of a second for each way to start a worker
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Files of 2 KB that are transferred by IPsec
    #[arg(long, default_value_t = 500)]
    files: usize,
    /// Size of the large file that is transferred by IPsec, in megabytes
    #[arg(long, default_value_t = 10)]
    megabytes: usize,
    /// Packets of each flood
    #[arg(long, default_value_t = 20_000)]
    packets: usize,
    /// Measure only these
    #[arg(long, value_delimiter = ',', value_name = "PART,...")]
    only: Vec<Part>,
}

/// The parts that can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The cost of the ownership programs
    Ownership,
    /// A user's connections after the first
    Successive,
    /// Users' first connections
    First,
    /// Bytes through a connection, and through many
    Bulk,
    /// The time to check an authenticator
    Verify,
    /// Many sessions and workers
    Scale,
    /// A policy of many users, services and networks
    Policy,
    /// Starting a worker for each connection
    Starts,
    /// The costs of IPsec protection for programs
    Ipsec,
    /// File transfers by FTP and SFTP: in the clear, by IPsec configured by hand, by policy
    Transfers,
    /// The cost of a flood for the flooded host
    Flood,
    /// The cost of mandatory access control for programs
    Mac,
}

/// The server without authentication, to which every row of connections is compared.
const PLAIN: &str = "7001";
const SERVER: &str = "usher-bench-server";
/// The rounds of measurements in guests, which vary little.
const GUEST_ROUNDS: usize = 2;
/// The number of measurements of each command on a large policy.
const POLICY_TIMES: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    // Hosts see the folder of this program; the build puts the server elsewhere.
    let here = std::env::current_exe()?;
    let folder = here.parent().ok_or("this program is nowhere")?;
    for (built, name) in [
        (concat!(env!("OUT_DIR"), "/usher-bench-server"), SERVER),
        (concat!(env!("OUT_DIR"), "/usher-bench-tiny"), starts::TINY),
    ] {
        std::fs::copy(built, folder.join(name))?;
    }

    let mut rows = Vec::new();
    let mut costs = None;
    if wanted(Part::Ownership) {
        eprintln!("what the ownership programs cost, in a guest ...");
        costs = Some(ownership::measure(&arguments.kernel, folder)?);
    }
    if wanted(Part::Successive) || wanted(Part::First) {
        eprintln!("making two hosts ...");
        let mail = Lab::mail()?;
        let _plain = mail.mailhost.spawn([SERVER, "plain", PLAIN])?;
        if wanted(Part::Successive) {
            rows.extend(successive::measure(
                &mail,
                arguments.samples,
                arguments.pause,
            )?);
        }
        if wanted(Part::First) {
            rows.extend(first::measure(&mail, arguments.samples, arguments.pause)?);
        }
    }
    if wanted(Part::Bulk) {
        rows.extend(bulk::measure(arguments.samples.div_ceil(100))?);
    }
    if wanted(Part::Verify) {
        rows.extend(verify::measure(folder, arguments.samples.div_ceil(30))?);
    }
    if wanted(Part::Scale) {
        let size = scale::Size {
            sessions: arguments.sessions,
            workers: arguments.workers,
        };
        rows.extend(scale::measure(&size, arguments.samples, arguments.pause)?);
    }
    if wanted(Part::Policy) {
        rows.extend(policy::measure(POLICY_TIMES)?);
    }
    if wanted(Part::Starts) {
        rows.extend(starts::measure(arguments.rounds, arguments.queues)?);
    }
    if wanted(Part::Ipsec) {
        rows.extend(ipsec::measure(arguments.samples.div_ceil(30))?);
    }
    let kernel = &arguments.kernel;
    if wanted(Part::Transfers) {
        let sizes = [arguments.files, arguments.megabytes, GUEST_ROUNDS];
        rows.extend(transfers::measure(kernel, folder, sizes)?);
    }
    if wanted(Part::Flood) {
        let sizes = [arguments.packets, GUEST_ROUNDS];
        rows.extend(flood::measure(kernel, folder, sizes)?);
    }
    let mut mac_rows = Vec::new();
    if wanted(Part::Mac) {
        mac_rows = mac::measure(&arguments.mac_kernel, folder, GUEST_ROUNDS)?;
    }
    report::print(&rows);
    if wanted(Part::Transfers) {
        println!();
        transfers::print(&rows);
    }
    if let Some(costs) = costs {
        println!();
        ownership::print(&costs);
        rows.extend(ownership::rows(&costs));
    }
    if !mac_rows.is_empty() {
        println!();
        mac::print(&mac_rows);
        rows.extend(mac_rows);
    }
    report::write(&rows, Path::new("target/bench/results.json"))
}

/// Runs a measuring program and reads its columns of nanoseconds as microseconds.
fn columns<const N: usize>(command: usher_lab::Command) -> Result<[Vec<f64>; N], Box<dyn Error>> {
    let output = command.limit(Duration::from_secs(300)).succeed()?;
    numbers(&output.stdout)
}

/// The columns of nanoseconds in a measuring program's output, as microseconds.
fn numbers<const N: usize>(text: &str) -> Result<[Vec<f64>; N], Box<dyn Error>> {
    let mut columns = [const { Vec::new() }; N];
    for line in text.lines() {
        for (column, number) in columns.iter_mut().zip(line.split(' ')) {
            column.push(number.parse::<f64>()? / 1000.0);
        }
    }
    Ok(columns)
}
