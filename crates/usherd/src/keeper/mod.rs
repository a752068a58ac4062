//! The keeper: owns the admission tables, the listeners and the worker processes. It starts as
//! root and keeps the few capabilities that this takes; it parses records of the verifier,
//! passes on unread what of them came from the network, and parses the recorder's answers.

mod answers;
mod calls;
pub mod host;
mod queues;
mod recording;
mod sessions;

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use usher_kernel::admission::{Admission, Limits};
use usher_local::checked::Checked;
use usher_local::configuration::{Configuration, InForce};
use usher_local::control::{EndingView, ReloadedView};
use usher_local::control_server::ControlSocket;
use usher_local::paths;
use usher_local::roles::{self, HasRole};
use usher_local::watchdog::watchdog;
use usher_proto::handshake::HandshakeSide;
use usher_proto::host_key::HostPublicKey;
use usher_proto::keeper_record::KEEPER_RECORD_SIZE;
use usher_proto::session_id::SessionId;

use crate::host_key::HostKey;
use crate::start::{self, Attempt, Start, StartError};
use host::Host;
use queues::{LostAccount, Queues, Stored, groups};
use sessions::table::{agenda, recent, share, tokens, unrecorded};
use sessions::{announced, restore, teardown, verifier};

/// What all of the keeper's tasks share.
struct Keeper {
    admission: Arc<Admission>,
    /// This host's.
    host_key: HostPublicKey,
    configuration: Arc<InForce>,
    queues: Arc<Queues>,
    host: Arc<Host>,
    /// Told of every configuration that comes in force.
    reloaded: tokio::sync::watch::Sender<u64>,
    shares: share::Shares,
    agenda: agenda::Agenda,
    recent: recent::Recent,
    ends: unrecorded::Ends,
    recording: recording::Recording,
    announced: announced::Announcements,
    unread: tokens::Unread,
    /// Ended sessions whose connections are still to be cut.
    uncut: Mutex<HashSet<SessionId>>,
    /// Where ended sessions are told to the verifier, while it is connected.
    verifier: Mutex<Option<mpsc::Sender<[u8; KEEPER_RECORD_SIZE]>>>,
}

/// Puts the policy's service ports under admission.
fn set_services(admission: &Admission, checked: &Checked) -> Result<(), usher_kernel::KernelError> {
    let ports: Vec<(u16, u32)> = checked
        .policy
        .services
        .values()
        .map(|service| (service.listen, service.id))
        .collect();
    admission.set_services(&ports)
}

