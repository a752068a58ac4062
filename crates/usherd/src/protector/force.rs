//! Puts protection in force: tables, programs, SPD, and the configuration of IKE.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use usher_ike::{Ike, IkeKey, IkePublicKey, KeyError, Notice, Peer, PeerClass, SetMark};
use usher_ipsec::{Applied, DEFAULT_MASK, Ipsec, IpsecError, MarkMask, reqid};
use usher_local::configuration::Configuration;
use usher_local::paths;
use usher_local::requests::{ApplicationView, ProtectionView};
use usher_policy::protection::{Class, Level, Peers, Tables, compile};
use usher_policy::{Host, Policy};
use usher_proto::host_key::HostPublicKey;

/// Where protection holds, and which host this is.
#[derive(Debug)]
pub(super) struct Settings {
    /// The cgroup v2 folder whose programs are governed.
    pub(super) cgroup: PathBuf,
    /// This host's key, by which the policy knows it.
    pub(super) host_key: HostPublicKey,
}

/// Why a configuration is not put in force.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// The kernel.
    #[error(transparent)]
    Ipsec(#[from] IpsecError),
    /// The tables are too large.
    #[error("{0}")]
    Tables(String),
    /// A name that would have to be resolved.
    #[error(
        "{place}: {name} is not a host of the policy, and the protector does not follow names of DNS \
         yet; write a `host` block for it, or its addresses"
    )]
    Name {
        /// The network's place in the policy.
        place: String,
        /// The name.
        name: String,
    },
    /// This host is not in its policy.
    #[error(
        "no `host` block has this host's key, so it has no name for IKE; add the host with `usher host \
         add`"
    )]
    NoHost,
    /// It has no IKE key there.
    #[error("the `host` block of {0} has no `ike-key`; `usher init` prints the statement")]
    NoIkeKey(String),
    /// It has another IKE key.
    #[error(
        "the `ike-key` of the `host` block of {0} is not the key in /etc/usher/ike_key; `usher init` \
         prints the statement"
    )]
    OtherIkeKey(String),
    /// The IKE key is unusable.
    #[error(transparent)]
    IkeKey(#[from] KeyError),
}

/// All that the protector has in force.
#[derive(Debug)]
pub(super) struct Force {
    settings: Settings,
    ike: Ike,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    configuration: Option<Arc<Configuration>>,
    tables: Tables,
    applied: Applied,
    /// None: no `application` block, nothing is loaded.
    ipsec: Option<Ipsec>,
    /// Sockets that were found and are governed since.
    adopted: u64,
    /// Why older sockets cannot be found.
    unlisted: Option<String>,
    /// Sysctls that others have changed, as last reported.
    changed_sysctls: Vec<&'static str>,
    /// Peers that could not be held, because the table was full.
    not_held: bool,
}

impl State {
    /// Governs the sockets that are older than the policy, or that another program made and passed on.
    /// A failure does not end what is in force; it is reported once, and in `usher protection show`.
    fn adopt(&mut self) {
        let Some(ipsec) = &self.ipsec else { return };
        let live = match ipsec.adopt() {
            Ok(live) => live,
            Err(error) => {
                let error = error.to_string();
                if self.unlisted.as_ref() != Some(&error) {
                    tracing::error!(
                        error,
                        "sockets that are older than the policy cannot be found"
                    );
                }
                self.unlisted = Some(error);
                return;
            }
        };
        self.unlisted = None;
        let mut adopted = 0;
        for socket in live.iter().filter(|socket| socket.adopted) {
            adopted += 1;
            let (process, local) = (socket.process, socket.local);
            tracing::debug!(process, %local, "an older socket is governed now");
        }
        if adopted > 0 {
            tracing::info!(
                sockets = adopted,
                "sockets that are older than the policy are governed now"
            );
        }
        self.adopted += adopted;
    }
}

impl Force {
    pub(super) fn new(settings: Settings, ike: Ike) -> Self {
        Self {
            settings,
            ike,
            state: Mutex::default(),
        }
    }

    pub(super) fn ike(&self) -> &Ike {
        &self.ike
    }

