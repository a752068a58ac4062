//! The signer keeps the users' private keys, or asks their ssh-agents. It speaks for a user only
//! when one of the user's processes asks, and only to services that the client policy permits. It
//! never touches the network: its messages travel through the courier, and it parses only
//! fixed-size answers.
//!
//! Room: users' private keys, the tables of tickets and gates, held SYNs, sockets of local
//! programs. No other process reads the keys.

mod announcement;
mod asking;
mod binding;
mod callers;
mod chains;
mod closing;
mod failures;
mod gates;
mod keys;
mod lease;
mod loans;
mod names;
mod open;
mod plain;
mod programs;
mod reauthentication;
mod relay;
mod renewal;
mod reports;
mod sessions;
mod signing;
mod tickets;
mod ways;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use usher_daemon::clock::unix_time;
use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_daemon::events;
use usher_daemon::role::HasRole;
use usher_daemon::watchdog::watchdog;
use usher_local::configuration::{Configuration, InForce, Stamp as StoredStamp};
use usher_local::following::{Follower, Following};
use usher_local::requests::{
    AgentView, Agents, AgentsView, Disable, Enable, FailuresView, Prepare, PreparedView, Reload,
    ReloadedView,
};
use usher_local::roles;
use usher_local::{paths, requests};
use usher_policy::Policy;
use usher_proto::handshake::HandshakeSide;
use usher_proto::host_key::HostPublicKey;
use usher_proto::refusal::Refusal;
use usher_proto::ssh_key::HashAlg;
use usher_system::{SystemError, namespace};

use crate::clocks::Clocks;
use crate::host_key::HostKey;
use crate::ports::{ReservedPorts, of_proxy};
use crate::start::{self, Attempt, Start, StartError};
use chains::Chains;
use failures::Failures;
use keys::{Keys, Stamp};
use lease::{Lease, Leases, Use};
use loans::Loans;
use names::Names;
use plain::Plain;
use programs::{ListedPrograms, ProgramsError, Relisting};
use relay::Relay;
use sessions::{Pair, SessionKey, Sessions, purpose};
use tickets::Tickets;
use ways::Ways;

/// The state that all tasks of the signer share.
struct Signer {
    host_key: HostPublicKey,
    /// Cookie of the signer's network namespace, which never changes.
    network: u64,
    configuration: InForce,
    following: Arc<Following>,
    keys: Keys,
    leases: Leases,
    sessions: Sessions,
    tickets: Arc<Tickets>,
    /// The proxy's ports.
    ports: ReservedPorts,
    chains: Chains,
    plain: Plain,
    programs: Arc<ListedPrograms>,
    relisting: Relisting,
    loans: Loans,
    names: Names,
    ways: Ways,
    clocks: Clocks,
    relay: Arc<Relay>,
    failures: Failures,
    /// Notified of every configuration that comes in force.
    reloaded: tokio::sync::Notify,
    /// The proxy's account, the only one that may ask on behalf of others.
    proxy_uid: Option<u32>,
}

impl Signer {
    fn new(
        host_key: HostPublicKey,
        configuration: Configuration,
        keys: Keys,
        tickets: Tickets,
        ports: ReservedPorts,
        proxy_uid: Option<u32>,
    ) -> Result<Self, SystemError> {
        let relay = Relay::default();
        relay.know(&configuration.checked.policy);
        Ok(Self {
            host_key,
            network: namespace::own_network()?,
            configuration: InForce::new(configuration),
            following: Following::new(),
            keys,
            leases: Leases::default(),
            sessions: Sessions::default(),
            tickets: Arc::new(tickets),
            ports,
            chains: Chains::default(),
            plain: Plain::default(),
            programs: Arc::default(),
            relisting: Relisting::default(),
            loans: Loans::default(),
            names: Names::default(),
            ways: Ways::default(),
            clocks: Clocks::default(),
            relay: Arc::new(relay),
            failures: Failures::default(),
            reloaded: tokio::sync::Notify::new(),
            proxy_uid,
        })
    }

    /// Grants a lease of a pair by the configuration in force.
    fn lease(&self, pair: Pair, used_for: Use) -> Result<Lease, Refusal> {
        self.leases
            .grant(pair, used_for, &self.configuration, &self.programs)
    }

    /// The stamp of the key that would sign for a session now. A session by a removed key is no longer used.
    /// A session by a replaced key is used until the next one is opened.
    fn stamp(&self, key: &SessionKey, policy: &Policy) -> Option<Stamp> {
        self.keys.stamp(&key.user, purpose(key, policy))
    }
}