/// Runs the keeper until the process ends.
///
/// # Errors
/// When it cannot start. What an earlier keeper pinned stays in force.
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

    let place = groups::Place::take(cgroup)?;
    let groups = groups::Groups::open(&place)?;
    let admission = Admission::open(Path::new(paths::PIN_DIRECTORY), &place.common, limits)?;
    let users = users.map_or_else(usher_kernel::cgroup::mount, Ok)?;
    let host = Host::open(&users, &admission, ownership)?;
    // Not before: this refuses a second keeper, who would take a living one's sockets away.
    let control = start.control()?;
    let [records, calls, handle] = start.sockets()?;
    set_services(&admission, &configuration.checked)?;
    let restricted = host.destinations.restrict(&configuration.checked.policy)?;
    tokens::set_client_addresses(&admission, &configuration.checked.policy);
    let role = roles::Keeper::ROLE;
    usher_system::privileges::keep_and_pass_on(role.capabilities, role.passes_on)?;
    usher_system::privileges::no_core_dumps()?;

    let admission = Arc::new(admission);
    let configuration = Arc::new(InForce::new(configuration));
    let host = Arc::new(host);
    let (queues, lost) = Queues::new(
        Arc::clone(&admission),
        Arc::clone(&configuration),
        Arc::clone(&host),
        groups,
        limits.listeners,
    );
    let keeper = Arc::new(Keeper {
        admission,
        host_key: host_key.public(),
        configuration,
        queues: Arc::new(queues),
        host,
        reloaded: tokio::sync::watch::Sender::new(0),
        shares: share::Shares::new(limits.sessions),
        agenda: agenda::Agenda::default(),
        recent: recent::Recent::default(),
        ends: unrecorded::Ends::default(),
        recording: recording::Recording::new(),
        announced: announced::Announcements::default(),
        unread: tokens::Unread::default(),
        uncut: Mutex::default(),
        verifier: Mutex::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .attempt("cannot start the runtime")?;
    runtime
        .block_on(async {
            keeper
                .queues
                .put_in_force(&keeper.configuration.get().checked);
            let configuration = &keeper.configuration;
            keeper.host.look_accounts_up_in_time(configuration).await;
            restore::restore(&keeper, stored);
            if let Err(error) = keeper.host.destinations.retain(&restricted) {
                tracing::error!(%error, "lifting restrictions of an earlier policy");
            }
            tokens::close_stale(&keeper);
            keeper.unread.attach(&keeper);
            let handle = host_key.serve(handle, verifier.uid, HandshakeSide::Server);
            let sockets = Sockets {
                control,
                records,
                calls,
            };
            let queues = Arc::clone(&keeper.queues);
            tokio::select! {
                result = serve(keeper, sockets, lost, handle, verifier.uid) => result,
                () = queues.keep_starter_running() => Ok(()),
            }
        })
        .attempt("a local socket failed")
}

/// Where others reach the keeper.
struct Sockets {
    control: ControlSocket<roles::Keeper>,
    records: OwnedFd,
    calls: OwnedFd,
}

async fn serve(
    keeper: Arc<Keeper>,
    sockets: Sockets,
    lost: mpsc::Receiver<LostAccount>,
    handle: impl Future<Output = std::io::Result<()>>,
    verifier: u32,
) -> std::io::Result<()> {
    let control = sockets.control.serve(Arc::clone(&keeper));
    let records = verifier::serve(Arc::clone(&keeper), sockets.records, verifier);
    let calls = calls::serve(Arc::clone(&keeper), sockets.calls);
    let recorder = Arc::clone(&keeper);
    let ending = Arc::clone(&keeper);
    let upkeep = upkeep(Arc::clone(&keeper));
    let lost = teardown::end_lost_accounts(&ending, lost);
    start::ready();
    tracing::info!("keeper ready");
    tokio::select! {
        result = handle => result,
        result = control => result,
        result = records => result,
        result = calls => result,
        () = recorder.recording.hear() => Ok(()),
        () = unrecorded::record(&ending) => Ok(()),
        () = upkeep => Ok(()),
        () = ending.queues.watch_accounts() => Ok(()),
        () = lost => Ok(()),
        () = watchdog() => Ok(()),
    }
}

/// What is done by the clock: announcements expire, sessions end, idle workers go, connections
/// that nobody announced are cut.
async fn upkeep(keeper: Arc<Keeper>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count = 0_u64;
    let mut looking_up: Option<JoinHandle<()>> = None;
    loop {
        second.tick().await;
        teardown::cut_untracked(&keeper);
        teardown::cut_left(&keeper);
        match keeper.admission.sweep() {
            Ok(0) => {}
            Ok(expired) => tracing::info!(expired, "announced connections that never came"),
            Err(error) => tracing::error!(%error, "sweeping the admission table"),
        }
        if !keeper.announced.is_empty() {
            match keeper.admission.admissions() {
                Ok(rows) => keeper.announced.recount(&rows),
                Err(error) => tracing::error!(%error, "counting announced connections"),
            }
        }
        if let Err(error) = keeper.admission.recount_outstanding() {
            tracing::error!(%error, "counting connections that have not come");
        }
        keeper.queues.end_idle();
        usher_local::messages::summarize();
        keeper.unread.attach(&keeper);
        agenda::look(&keeper);
        if count.is_multiple_of(5) {
            // One at a time, as the name service may not answer for long.
            if keeper.host.is_incomplete()
                && looking_up.as_ref().is_none_or(JoinHandle::is_finished)
            {
                let keeper = Arc::clone(&keeper);
                looking_up = Some(tokio::spawn(async move {
                    keeper.host.look_accounts_up(&keeper.configuration).await
                }));
            }
            teardown::remove_unused_queues(&keeper);
        }
        count += 1;
    }
}

impl Keeper {
    /// Puts the applied configuration in force and ends what it no longer permits, which it returns.
    fn reload(&self) -> Result<Vec<EndingView>, StartError> {
        let fresh = Configuration::load()?;
        let restricted = self.host.destinations.restrict(&fresh.checked.policy)?;
        set_services(&self.admission, &fresh.checked)?;
        tokens::set_client_addresses(&self.admission, &fresh.checked.policy);
        let ended = self.put_in_force(fresh)?;
        self.host.destinations.retain(&restricted)?;
        Ok(ended)
    }

    /// Puts a configuration in force and ends what it no longer permits, which it returns. Needs no
    /// disk.
    fn put_in_force(
        &self,
        fresh: Configuration,
    ) -> Result<Vec<EndingView>, usher_kernel::KernelError> {
        let former = self.configuration.get();
        let generation = fresh.generation();
        // In force first, then the sessions are looked through: one that is opened meanwhile has
        // been checked against the new configuration.
        let fresh = self.configuration.put(fresh);
        self.host.identities.forget();
        self.queues.put_in_force(&fresh.checked);
        self.reloaded.send_replace(generation);
        let ended = teardown::end_forbidden(self, &former.checked)?;
        teardown::remove_unused_queues(self);
        tracing::info!(generation, ended = ended.len(), "configuration in force");
        Ok(ended)
    }

    /// The answer when nothing runs or is accepted any more that the configuration in force forbids.
    async fn settled(&self, ended: Vec<EndingView>) -> ReloadedView {
        let unfinished = self.queues.all_gone().await;
        teardown::cut_left(self);
        ReloadedView {
            generation: self.configuration.get().generation(),
            ended,
            unfinished,
        }
    }

    /// What putting a configuration, as it was sent, in force would end.
    async fn would_end(&self, candidate: Vec<u8>) -> Result<Vec<EndingView>, StartError> {
        // Aside, as a large one takes a while: connections wait for this thread.
        let read = tokio::task::spawn_blocking(move || Configuration::read(&candidate));
        let candidate = read.await.attempt("cannot read the configuration")??;
        Ok(teardown::would_end(self, &candidate)?)
    }
}