    /// Puts a configuration in force in place of the former one.
    ///
    /// # Errors
    /// Before anything has changed, unless the kernel fails.
    pub(super) fn put_in_force(&self, fresh: Configuration) -> Result<u64, ProtectionError> {
        let policy = &fresh.checked.policy;
        let mask = MarkMask::new(DEFAULT_MASK)?;
        resolved(policy)?;
        let tables = compile(&policy.applications, &policy.names, mask.signatures())
            .map_err(|diagnostic| ProtectionError::Tables(diagnostic.to_string()))?;
        let classes = classes(&tables);
        let ike = match classes.is_empty() {
            true => None,
            false => Some(self.negotiation(policy, &classes, mask)?),
        };
        let mut state = self.state.lock();
        state.applied = match tables.applications.is_empty() {
            true => self.end(&mut state)?,
            false => {
                if state.ipsec.is_none() {
                    state.ipsec = Some(Ipsec::open(&self.kernel(mask))?);
                }
                let ipsec = state.ipsec.as_mut();
                ipsec.map_or(Ok(Applied::default()), |ipsec| ipsec.apply(&tables))?
            }
        };
        for program in &state.applied.missing {
            tracing::warn!(
                %program,
                "there is no file of this program, or the protector cannot open it: its `application` \
                 block waits for one"
            );
        }
        state.adopt();
        self.ike.configure(ike);
        let generation = fresh.generation();
        tracing::info!(
            generation,
            applications = tables.applications.len(),
            "protection in force"
        );
        state.tables = tables;
        state.configuration = Some(Arc::new(fresh));
        Ok(generation)
    }

    /// Ends protection, also what an earlier protector has left.
    fn end(&self, state: &mut State) -> Result<Applied, IpsecError> {
        let pins = std::fs::read_dir(paths::PROTECTOR_PIN_DIRECTORY);
        let left = pins.is_ok_and(|mut pins| pins.next().is_some());
        let ipsec = match state.ipsec.take() {
            None if left => Some(Ipsec::open(&self.kernel(MarkMask::new(DEFAULT_MASK)?))?),
            ipsec => ipsec,
        };
        ipsec.map_or(Ok(()), Ipsec::close)?;
        *state = State {
            configuration: state.configuration.take(),
            ..State::default()
        };
        Ok(Applied::default())
    }

    fn kernel(&self, mask: MarkMask) -> usher_ipsec::Settings {
        usher_ipsec::Settings {
            cgroup: self.settings.cgroup.clone(),
            pins: Some(paths::PROTECTOR_PIN_DIRECTORY.into()),
            mask,
            sysctls: Some(paths::FORMER_SYSCTLS.into()),
        }
    }

    /// What charon is to have.
    fn negotiation(
        &self,
        policy: &Policy,
        classes: &[Class],
        mask: MarkMask,
    ) -> Result<usher_ike::Configuration, ProtectionError> {
        let own = policy.host_by_key(&self.settings.host_key);
        let own = own.ok_or(ProtectionError::NoHost)?;
        let name = || own.name.to_string();
        let stated = ike_key(own).ok_or_else(|| ProtectionError::NoIkeKey(name()))?;
        let key = IkeKey::read(Path::new(paths::IKE_KEY))?;
        if key.public() != stated {
            return Err(ProtectionError::OtherIkeKey(name()));
        }
        let peers = policy.hosts.values().filter(|host| host.name != own.name);
        let peers = peers.filter_map(|host| {
            Some(Peer {
                name: host.name.clone(),
                addresses: host.addresses.clone(),
                key: ike_key(host)?,
            })
        });
        let classes = classes.iter().map(|class| PeerClass {
            class: *class,
            reqid: reqid(*class),
            mark: SetMark {
                value: mask.class_mark(*class, Level::Mandatory),
                mask: mask.bits(),
            },
        });
        Ok(usher_ike::Configuration {
            host: own.name.clone(),
            key: Arc::new(key),
            peers: peers.collect(),
            classes: classes.collect(),
        })
    }

    /// Puts back what others have changed of Usher's entries of the SPD.
    pub(super) fn put_back(&self) -> Result<(), IpsecError> {
        let mut state = self.state.lock();
        let Some(ipsec) = &mut state.ipsec else {
            return Ok(());
        };
        let changes = ipsec.put_back()?;
        if changes > 0 {
            tracing::warn!(
                changes,
                "somebody has changed Usher's entries of the SPD; they are put back"
            );
        }
        Ok(())
    }