/// Runs the signer until the process ends.
pub fn run(cgroup: Option<PathBuf>) -> Result<(), StartError> {
    let start = Start::<roles::Signer>::begin()?;
    let courier = start::account_of(roles::Courier::ROLE)?;
    let host_key = Arc::new(HostKey::load(Path::new(paths::HOST_KEY))?);
    let configuration = Configuration::load()?;
    let control = start.control()?;
    let [applications, relay_listener, handle] = start.sockets()?;
    let proxy = start::account_of(roles::Proxy::ROLE).ok();
    let proxy_uid = proxy.map(|account| account.uid);
    usher_system::privileges::raise_descriptor_limit()?;
    let cgroup = cgroup.map_or_else(usher_kernel::cgroup::mount, Ok)?;
    let tickets = Tickets::open(&cgroup, configuration.checked.policy.marks);
    tickets.set_relayed(&configuration.checked.policy);
    let otherwise = "while the proxy does not run, a local user can bind one of its ports from 1024 on \
        and be taken for another host";
    let ports = ReservedPorts::open(&cgroup, otherwise);
    ports.reserve(of_proxy(
        &configuration.checked.policy,
        proxy_uid.unwrap_or(0),
    ));
    if let Err(error) = usher_bpf::guard::claim(&ports.objects()) {
        tracing::warn!(%error, "cannot guard the reservation of the proxy's ports: root's \
            processes can change it");
    }
    start.give_up_root()?;
    start.confine()?;
    let signer = Arc::new(Signer::new(
        host_key.public(),
        configuration,
        Keys::default(),
        tickets,
        ports,
        proxy_uid,
    )?);
    let following = Arc::clone(&signer.following);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        // A request may block a thread until its user ends it. This leaves room for several users
        // at their limits.
        .max_blocking_threads(4096);
    let runtime = start::look_after_stalls(&mut runtime, &following)
        .build()
        .attempt("cannot start the runtime")?;
    runtime
        .block_on(async {
            let handle = host_key.serve(handle, courier.uid, HandshakeSide::Client);
            let control = control.serve(Arc::clone(&signer));
            let told = Arc::clone(&signer);
            let heard = move |host: &_, notice| reauthentication::hear(&told, host, notice);
            let relay = relay::serve(
                Arc::clone(&signer.relay),
                relay_listener,
                courier.uid,
                heard,
            );
            let callers = callers::serve(Arc::clone(&signer), applications);
            let tickets = renewal::keep_filled(Arc::clone(&signer));
            let keys = closing::leave_former_keys(Arc::clone(&signer));
            let chains = signer.chains.keep_full();
            let plain = plain::serve(Arc::clone(&signer));
            tokio::spawn(gates::clear_up(Arc::clone(&signer)));
            // Look the programs up like those of every later configuration, with the same reduced rights.
            let configuration = signer.configuration.get();
            let programs = signer
                .programs
                .set(&signer.tickets, &configuration.checked.policy);
            programs.await.map_err(io::Error::other)?;
            let relisting = signer.relisting.keep(async || signer.relist().await);
            following.begin(Arc::clone(&signer) as Arc<dyn Follower>);
            start::ready("usher-signer");
            tracing::info!(name: events::DAEMON_READY, "signer ready");
            tokio::select! {
                result = handle => result,
                result = control => result,
                result = relay => result,
                result = callers => result,
                result = tickets => result,
                () = keys => Ok(()),
                () = chains => Ok(()),
                () = relisting => Ok(()),
                result = plain => result,
                () = following.keep() => Ok(()),
                () = watchdog() => Ok(()),
            }
        })
        .attempt("the signer cannot go on")
}

impl Signer {
    /// Sets the lists of `programs` of the configuration in force.
    async fn relist(&self) -> Result<(), ProgramsError> {
        loop {
            let configuration = self.configuration.get();
            let policy = &configuration.checked.policy;
            self.programs.set(&self.tickets, policy).await?;
            // A request may have put another configuration in force meanwhile: this call replaced its lists.
            if Arc::ptr_eq(&configuration, &self.configuration.get()) {
                return Ok(());
            }
        }
    }

