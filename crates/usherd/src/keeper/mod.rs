//! The keeper owns the admission tables, the listeners and the worker processes. It starts as root
//! and keeps only the few capabilities that it needs. It parses the verifier's records, but passes
//! on unread the parts that came from the network, and it parses the recorder's answers.
//!
//! Each of its rooms uses only those before it in this list:
//! - `host`: this host's accounts and processes, and what its kernel enforces besides admission;
//! - `queues`: listeners, and the workers that serve them. It reports accounts that are gone, and failed
//!   connections;
//! - `recording`: the way to the recorder;
//! - `sessions`: opening, announcements, the clock, revocation, teardown;
//! - `calls`: services' own processes become users.
//!
//! This module makes the rooms, serves the sockets, and puts configurations in force.
//!
//! Room: the host key, the tables of admission, ownership, ports and destinations, listeners,
//! control groups. Only root's requests, the verifier, the recorder and services' calls reach it.

mod answers;
mod calls;
pub mod host;
mod queues;
mod recording;
mod sessions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_daemon::{events, messages};
use usher_kernel::KernelError;
use usher_kernel::admission::{Admission, Limits};
use usher_kernel::ownership::OwnershipError;
use usher_local::configuration::{Configuration, Stamp};
use usher_local::following::{Follower, Following};
use usher_local::paths;
use usher_local::requests::{EndingView, ReloadedView};
use usher_local::roles;
use usher_proto::handshake::HandshakeSide;
use usher_proto::host_key::HostPublicKey;

use crate::host_key::HostKey;
use crate::start::{self, Attempt, Start, StartError};
use calls::Calls;
use host::Host;
use host::destinations::Prepared;
use queues::groups::{Groups, Layout};
use queues::{Queues, Reports, Stored};
use recording::Recording;
use sessions::Sessions;

/// The state that all tasks of the keeper share: its rooms.
struct Keeper {
    limits: Limits,
    host: Arc<Host>,
    queues: Arc<Queues>,
    recording: Arc<Recording>,
    sessions: Arc<Sessions>,
    calls: Arc<Calls>,
    following: Arc<Following>,
    /// The generation that the keeper last took up without a request, and the sessions that this ended. A
    /// request to take up this generation returns them.
    taken: Mutex<(u64, Vec<EndingView>)>,
    /// Whether sessions may live that the configuration in force forbids, because they could not be ended.
    is_unsettled: AtomicBool,
}

/// Runs the keeper until the process ends.
///
/// # Errors
/// When the keeper cannot start. The pins of an earlier keeper stay in force.
pub fn run(
    cgroup: Option<PathBuf>,
    users: Option<PathBuf>,
    limits: &Limits,
    ownership: bool,
) -> Result<(), StartError> {
    let stored = Stored::take_over().attempt("cannot take the stored listeners")?;
    let start = Start::<roles::Keeper>::begin()?;
    let verifier = start::account_of(roles::Verifier::ROLE)?;
    let host_key = Arc::new(HostKey::load(Path::new(paths::HOST_KEY))?);
    let configuration = Configuration::load()?;
    usher_system::privileges::raise_descriptor_limit()?;

    let layout = Layout::take(cgroup)?;
    let groups = Groups::open(&layout)?;
    let admission = Admission::open(Path::new(paths::PIN_DIRECTORY), &layout.common, limits)?;
    let users = users.map_or_else(usher_kernel::cgroup::mount, Ok)?;
    let host = Host::open(&users, admission, configuration, ownership)?;
    // Bind the control socket before the others: a second keeper fails here, and does not take the first
    // one's sockets.
    let control = start.control()?;
    let [records, calls, handle] = start.sockets()?;
    let own_key = host_key.public();
    let (keeper, reports) = Keeper::new(host, groups, own_key, limits);
    let restricted = keeper.admit_to(&keeper.host.configuration.get())?;
    let role = roles::Keeper::ROLE;
    usher_system::privileges::keep_and_pass_on(role.capabilities, role.passes_on)?;
    usher_system::privileges::no_core_dumps()?;

    let following = Arc::clone(&keeper.following);
    start::runtime_following(&following)?.block_on(async {
        // Sessions can end below, and the log messages about that need their fields.
        messages::have_fields("usher-keeper");
        let configuration = keeper.host.configuration.get();
        keeper.queues.put_in_force(&configuration.checked);
        keeper.host.look_accounts_up_in_time().await;
        let is_settled = keeper.sessions.restore(stored)?;
        keeper.is_unsettled.store(!is_settled, Ordering::SeqCst);
        if let Err(error) = keeper.host.destinations.retain(&restricted) {
            tracing::error!(%error, "cannot lift restrictions of an earlier policy");
        }
        keeper.retain_protection(&configuration);
        keeper.sessions.restore_tokens();
        let handle = host_key.serve(handle, verifier.uid, HandshakeSide::Server);
        let control = control.serve(Arc::clone(&keeper));
        let records = Arc::clone(&keeper.sessions).serve(records, verifier.uid);
        let calls = Arc::clone(&keeper.calls).serve(calls);
        following.begin(Arc::clone(&keeper) as Arc<dyn Follower>);
        start::ready("usher-keeper");
        tracing::info!(name: events::DAEMON_READY, "keeper ready");
        let result = tokio::select! {
            result = handle => result,
            result = control => result,
            result = records => result,
            result = calls => result,
            () = keeper.recording.hear() => Ok(()),
            () = keeper.sessions.table.record_ends(&keeper.recording) => Ok(()),
            () = upkeep(&keeper) => Ok(()),
            () = keeper.queues.watch_accounts() => Ok(()),
            () = keeper.queues.common.starter.keep_running() => Ok(()),
            () = keeper.sessions.end_lost_accounts(reports.lost) => Ok(()),
            () = keeper.sessions.tell_of_failures(reports.failed) => Ok(()),
            () = following.keep() => Ok(()),
            () = watchdog() => Ok(()),
        };
        result.attempt("a local socket failed")
    })
}

