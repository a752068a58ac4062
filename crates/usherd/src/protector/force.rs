//! Puts protection in force, and keeps it so: tables, programs, the SPD, held peers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_ike::{Acquire, Ike, Notice};
use usher_ipsec::{Ipsec, IpsecError, MarkMask, Ours, SWITCHED_OFF, class_of};
use usher_local::configuration::{Configuration, Stamp};
use usher_local::following::{Follower, Following};
use usher_local::paths;
use usher_policy::Policy;
use usher_policy::protection::{Application, Class, ResolverReply, Tables, compile};
use usher_proto::host_key::HostPublicKey;

use super::addresses::OwnAddresses;
use super::error::ProtectionError;
use super::finding::PART;
use super::last_answers::LastAnswers;
use super::negotiated::Negotiated;
use super::negotiation::{self, classes};
use super::state::{State, optional};

/// The reach of protection, and the identity of this host.
#[derive(Debug)]
pub(super) struct Settings {
    /// The cgroup v2 folder whose programs are governed.
    pub(super) cgroup: PathBuf,
    /// Whether LSM programs are loaded, where the kernel runs them.
    pub(super) lsm: bool,
    /// This host's key, by which the policy knows it.
    pub(super) host_key: HostPublicKey,
    /// This host's addresses.
    pub(super) addresses: OwnAddresses,
}

/// All that the protector has in force.
#[derive(Debug)]
pub(super) struct Force {
    pub(super) settings: Settings,
    pub(super) ike: Ike,
    pub(super) following: Arc<Following>,
    pub(super) state: Mutex<State>,
    /// The names in the policy in force, which the resolver looks up.
    wanted: watch::Sender<BTreeSet<HostName>>,
    /// Notified when a change is in force whose sockets are not all found.
    unfound: Notify,
}

impl Follower for Force {
    fn in_force(&self) -> Option<Stamp> {
        let state = self.state.lock();
        let configuration = state.configuration.as_ref();
        Some(configuration.map_or_else(Stamp::default, |configuration| configuration.stamp()))
    }