    fn put_in_force(&self, fresh: Configuration) -> ReloadedView {
        let generation = fresh.generation();
        // Put the configuration in force before taking anything back, so that requests meanwhile are checked
        // against it.
        let fresh = self.configuration.put(fresh);
        let proxy = self.proxy_uid.unwrap_or(0);
        self.ports.reserve(of_proxy(&fresh.checked.policy, proxy));
        self.tickets.set_relayed(&fresh.checked.policy);
        self.names.forget();
        self.leases.check_all(&fresh.checked, &self.programs);
        self.relay.know(&fresh.checked.policy);
        let kept = |key: &_| {
            sessions::is_permitted(key, &fresh.checked)
                && self.stamp(key, &fresh.checked.policy).is_some()
        };
        self.sessions.retain(kept);
        for (pair, session) in self.tickets.retain(kept) {
            closing::close(&self.relay, pair, session);
        }
        self.reloaded.notify_one();
        tracing::info!(name: events::CONFIGURATION_IN_FORCE, generation, "configuration in force");
        ReloadedView {
            generation,
            ..ReloadedView::default()
        }
    }
}

impl Follower for Signer {
    fn in_force(&self) -> Option<StoredStamp> {
        Some(self.configuration.get().stamp())
    }

    /// Puts the configuration in force at once, and its lists of `programs` soon after ([`Signer::relist`]).
    /// Until then a program that only the new lists have is refused.
    fn take(&self, stored: Configuration) -> Result<(), String> {
        self.put_in_force(stored);
        self.relisting.ask();
        Ok(())
    }
}

impl Answers<Prepare> for Signer {
    async fn answer(&self, request: Prepare) -> Result<PreparedView, Failed> {
        Configuration::prepare(request).await
    }
}

impl Answers<Reload> for Signer {
    async fn answer(&self, _: Reload) -> Result<ReloadedView, Failed> {
        let fresh = Configuration::load()?;
        let programs = self.programs.set(&self.tickets, &fresh.checked.policy);
        programs.await?;
        self.relisting.done();
        Ok(self.put_in_force(fresh))
    }
}

impl Answers<Disable> for Signer {
    async fn answer(&self, Disable { user, given }: Disable) -> Result<ReloadedView, Failed> {
        Ok(self.put_in_force(self.configuration.disable(user, given)))
    }
}

impl Answers<Enable> for Signer {
    async fn answer(&self, Enable { user, since }: Enable) -> Result<ReloadedView, Failed> {
        Ok(self.put_in_force(self.configuration.enable(&user, since)))
    }
}

impl Answers<Agents> for Signer {
    async fn answer(&self, _: Agents) -> Result<AgentsView, Failed> {
        let folder = paths::PRIVATE_KEYS_DIRECTORY;
        let lent = self.loans.users();
        let agents = self.keys.agents();
        let agents = agents.map_err(|error| Failed::new(format!("{folder}: {error}")))?;
        let agents = agents.into_iter().map(|(user, key)| AgentView {
            key: key.fingerprint(HashAlg::Sha256).to_string(),
            lent: lent.contains(&user),
            user,
        });
        Ok(AgentsView {
            agents: agents.collect(),
        })
    }
}

impl Answers<requests::Failures> for Signer {
    async fn answer(&self, _: requests::Failures) -> Result<FailuresView, Failed> {
        let failures = self.failures.view();
        Ok(FailuresView { failures })
    }
}

impl Answers<Status> for Signer {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        let is_connected = self.relay.is_connected();
        let courier = "not connected to the courier, so no other host is reached";
        let missing = (!is_connected).then(|| courier.to_owned());
        let clocks = self.clocks.troubles(unix_time());
        let numbers = [
            ("sessions", self.sessions.len() as u64),
            ("tickets", self.tickets.len() as u64),
            ("agents", self.loans.len() as u64),
            ("tokens", u64::from(self.tickets.available())),
            ("gates_lasting", u64::from(self.tickets.gates_last())),
            ("courier_connected", u64::from(is_connected)),
            ("plain_held", self.tickets.held()),
            ("clocks_apart", clocks.len() as u64),
        ];
        let numbers = self.plain.numbers().into_iter().chain(numbers);
        let mut status = StatusView::new::<roles::Signer>(
            self.configuration.get().generation(),
            numbers.chain(self.programs.numbers()),
            missing
                .into_iter()
                .chain(clocks)
                .chain(self.ports.trouble())
                .chain(self.following.trouble())
                .chain(self.configuration.trouble())
                .chain(self.relisting.trouble())
                .collect(),
        );
        status.numbers.extend(self.ports.numbers());
        Ok(status)
    }
}
