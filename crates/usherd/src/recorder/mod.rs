//! The recorder writes the log (`usher-log`), whose key it holds. It keeps every authentication as the bytes
//! that the client signed, and signs how each session ended. It listens only to the keeper, and touches no
//! network and no other file. It repeats the verifier's check of each signature, and compares the signed
//! contents with the verifier's claim: the keeper opens no session on the verifier's word alone.
//!
//! Room: the log's directory and key, the keeper's socket.

mod writer;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;
use usher_daemon::clock::unix_time;
use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_daemon::events;
use usher_daemon::packet_async::PacketListener;
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_local::paths;
use usher_local::roles;
use usher_log::{Log, LogError, SigningKey, SigningKeys};
use usher_proto::recorder::{MAX_RECORDER_PACKET, RecorderReply, RecorderRequest};
use usher_proto::refusal::Refusal;

use crate::link::{exchange, how};
use crate::start::{self, Attempt, Start, StartError};
use writer::Writer;

/// Replies that may wait for the keeper.
const REPLIES: usize = 4096;

/// Runs the recorder until the process ends.
pub fn run() -> Result<(), StartError> {
    let start = Start::<roles::Recorder>::begin()?;
    let account = start.account;
    let keeper = start::account_of(roles::Keeper::ROLE)?;
    let directory = Path::new(paths::LOG_DIRECTORY);
    std::fs::create_dir_all(directory)
        .and_then(|()| std::os::unix::fs::chown(directory, Some(account.uid), Some(account.gid)))
        .attempt(format!("cannot make {}", paths::LOG_DIRECTORY))?;
    let began_before = began_before();
    let control = start.control()?;
    let [listener] = start.sockets()?;
    start.give_up_root()?;
    let keys = signing_keys()?;
    start.confine()?;
    match (directory.join("verifier-key").exists(), began_before) {
        (true, _) => {}
        (false, false) => tracing::info!("the log is begun, in {}", paths::LOG_DIRECTORY),
        (false, true) => tracing::warn!(
            "the log that was in {} is not there: a new one is begun. If a file system is not \
             mounted, or the log was moved, stop the recorder and bring it back",
            paths::LOG_DIRECTORY
        ),
    }
    let mut log = Log::open(directory, keys)?;
    change_key(&mut log)?;
    start::runtime()?.block_on(async {
        let (writer, failure) = Writer::new(log);
        let writer = Arc::new(writer);
        let control = control.serve(Arc::clone(&writer));
        start::ready("usher-recorder");
        tracing::info!(name: events::DAEMON_READY, records = writer.records(), "recorder ready");
        tokio::select! {
            failed = failure => Err(failed),
            result = serve(writer, listener, keeper.uid) => result.attempt("a socket failed"),
            result = control => result.attempt("a socket failed"),
            () = watchdog() => Ok(()),
        }
    })
}

/// The log's key, and the next one if there is any. A next key that cannot be used is left out: then a log
/// that already uses it cannot be opened, and any other log keeps its key.
fn signing_keys() -> Result<SigningKeys, StartError> {
    let mut keys = SigningKeys::from(signing_key(Path::new(paths::LOG_KEY))?);
    let next = Path::new(paths::NEXT_LOG_KEY);
    if next.exists() {
        let added = signing_key(next).and_then(|key| Ok(keys.add_next(key)?));
        if let Err(error) = added {
            tracing::warn!(%error, "cannot use the next key of the log, so the log's key is not changed: \
                remove {}, and run `usher log new-key`", next.display());
        }
    }
    Ok(keys)
}

/// Changes the log's key, if there is a next one. On a full disk the log continues with the key that it has.
fn change_key(log: &mut Log) -> Result<(), LogError> {
    match log.change_key(unix_time()) {
        Ok(false) => {}
        Ok(true) => {
            tracing::info!("the log's key is changed; delete the former one: usher log forget-key")
        }
        Err(error) if error.is_full() => tracing::warn!(
            %error,
            "cannot change the log's key: the log continues with the former one; make room, and restart \
             the recorder"
        ),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Returns whether a recorder has begun a log on this host before, and marks that it has. The mark is
/// outside the log's folder, which may be a file system that is not mounted.
fn began_before() -> bool {
    let mark = Path::new(paths::LOG_BEGUN);
    let before = mark.exists();
    let marked = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(mark);
    if let Err(error) = marked {
        tracing::warn!(%error, "cannot write {}: a log that goes missing would not be noticed",
            mark.display());
    }
    before
}

/// The log's key, whose comment is the log's name.
fn signing_key(path: &Path) -> Result<SigningKey, StartError> {
    let wanted = "the log's key is an unencrypted Ed25519 key in OpenSSH's format with the log's name as \
        its comment";
    let key = start::private_key(path, wanted)?;
    SigningKey::new(key.comment(), &key).map_err(|error| StartError::key(path, wanted, error))
}

/// Accepts the keeper's connections.
async fn serve(writer: Arc<Writer>, listener: OwnedFd, keeper: u32) -> io::Result<()> {
    let listener = PacketListener::new(listener)?;
    loop {
        let connection = listener.accept_of(keeper, "keeper").await?;
        tracing::info!(name: events::DAEMON_CONNECTED, "keeper connected");
        let writer = Arc::clone(&writer);
        tokio::spawn(async move {
            let (replies, queue) = mpsc::channel(REPLIES);
            let keep = |packet: &[u8]| {
                let asked = RecorderRequest::decode(packet).map_err(io::Error::other)?;
                let request = asked.request;
                if let Err(refusal) = writer.write_records(asked, replies.clone()) {
                    tell(&replies, request, Err(refusal));
                }
                Ok(())
            };
            let end = exchange(&connection, queue, MAX_RECORDER_PACKET, keep).await;
            tracing::warn!(name: events::DAEMON_GONE, reason = how(&end), "the keeper has gone");
        });
    }
}

/// Sends the keeper a verdict. A keeper that does not read its answers loses them, and refuses the sessions.
fn tell(replies: &mpsc::Sender<Vec<u8>>, request: u64, verdict: Result<(), Refusal>) {
    let reply = RecorderReply { request, verdict };
    if replies.try_send(reply.encode()).is_err() {
        tracing::warn!("the keeper does not read its answers");
    }
}

impl Answers<Status> for Writer {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        let troubles = self.trouble().into_iter().collect();
        Ok(StatusView::new::<roles::Recorder>(
            0,
            self.numbers(),
            troubles,
        ))
    }
}
