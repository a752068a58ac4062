//! Asking the daemons of this host for their numbers.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;
use usher_daemon::control::NumbersView;
use usher_daemon::role::{HasRole, Role};
use usher_local::roles::{self, ROLES};

/// How long a daemon may take to answer. Daemons are asked at the same time, so a scrape takes little longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The largest answer, in bytes.
const LARGEST: u64 = 256 << 10;

/// A daemon's answer.
#[derive(Debug)]
pub enum Answer {
    /// Its numbers.
    Numbers(NumbersView),
    /// The daemon takes no connection, or its answer is unreadable.
    Down,
    /// The daemon has not answered in time.
    Hangs,
}

/// Asks all daemons but the exporter, at the same time.
pub async fn ask_daemons() -> Vec<(&'static Role, Answer)> {
    let daemons = ROLES.iter().filter(|role| role.is_daemon());
    let others = daemons.filter(|role| role.name != roles::Exporter::ROLE.name);
    let asked: Vec<_> = others
        .map(|role| (*role, tokio::spawn(ask(role))))
        .collect();
    let mut answers = Vec::new();
    for (role, answer) in asked {
        // A task ends early only with the runtime.
        answers.push((role, answer.await.unwrap_or(Answer::Down)));
    }
    answers
}

async fn ask(role: &'static Role) -> Answer {
    match timeout(PATIENCE, read(role.numbers_socket())).await {
        Ok(Ok(numbers)) => Answer::Numbers(numbers),
        // The socket's backlog is full: the daemon has accepted no connection for long.
        Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Answer::Hangs,
        Ok(Err(error)) => {
            tracing::debug!(role = role.name, %error, "cannot read the numbers");
            Answer::Down
        }
        Err(_) => Answer::Hangs,
    }
}

async fn read(socket: String) -> io::Result<NumbersView> {
    let stream = UnixStream::connect(socket).await?;
    let mut line = Vec::new();
    stream.take(LARGEST).read_to_end(&mut line).await?;
    Ok(serde_json::from_slice(&line)?)
}