/// Regular upkeep: expires announcements, ends sessions and idle workers, and cuts connections that
/// were not announced.
async fn upkeep(keeper: &Arc<Keeper>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count = 0_u64;
    let mut looking_up: Option<JoinHandle<()>> = None;
    loop {
        second.tick().await;
        keeper.sessions.connections.tidy();
        keeper.queues.end_idle();
        messages::summarize();
        keeper.sessions.look();
        keeper.host.mend_protection();
        if count.is_multiple_of(5) {
            // One look-up at a time, because the name service may be slow.
            if keeper.host.is_incomplete()
                && looking_up.as_ref().is_none_or(JoinHandle::is_finished)
            {
                let keeper = Arc::clone(keeper);
                let look_up = async move { keeper.host.look_accounts_up().await };
                looking_up = Some(tokio::spawn(look_up));
            }
            keeper.sessions.remove_unused_queues();
            keeper.sessions.look_for_silence();
        }
        count += 1;
    }
}

impl Keeper {
    /// Makes the rooms. Also returns the reports of the queues.
    fn new(
        host: Host,
        groups: Groups,
        own_key: HostPublicKey,
        limits: &Limits,
    ) -> (Arc<Self>, Reports) {
        let host = Arc::new(host);
        let (queues, reports) = Queues::new(Arc::clone(&host), groups, limits.listeners);
        let queues = Arc::new(queues);
        let recording = Arc::new(Recording::new());
        let sessions = Arc::new(Sessions::new(
            Arc::clone(&host),
            own_key,
            Arc::clone(&queues),
            Arc::clone(&recording),
            limits.sessions,
        ));
        let calls = Calls::new(
            Arc::clone(&host),
            Arc::clone(&queues),
            Arc::clone(&sessions),
        );
        let keeper = Self {
            limits: *limits,
            host,
            queues,
            recording,
            sessions,
            calls: Arc::new(calls),
            following: Following::new(),
            taken: Mutex::default(),
            is_unsettled: AtomicBool::default(),
        };
        (Arc::new(keeper), reports)
    }

    /// Sets a configuration in the kernel's tables. Returns the services that it restricts, for
    /// [`retain`](host::destinations::ConnectConfinement::retain).
    fn admit_to(&self, configuration: &Configuration) -> Result<Option<Prepared>, OwnershipError> {
        let policy = &configuration.checked.policy;
        self.host.demand_protection(policy)?;
        let restricted = self.host.destinations.restrict(policy)?;
        self.sessions.admit_to(&configuration.checked)?;
        Ok(restricted)
    }

