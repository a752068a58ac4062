//! The exporter: answers Prometheus servers with the numbers of this host's daemons. On each request it
//! connects to the daemons' numbers sockets, on which the daemons only write. So a subverted exporter changes
//! nothing, and knows no name of a user.
//!
//! Room: the listener, the numbers sockets. No key, no capability, no file.

mod asking;
mod families;
mod request;
mod server;
mod text;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_daemon::events;
use usher_daemon::watchdog::watchdog;
use usher_local::roles;

use crate::start::{self, Attempt, Start, StartError};
use request::{Format, Mistake};

/// The default address of the listener, which only processes of this host reach.
pub const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9639));

/// The exporter's own counts, since its start.
#[derive(Debug, Default)]
struct Exporter {
    scrapes: AtomicU64,
    /// Connections closed because too many were open.
    full: AtomicU64,
    /// Connections closed because the request or its answer took too long.
    slow: AtomicU64,
    /// Requests that were answered with an error.
    mistaken: AtomicU64,
}

impl Exporter {
    fn numbers(&self) -> [(&'static str, u64); 4] {
        [
            ("scrapes", &self.scrapes),
            ("refused_full", &self.full),
            ("refused_slow", &self.slow),
            ("refused_mistaken", &self.mistaken),
        ]
        .map(|(name, number)| (name, number.load(Ordering::Relaxed)))
    }

    /// The HTTP response to a request.
    async fn answer(&self, asked: Result<Format, Mistake>) -> String {
        match asked {
            Ok(format) => {
                self.scrapes.fetch_add(1, Ordering::Relaxed);
                let answers = asking::ask_daemons().await;
                let body = text::encode(format, &families::collect(&answers, &self.numbers()));
                request::response("200 OK", format.content_type(), &body)
            }
            Err(mistake) => {
                self.mistaken.fetch_add(1, Ordering::Relaxed);
                let body = format!("{}\n", mistake.explanation());
                request::response(mistake.status(), "text/plain; charset=utf-8", &body)
            }
        }
    }
}

impl Answers<Status> for Exporter {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        Ok(StatusView::new::<roles::Exporter>(
            0,
            self.numbers(),
            Vec::new(),
        ))
    }
}

/// Runs the exporter until the process ends.
///
/// # Errors
/// When it cannot start.
pub fn run(listen: SocketAddr) -> Result<(), StartError> {
    let start = Start::<roles::Exporter>::begin()?;
    let control = start.control()?;
    let [] = start.sockets()?;
    // The exporter is root here, but the bounding set of its unit lets it bind no port below 1024.
    let listener = std::net::TcpListener::bind(listen)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .attempt(format!(
            "cannot listen at {listen} (--listen ADDRESS:PORT chooses another)"
        ))?;
    start.give_up_root()?;
    start.confine()?;
    let exporter = Arc::new(Exporter::default());
    start::runtime()?.block_on(async {
        let control = control.serve(Arc::clone(&exporter));
        start::ready("usher-exporter");
        tracing::info!(name: events::DAEMON_READY, address = %listen, "exporter ready");
        tokio::select! {
            result = server::serve(listener, exporter) => result.attempt("the listener failed"),
            result = control => result.attempt("the control socket failed"),
            () = watchdog() => Ok(()),
        }
    })
}