    fn take(&self, stored: Configuration) -> Result<(), String> {
        self.put_in_force(stored)
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

impl Force {
    pub(super) fn new(settings: Settings, ike: Ike, following: Arc<Following>) -> Self {
        Self {
            settings,
            ike,
            following,
            state: Mutex::new(State {
                answers: LastAnswers::load(Path::new(paths::LAST_ANSWERS)),
                negotiated: Negotiated::load(Path::new(paths::NEGOTIATED)),
                ..State::default()
            }),
            wanted: watch::Sender::default(),
            unfound: Notify::new(),
        }
    }

    /// Checks whether a configuration can be put in force, as far as possible without changing anything. Two
    /// errors show only when it is put in force: a failure of the kernel, and two blocks for one file in the
    /// first policy with a block.
    ///
    /// # Errors
    /// As [`Self::put_in_force`].
    pub(super) fn check(&self, candidate: &Configuration) -> Result<(), ProtectionError> {
        let state = self.state.lock();
        let policy = &candidate.checked.policy;
        let tables = self.tables(policy, &state.answers)?;
        // Check for any `protection`: while a name has no answer, its network has no class in the tables.
        let mut applications = policy.applications.iter();
        let may_protect = applications.any(|block| !block.protections.is_empty());
        if may_protect || !classes(&tables).is_empty() {
            negotiation::configuration(policy, &tables, &self.settings.host_key)?;
        }
        match &state.ipsec {
            Some(ipsec) if !tables.is_empty() => {
                require_mask(ipsec, policy.marks)?;
                Ok(ipsec.check(&tables)?)
            }
            _ => Ok(()),
        }
    }

    /// Puts a configuration in force in place of the former one.
    ///
    /// # Errors
    /// Nothing has changed then, unless the error is the kernel's.
    pub(super) fn put_in_force(&self, fresh: Configuration) -> Result<u64, ProtectionError> {
        let mut state = self.state.lock();
        let applications = &fresh.checked.policy.applications;
        let tables = self.tables(&fresh.checked.policy, &state.answers)?;
        self.enforce(&mut state, &fresh.checked.policy, tables)?;
        for program in &state.applied.missing {
            tracing::warn!(
                %program,
                "there is no file of this program, or the protector cannot open it: its `application` \
                 block waits for one"
            );
        }
        let names = applications.iter().flat_map(Application::names_to_look_up);
        let names: BTreeSet<HostName> = names.cloned().collect();
        state.answers.keep_only(names.clone());
        state.unrenewed = None;
        self.wanted.send_replace(names);
        let generation = fresh.generation();
        tracing::info!(
            name: events::CONFIGURATION_IN_FORCE,
            generation,
            applications = applications.len(),
            "protection in force"
        );
        state.configuration = Some(Arc::new(fresh));
        Ok(generation)
    }

    /// Puts the last answers for names in force. If that fails, the answers before them stay in force.
    pub(super) fn renew(&self) -> Result<(), ProtectionError> {
        let mut state = self.state.lock();
        let Some(configuration) = state.configuration.clone() else {
            return Ok(());
        };
        let policy = &configuration.checked.policy;
        let renewed = self.tables(policy, &state.answers).and_then(|tables| {
            if tables == state.tables {
                Ok(())
            } else {
                self.enforce(&mut state, policy, tables)
            }
        });
        state.unrenewed = renewed.as_ref().err().map(ToString::to_string);
        renewed
    }

    /// The tables of a policy: of its blocks, with the last answers for their names, and of its services.
    fn tables(&self, policy: &Policy, answers: &LastAnswers) -> Result<Tables, ProtectionError> {
        let signatures = policy.marks.signatures();
        let compiled = compile(
            &policy.applications,
            &answers.names(unix_time()),
            signatures,
        );
        let mut tables =
            compiled.map_err(|diagnostic| ProtectionError::Tables(diagnostic.to_string()))?;
        let own = policy.host_by_key(&self.settings.host_key);
        let destinations = policy.protected_destinations(own.map(|own| &own.name));
        tables.add_services(policy.protected_services(), destinations);
        let peers = negotiation::peers(policy, own);
        tables.peers = peers.flat_map(|host| canonical(&host.addresses)).collect();
        Ok(tables)
    }

    /// Puts tables in force in place of the former ones, and has their classes negotiated.
    fn enforce(
        &self,
        state: &mut State,
        policy: &Policy,
        tables: Tables,
    ) -> Result<(), ProtectionError> {
        let mask = policy.marks;
        let classes = classes(&tables);
        let ike = if classes.is_empty() {
            None
        } else {
            let host_key = &self.settings.host_key;
            Some(negotiation::configuration(policy, &tables, host_key)?)
        };
        let hosts = if ike.is_some() {
            negotiation::held_peers(policy, &self.settings.host_key)
        } else {
            Vec::new()
        };
        let optional = optional(&tables);
        let keyed = || negotiation::peers(policy, None);
        state.negotiated.follow(keyed());
        let peers = hosts
            .iter()
            .map(|host| (host.name.clone(), canonical(&host.addresses).collect()));
        let peers: BTreeMap<HostName, BTreeSet<IpAddr>> = peers.collect();
        state.applied = if tables.is_empty() {
            state.end()?
        } else {
            let ipsec = match &mut state.ipsec {
                Some(ipsec) => ipsec,
                none => none.insert(Ipsec::open(&self.kernel(mask))?),
            };
            require_mask(ipsec, mask)?;
            self.set_own_addresses(ipsec);
            match ipsec.sas() {
                Ok(sas) => {
                    let receivers = sas.receivers();
                    state.negotiated.note_present(&receivers, &hosts, &optional);
                }
                Err(error) => {
                    tracing::error!(%error, "cannot list SAs: peers with SAs are held only \
                            once they get new ones");
                }
            }
            let held = state.negotiated.held(&hosts, &optional);
            // Hold peers before the tables are in force, so that nothing passes in the clear meanwhile.
            state.not_held = match ipsec.hold_all(held) {
                Err(IpsecError::HeldFull(_)) => true,
                outcome => outcome.map(|()| false)?,
            };
            let applied = ipsec.apply(&tables)?;
            let may_be_held: BTreeSet<IpAddr> = peers.values().flatten().copied().collect();
            let let_go = ipsec.retain_held(|class, peer| {
                optional.contains(&class) && may_be_held.contains(&peer)
            });
            // If this fails, the tables are in force all the same, and the next policy tries again.
            super::report(
                "peers that left the policy are still held",
                let_go.map(drop),
            );
            applied
        };
        self.settle(state);
        state.guard();
        let known = keyed().filter(|host| host.is_held);
        let known = known.map(|host| host.name.clone()).collect();
        state.negotiated.keep_only(&known);
        state.negotiated.save(Path::new(paths::NEGOTIATED));
        self.ike.configure(ike);
        state.tables = tables;
        state.peers = peers;
        Ok(())
    }

    /// A receiver of the names to look up, and of their changes.
    pub(super) fn wanted_names(&self) -> watch::Receiver<BTreeSet<HostName>> {
        self.wanted.subscribe()
    }

    /// Waits until there are names to look up.
    pub(super) async fn some_names(&self) {
        let mut wanted = self.wanted_names();
        let some = wanted.wait_for(|names| !names.is_empty()).await;
        // Waiting fails only when the sender is gone, which this value owns.
        debug_assert!(some.is_ok());
    }

    /// Notes whether the resolver is connected.
    pub(super) fn resolver_is(&self, connected: bool) {
        self.state.lock().has_resolver = connected;
    }

    /// Takes an answer of the resolver. Returns whether [`Self::renew`] must follow.
    pub(super) fn take_answer(&self, reply: ResolverReply) -> bool {
        self.state.lock().answers.take(reply, unix_time())
    }

    /// Writes the last answers, and the hosts that have negotiated, to their files, for the next
    /// protector.
    pub(super) fn save_answers(&self) -> std::io::Result<()> {
        let mut state = self.state.lock();
        state.negotiated.save(Path::new(paths::NEGOTIATED));
        state.answers.save(Path::new(paths::LAST_ANSWERS))
    }

    /// The reason that no LSM programs are loaded. `None`: they are loaded where the kernel runs them.
    pub(super) fn without_lsm(&self) -> Option<&'static str> {
        (!self.settings.lsm).then_some(SWITCHED_OFF)
    }

    fn kernel(&self, mask: MarkMask) -> usher_ipsec::Settings {
        usher_ipsec::Settings {
            cgroup: self.settings.cgroup.clone(),
            pins: Some(paths::PROTECTOR_PIN_DIRECTORY.into()),
            mask,
            lsm: self.settings.lsm,
            daemons: "/proc/self/exe".into(),
            sysctls: Some(paths::FORMER_SYSCTLS.into()),
        }
    }

    /// Handles the kernel's request for SAs. When there are too many peers for an entry of the SPD each,
    /// programs choose the address of a request. So a request for an address that is no peer ends here, at
    /// the cost of a look-up.
    pub(super) fn acquire(&self, acquire: Acquire) {
        let peer = acquire.peer.to_canonical();
        let is_known = self.state.lock().tables.peers.contains(&peer);
        if is_known {
            self.ike.acquire(acquire);
        }
    }

    /// Tells this process's changes of the SPD from those of others. `None`: nothing is in force.
    pub(super) fn ours(&self) -> Option<Ours> {
        self.state.lock().ipsec.as_ref().map(Ipsec::ours)
    }

    /// Restores Usher's entries of the SPD that others have changed.
    pub(super) fn put_back(&self) -> Result<(), IpsecError> {
        let mut state = self.state.lock();
        let Some(ipsec) = &mut state.ipsec else {
            return Ok(());
        };
        let changes = ipsec.put_back()?;
        if changes > 0 {
            state.contest.note(Instant::now());
            tracing::warn!(
                name: events::TAMPERED,
                changes,
                "somebody has changed Usher's entries of the SPD; they are put back"
            );
        }
        Ok(())
    }

    /// Handles new SAs: waiting sockets look for their routes again, and the peers are held to the classes.
    pub(super) fn announce(&self, notices: &[Notice]) {
        let mut state = self.state.lock();
        let classes = classes(&state.tables);
        let class_at_work =
            |notice: &Notice| class_of(notice.reqid).filter(|class| classes.contains(class));
        // Announce SAs first: sockets wait for that, even if the rest fails. Announce each class and peer
        // once: each change of the SPD makes all sockets look for their routes again.
        let come = notices
            .iter()
            .filter_map(|notice| Some((class_at_work(notice)?, notice.peer.to_canonical())));
        let come: BTreeSet<(Class, IpAddr)> = come.collect();
        if let Some(ipsec) = &mut state.ipsec {
            for (class, peer) in come {
                let announced = ipsec.announce_sa(class, peer);
                super::report("new SAs cannot be announced", announced);
            }
        }
        let mut is_new = false;
        for notice in notices {
            if let Some(class) = class_at_work(notice) {
                let (is_held_now, held) = state.hold(class, notice);
                is_new |= is_held_now;
                if let Err(error) = held {
                    tracing::error!(name: events::PEER_NOT_HELD, %error,
                        "a peer cannot be held to its protection");
                }
            }
        }
        state.negotiated.save(Path::new(paths::NEGOTIATED));
        if is_new {
            self.settle(&mut state);
        }
    }

    fn settle(&self, state: &mut State) {
        state.settle();
        if state.finding.goes_on() {
            self.unfound.notify_one();
        }
    }

    /// Governs older sockets of the programs, as far as they are found in a short time. Returns whether
    /// there may be more. One visit of all descriptors is not enough: a connection that waits to be
    /// accepted, and a socket on its way between processes, has no descriptor.
    pub(super) fn adopt_some(&self) -> bool {
        !self.state.lock().adopt(PART)
    }

    /// Waits until there is a change whose sockets are not all found.
    pub(super) async fn unfound(&self) {
        self.unfound.notified().await;
    }

    /// Reports sysctls that others have changed, each change once.
    pub(super) fn look_at_sysctls(&self) -> Result<(), IpsecError> {
        let mut state = self.state.lock();
        let Some(ipsec) = &state.ipsec else {
            return Ok(());
        };
        let changed = ipsec.changed_sysctls()?;
        for sysctl in &changed {
            if !state.changed_sysctls.contains(sysctl) {
                tracing::warn!(
                    name: events::TAMPERED,
                    sysctl,
                    "somebody has changed this sysctl: answers may leave without protection, or be \
                     dropped; a restart of the protector sets it again"
                );
            }
        }
        state.changed_sysctls = changed;
        Ok(())
    }

    /// Logs how many calls were refused and packets dropped since the last line about them.
    pub(super) fn tell_refusals(&self) -> Result<(), IpsecError> {
        let mut state = self.state.lock();
        let State {
            ipsec, refusals, ..
        } = &mut *state;
        match ipsec {
            Some(ipsec) => {
                let mut counters = usher_bpf::Counted::named(&ipsec.counters()?);
                counters.extend(usher_bpf::Counted::named(&ipsec.service_counters()?));
                refusals.tell(&counters, Instant::now());
            }
            None => refusals.begin_again(),
        }
        Ok(())
    }

    /// Puts back the programs that drop plaintext of services, where somebody has detached them.
    pub(super) fn mend_services(&self) -> Result<(), IpsecError> {
        let mut state = self.state.lock();
        let Some(ipsec) = &state.ipsec else {
            return Ok(());
        };
        if ipsec.mend_services()? {
            tracing::warn!(
                name: events::TAMPERED,
                "somebody has detached the programs that drop plaintext of services; they are put back"
            );
            state.guard();
        }
        Ok(())
    }

    /// Follows files that have taken the place of programs.
    pub(super) fn follow_programs(&self) -> Result<(), IpsecError> {
        let mut state = self.state.lock();
        let Some(ipsec) = &mut state.ipsec else {
            return Ok(());
        };
        if let Some(applied) = ipsec.follow_programs()? {
            tracing::info!("programs have new files, which are governed now");
            state.applied = applied;
            self.settle(&mut state);
            state.guard();
        }
        Ok(())
    }

    /// Follows this host's own addresses: traffic with them is not protected.
    pub(super) fn follow_addresses(&self) {
        if let Some(ipsec) = &mut self.state.lock().ipsec {
            self.set_own_addresses(ipsec);
        }
    }

    /// Sets this host's own addresses. If that fails, programs of this host may not reach it at these
    /// addresses; traffic with peers is protected all the same.
    fn set_own_addresses(&self, ipsec: &mut Ipsec) {
        match self.settings.addresses.list() {
            Ok(own) => super::report(
                "this host's addresses cannot be followed",
                ipsec.set_own_addresses(own),
            ),
            Err(error) => tracing::error!(%error, "this host's addresses cannot be listed"),
        }
    }
}

/// Checks that protection is in force with this mask: see [`IpsecError::MaskInForce`].
fn require_mask(ipsec: &Ipsec, mask: MarkMask) -> Result<(), IpsecError> {
    let (former, asked) = (ipsec.mask().bits(), mask.bits());
    if former == asked {
        Ok(())
    } else {
        Err(IpsecError::MaskInForce { former, asked })
    }
}

/// Addresses as the kernel has them: IPv4-mapped ones as IPv4.
fn canonical(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    addresses.iter().map(IpAddr::to_canonical)
}