    /// SAs with a peer have come: sockets that wait look again, and the peer is held to the class.
    pub(super) fn announce(&self, notice: Notice) -> Result<(), IpsecError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let classes = classes(&state.tables);
        let class = classes
            .into_iter()
            .find(|class| reqid(*class) == notice.reqid);
        let is_optional = |class| state.tables.classes.contains(&(class, Level::Optional));
        let hold = class.is_some_and(is_optional);
        if let (Some(class), Some(ipsec)) = (class, &mut state.ipsec) {
            // First: sockets wait for it, whatever becomes of the rest.
            ipsec.announce_sa(class)?;
            if hold {
                let held = ipsec.hold(class, notice.peer);
                state.not_held |= matches!(held, Err(IpsecError::HeldFull(_)));
                held?;
            }
        }
        Ok(())
    }

    /// Governs older sockets of the programs. One listing is not enough: a connection that waits to be
    /// accepted, and a socket on its way between processes, has no descriptor.
    pub(super) fn adopt_sockets(&self) {
        self.state.lock().adopt();
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
                    sysctl,
                    "somebody has changed this sysctl: answers may leave without protection, or be \
                     dropped; a restart of the protector sets it again"
                );
            }
        }
        state.changed_sysctls = changed;
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
        }
        Ok(())
    }

    /// The generation in force.
    pub(super) fn generation(&self) -> u64 {
        let state = self.state.lock();
        let configuration = state.configuration.as_ref();
        configuration.map_or(0, |configuration| configuration.generation())
    }

    /// What is in force, for an administrator.
    ///
    /// # Errors
    /// When the kernel's state cannot be read.
    pub(super) fn view(&self) -> Result<ProtectionView, IpsecError> {
        let mut state = self.state.lock();
        let mut view = ProtectionView::default();
        let State {
            configuration,
            tables,
            applied,
            ipsec,
            adopted,
            unlisted,
            changed_sysctls: _,
            not_held,
        } = &mut *state;
        let Some(configuration) = configuration else {
            return Ok(view);
        };
        view.generation = configuration.generation();
        let blocks = configuration.checked.policy.applications.iter();
        let applications = blocks.zip(&tables.applications).map(|(block, rules)| {
            let (missing, programs): (Vec<_>, Vec<_>) = rules
                .programs
                .iter()
                .partition(|program| applied.missing.contains(program));
            let names = |programs: Vec<_>| programs.iter().map(ToString::to_string).collect();
            ApplicationView {
                place: block.origin.place.to_string(),
                programs: names(programs),
                missing: names(missing),
                networks: rules.networks.len(),
            }
        });
        view.applications = applications.collect();
        view.adopted_sockets = *adopted;
        view.troubles.extend(unlisted.as_ref().map(|error| {
            format!("sockets that are older than the policy may not be governed: {error}")
        }));
        let classes = tables.classes.iter();
        view.classes = classes
            .map(|(class, level)| format!("{} {level}", class.name()))
            .collect();
        if let Some(ipsec) = ipsec {
            view.spd_entries = ipsec.spd_entries()?.len();
            let counters = ipsec.counters()?;
            view.counters = usher_bpf::Counted::named(&counters)
                .into_iter()
                .filter(|(_, number)| *number > 0)
                .collect();
            let wanted = ipsec.wanted().len();
            if view.spd_entries != wanted {
                let entries = view.spd_entries;
                view.troubles.push(format!(
                    "the SPD has {entries} of Usher's {wanted} entries: somebody changes it"
                ));
            }
            for sysctl in ipsec.changed_sysctls()? {
                view.troubles.push(format!(
                    "the sysctl {sysctl} was changed: answers may leave without protection, or be \
                     dropped; a restart of the protector sets it again"
                ));
            }
        }
        let refused = applied.refused.iter().map(ToString::to_string);
        view.troubles.extend(refused);
        for program in &applied.missing {
            view.troubles.push(format!(
                "{program}: there is no such file, or the protector cannot open it; its traffic is not \
                 governed"
            ));
        }
        if *not_held {
            let trouble = "the table of peers that are held to their protection was full: an optional \
                           peer that is not in it is served in the clear when its SAs are gone; write \
                           `mandatory` for peers that must be protected";
            view.troubles.push(trouble.into());
        }
        let asks_charon = !tables.classes.is_empty();
        let trouble = self.ike.report().trouble.filter(|_| asks_charon);
        view.troubles.extend(trouble);
        Ok(view)
    }
}

/// The classes in use, none twice.
fn classes(tables: &Tables) -> Vec<Class> {
    let mut classes: Vec<Class> = tables.classes.iter().map(|(class, _)| *class).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// Refuses names that only DNS knows: without an address, their networks would protect nothing.
fn resolved(policy: &Policy) -> Result<(), ProtectionError> {
    let blocks = policy.applications.iter();
    for network in blocks.flat_map(|application| &application.networks) {
        if let Peers::Name(name) = &network.peers {
            let is_known = !network.addresses.is_empty() || policy.names.get(name).is_some();
            if !is_known {
                return Err(ProtectionError::Name {
                    place: network.origin.place.to_string(),
                    name: name.to_string(),
                });
            }
        }
    }
    Ok(())
}

fn ike_key(host: &Host) -> Option<IkePublicKey> {
    let key = host.ike_key.as_ref()?;
    Some(IkePublicKey::from_bytes(*key.as_bytes()))
}
