//! `make bench`: Usher's figures, measured between two hosts of a lab. What is compared runs by
//! turns in one process, so that the machine's moods hit all alike; quote ratios of one run.
#![forbid(unsafe_code)]

mod report;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use report::{Row, write};
use usher_lab::{ALICE, Lab, Mail};

/// Usher's figures; writes target/bench/results.json.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds that are counted
    #[arg(long, default_value_t = 3000)]
    samples: usize,
}

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
    let Arguments { samples } = Arguments::parse();
    // Hosts see the folder of this program; the build leaves the server elsewhere.
    let here = std::env::current_exe()?;
    let folder = here.parent().ok_or("this program is nowhere")?;
    std::fs::copy(
        concat!(env!("OUT_DIR"), "/usher-bench-server"),
        folder.join(SERVER),
    )?;

    eprintln!("making two hosts ...");
    let mail = topology()?;
    let uid = ALICE.mailhost_uid.to_string();
    let _plain = mail.mailhost.spawn([SERVER, "plain", PLAIN])?;
    let _fork = mail.mailhost.spawn([SERVER, "fork", FORK, &uid, &uid])?;
    let address = mail.mailhost.ipv4().to_string();
    eprintln!("connect, send 128 bytes, receive 128 bytes: {samples} rounds of three ...");
    let rounds = samples.to_string();
    let output = mail
        .laptop
        .command([
            "usher-bench-client",
            &address,
            PLAIN,
            FORK,
            "mailhost",
            "bench",
            &rounds,
        ])
        .user(ALICE.name)
        .limit(Duration::from_secs(300))
        .succeed()?;
    let mut columns: [Vec<f64>; 3] = Default::default();
    for line in output.stdout.lines() {
        for (column, number) in columns.iter_mut().zip(line.split(' ')) {
            column.push(number.parse::<f64>()? / 1000.0);
        }
    }
    let [plain, fork, usher] = columns;
    let rows = [
        Row::new("connect_send_recv/plain", plain),
        Row::new("connect_send_recv/fork_setuid", fork),
        Row::new("connect_send_recv/usher", usher),
    ];
    let rows = Row::relate(rows, "connect_send_recv/plain");
    write(&rows, Path::new("target/bench/results.json"))
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
