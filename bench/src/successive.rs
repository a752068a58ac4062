//! A user's connections after the first, and where the time of announced ones goes.

use std::error::Error;

use usher_lab::{ALICE, Mail};

use crate::report::Row;
use crate::{PLAIN, SERVER, apply, columns};

/// The steps of `connect_by_user`, in the order of usher-bench-steps.
const STEPS: [&str; 5] = [
    "connect_by_user_step/ask",
    "connect_by_user_step/announce",
    "connect_by_user_step/connect",
    "connect_by_user_step/done",
    "connect_by_user_step/send_recv",
];

/// The port of the server that forks.
pub const FORK: &str = "7002";

/// Alice's service, whose worker goes through the plain server's loop.
pub const SERVICE: &str = r#"
service bench {
  program "/run/lab/bin/usher-bench-server" "worker";
  listen 7003;
  style user;
  users mail;
  hosts laptop;
}
"#;
/// The laptop's side of it.
pub const CLIENT: &str = "client bench { users mail; service bench at mailhost port 7003; }\n";

/// Measures as alice; pauses are in microseconds.
pub fn measure(mail: &Mail, samples: usize, pause: u64) -> Result<Vec<Row>, Box<dyn Error>> {
    apply(mail, "bench", SERVICE, CLIENT)?;
    let uid = ALICE.mailhost_uid.to_string();
    let _fork = mail.mailhost.spawn([SERVER, "fork", FORK, &uid, &uid])?;
    let address = mail.mailhost.ipv4().to_string();
    eprintln!("connect, send 128 bytes, receive 128 bytes: {samples} rounds of three ...");
    let (rounds, pause) = (samples.to_string(), pause.to_string());
    let [plain, fork, usher] = columns(
        mail.laptop
            .command([
                "usher-bench-client",
                &address,
                PLAIN,
                FORK,
                "mailhost",
                "bench",
                &rounds,
                &pause,
            ])
            .user(ALICE.name),
    )?;
    let rows = Row::relate(
        [
            Row::new("connect_send_recv/plain", plain),
            Row::new("connect_send_recv/fork_setuid", fork),
            Row::new("connect_send_recv/usher_successive", usher),
        ],
        "connect_send_recv/plain",
    );
    eprintln!("the same announced, step by step ...");
    let steps: [Vec<f64>; STEPS.len()] = columns(
        mail.laptop
            .command(["usher-bench-steps", "mailhost", "bench", &rounds, &pause])
            .user(ALICE.name),
    )?;
    let steps = STEPS.iter().zip(steps);
    Ok(rows
        .into_iter()
        .chain(steps.map(|(name, samples)| Row::new(name, samples)))
        .collect())
}