    /// Puts the applied configuration in force. Ends and returns the sessions that it no longer permits.
    fn reload(&self) -> Result<Vec<EndingView>, StartError> {
        let ended = self.take_up(Configuration::load()?)?;
        let generation = self.host.configuration.get().generation();
        let (taken, mut all) = std::mem::take(&mut *self.taken.lock());
        if taken != generation {
            return Ok(ended);
        }
        all.extend(ended);
        Ok(all)
    }

    fn take_up(&self, fresh: Configuration) -> Result<Vec<EndingView>, StartError> {
        let former = self.host.configuration.get();
        let admitted = self.admit_to(&fresh);
        let restricted = admitted.inspect_err(|_| self.retain_protection(&former))?;
        let ended = self.put_in_force(fresh)?;
        self.sessions.table.close_stale_tokens();
        self.retain_protection(&self.host.configuration.get());
        self.host.destinations.retain(&restricted)?;
        Ok(ended)
    }

    /// Lifts the demands for protection of services that a configuration does not have. If that fails, these
    /// demands stay until the next reload: unprotected packets do not reach those ports.
    fn retain_protection(&self, configuration: &Configuration) {
        let policy = &configuration.checked.policy;
        if let Err(error) = self.host.protected.retain(policy) {
            tracing::error!(%error, "cannot lift the demands for protection of another policy");
        }
    }

    /// Puts a configuration in force. Ends and returns the sessions that it no longer permits. Needs no disk.
    fn put_in_force(&self, fresh: Configuration) -> Result<Vec<EndingView>, KernelError> {
        let former = self.host.configuration.get();
        let generation = fresh.generation();
        // Put the configuration in force before checking the sessions: a session that is opened meanwhile is
        // checked against the new configuration.
        self.is_unsettled.store(true, Ordering::SeqCst);
        let fresh = self.host.configuration.put(fresh);
        self.host.identities.forget();
        self.queues.put_in_force(&fresh.checked);
        self.calls.generation.send_replace(generation);
        let ended = self.sessions.end_forbidden(&former.checked)?;
        self.is_unsettled.store(false, Ordering::SeqCst);
        self.sessions.remove_unused_queues();
        tracing::info!(name: events::CONFIGURATION_IN_FORCE, generation, ended = ended.len(),
            "configuration in force");
        Ok(ended)
    }

    /// Waits for the processes of removed queues to end, at most `queues::GONE`, and cuts the connections
    /// that are left to be cut. Returns the processes that are left, in words.
    async fn settle(queues: &Queues, sessions: &Sessions) -> Vec<String> {
        let unfinished = queues.all_gone().await;
        sessions.connections.cut_left();
        unfinished
    }

    /// The answer to a request that has changed the configuration, after [`Keeper::settle`].
    async fn settled(&self, ended: Vec<EndingView>) -> ReloadedView {
        let unfinished = Self::settle(&self.queues, &self.sessions).await;
        ReloadedView {
            generation: self.host.configuration.get().generation(),
            ended,
            unfinished,
        }
    }
}

impl Follower for Keeper {
    fn in_force(&self) -> Option<Stamp> {
        let is_settled = !self.is_unsettled.load(Ordering::SeqCst);
        is_settled.then(|| self.host.configuration.get().stamp())
    }

    fn take(&self, stored: Configuration) -> Result<(), String> {
        let generation = stored.generation();
        let ended = self.take_up(stored).map_err(|error| error.to_string())?;
        for ending in &ended {
            let session = &ending.session;
            tracing::warn!(user = %session.user, service = %session.service, host = %session.host,
                connections = session.connections.len(), reason = ending.reason,
                "a session is ended that the stored configuration forbids");
        }
        *self.taken.lock() = (generation, ended);
        let (host, queues) = (Arc::clone(&self.host), Arc::clone(&self.queues));
        let sessions = Arc::clone(&self.sessions);
        tokio::spawn(async move {
            host.look_accounts_up_in_time().await;
            for left in Self::settle(&queues, &sessions).await {
                tracing::warn!(left, "cannot end a session completely");
            }
        });
        Ok(())
    }
}
