//! `make bench`: Usher's figures, measured between two hosts of a lab. What is compared runs by
//! turns in one process, so that the machine's moods hit all alike; quote ratios of one run. What
//! the ownership programs cost is counted in a guest, in instructions.
#![forbid(unsafe_code)]

mod ownership;
mod report;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use report::Row;
use usher_lab::{ALICE, Lab, Mail};

/// Usher's figures; writes target/bench/results.json.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds that are counted
    #[arg(long, default_value_t = 3000)]
    samples: usize,
    /// Microseconds between one connection and the next
    #[arg(long, default_value_t = 500)]
    pause: u64,
    /// The kernel of the guest that measures what the ownership programs cost
    #[arg(long, default_value = "6.12")]
    kernel: String,
}

/// The steps of `connect_by_user`, in the order of usher-bench-steps.
const STEPS: [&str; 5] = [
    "connect_by_user_step/ask",
    "connect_by_user_step/announce",
    "connect_by_user_step/connect",
    "connect_by_user_step/done",
    "connect_by_user_step/send_recv",
];

const PLAIN: &str = "7001";
const FORK: &str = "7002";
const SERVER: &str = "usher-bench-server";

const SERVICE: &str = r#"
service bench {
  program "/run/lab/bin/usher-bench-server" "worker";
  listen 7003;
  style user;
  users mail;
  hosts laptop;
}
"#;
const CLIENT: &str = "client bench { users mail; service bench at mailhost port 7003; }\n";

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments {
        samples,
        pause,
        kernel,
    } = Arguments::parse();
    // Hosts see the folder of this program; the build leaves the server elsewhere.
    let here = std::env::current_exe()?;
    let folder = here.parent().ok_or("this program is nowhere")?;
    std::fs::copy(
        concat!(env!("OUT_DIR"), "/usher-bench-server"),
        folder.join(SERVER),
    )?;

    eprintln!("what the ownership programs cost, in a guest ...");
    let costs = ownership::measure(&kernel, folder)?;
    eprintln!("making two hosts ...");
    let mail = topology()?;
    let uid = ALICE.mailhost_uid.to_string();
    let _plain = mail.mailhost.spawn([SERVER, "plain", PLAIN])?;
    let _fork = mail.mailhost.spawn([SERVER, "fork", FORK, &uid, &uid])?;
    let address = mail.mailhost.ipv4().to_string();
    eprintln!("connect, send 128 bytes, receive 128 bytes: {samples} rounds of three ...");
    let (rounds, pause) = (samples.to_string(), pause.to_string());
    let [plain, fork, usher] = columns(mail.laptop.command([
        "usher-bench-client",
        &address,
        PLAIN,
        FORK,
        "mailhost",
        "bench",
        &rounds,
        &pause,
    ]))?;
    let rows = Row::relate(
        [
            Row::new("connect_send_recv/plain", plain),
            Row::new("connect_send_recv/fork_setuid", fork),
            Row::new("connect_send_recv/usher_successive", usher),
        ],
        "connect_send_recv/plain",
    );
    eprintln!("the same announced, step by step ...");
    let steps: [Vec<f64>; STEPS.len()] =
        columns(
            mail.laptop
                .command(["usher-bench-steps", "mailhost", "bench", &rounds, &pause]),
        )?;
    let rows: Vec<Row> = rows
        .into_iter()
        .chain(
            STEPS
                .iter()
                .zip(steps)
                .map(|(name, samples)| Row::new(name, samples)),
        )
        .collect();
    report::print(&rows);
    println!();
    ownership::print(&costs);
    let all: Vec<Row> = rows.into_iter().chain(ownership::rows(&costs)).collect();
    report::write(&all, Path::new("target/bench/results.json"))
}

/// Runs a measuring program as alice and reads its columns of nanoseconds as microseconds.
fn columns<const N: usize>(command: usher_lab::Command) -> Result<[Vec<f64>; N], Box<dyn Error>> {
    let output = command
        .user(ALICE.name)
        .limit(Duration::from_secs(300))
        .succeed()?;
    let mut columns = [const { Vec::new() }; N];
    for line in output.stdout.lines() {
        for (column, number) in columns.iter_mut().zip(line.split(' ')) {
            column.push(number.parse::<f64>()? / 1000.0);
        }
    }
    Ok(columns)
}

fn topology() -> Result<Mail, Box<dyn Error>> {
    let mail = Lab::mail()?;
    mail.mailhost
        .write("/etc/usher/policy.d/bench.policy", SERVICE)?;
    mail.laptop
        .write("/etc/usher/policy.d/bench.policy", CLIENT)?;
    for host in [&mail.laptop, &mail.mailhost] {
        host.run(["usher", "policy", "apply"])?;
    }
    Ok(mail)
}
