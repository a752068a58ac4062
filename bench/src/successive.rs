//! Measures a user's connections after the first, and where the time of announced ones goes.

use std::error::Error;

use usher_lab::{ALICE, LabError, Mail, Running};

use crate::report::Row;
use crate::{PLAIN, SERVER, columns};

/// The steps of `connect_by_user`, in the order of usher-bench-steps.
const STEPS: [&str; 5] = [
    "connect_by_user_step/ask",
    "connect_by_user_step/announce",
    "connect_by_user_step/connect",
    "connect_by_user_step/done",
    "connect_by_user_step/send_recv",
];

/// The port of the server that forks.
const FORK: &str = "7002";

/// Alice's service, whose worker runs the plain server's loop.
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
    mail.add_policies("bench", SERVICE, CLIENT)?;
    let _fork = start_forking(mail)?;
    eprintln!("connect, send 128 bytes, receive 128 bytes: {samples} rounds of three ...");
    let [plain, fork, usher] = connections(mail, samples, pause)?;
    let rows = Row::relate(
        [
            Row::new("connect_send_recv/plain", plain),
            Row::new("connect_send_recv/fork_setuid", fork),
            Row::new("connect_send_recv/usher_successive", usher),
        ],
        "connect_send_recv/plain",
    );
    eprintln!("the same announced, step by step ...");
    let steps = STEPS.iter().zip(steps(mail, samples, pause)?);
    Ok(rows
        .into_iter()
        .chain(steps.map(|(name, samples)| Row::new(name, samples)))
        .collect())
}

/// The server that forks, and becomes alice, for each connection.
pub fn start_forking(mail: &Mail) -> Result<Running, LabError> {
    let uid = ALICE.mailhost_uid.to_string();
    mail.mailhost.spawn([SERVER, "fork", FORK, &uid, &uid])
}

/// Alice's connections to the plain server, to the one that forks and by token, alternating. Pauses are
/// in microseconds.
pub fn connections(
    mail: &Mail,
    rounds: usize,
    pause: u64,
) -> Result<[Vec<f64>; 3], Box<dyn Error>> {
    let address = mail.mailhost.ipv4().to_string();
    let (rounds, pause) = (rounds.to_string(), pause.to_string());
    columns(
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
    )
}

/// Alice's announced connections, step by step: see [`STEPS`].
pub fn steps(
    mail: &Mail,
    rounds: usize,
    pause: u64,
) -> Result<[Vec<f64>; STEPS.len()], Box<dyn Error>> {
    let (rounds, pause) = (rounds.to_string(), pause.to_string());
    columns(
        mail.laptop
            .command(["usher-bench-steps", "mailhost", "bench", &rounds, &pause])
            .user(ALICE.name),
    )
}
