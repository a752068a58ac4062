//! Puts modules and their settings in force, and keeps them so.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use usher_daemon::events;
use usher_local::configuration::{Configuration, Stamp};
use usher_local::following::{Follower, Following};
use usher_local::paths;
use usher_local::requests::RefusalsView;
use usher_mac::{Framework, Settings, Unsupported};
use usher_policy::mac::FRAMEWORK_BLOCK;

use super::error::MacError;
use super::file_systems::FileSystems;
use super::files::ModuleFolder;
use super::filing::Filing;
use super::journal::{EVENTS, Journal, KINDS};
use super::labels;
use super::new_files::LabelWriters;
use super::resolving;
use super::state::{State, is_of_file};

/// All that the labeller has in force.
#[derive(Debug)]
pub(super) struct Force {
    pub(super) file_systems: FileSystems,
    pub(super) following: Arc<Following>,
    pub(super) files: ModuleFolder,
    pub(super) writers: LabelWriters,
    /// Whether this kernel runs modules, which does not change while this process runs.
    support: OnceLock<Result<(), Unsupported>>,
    pub(super) state: Mutex<State>,
    /// Lock order: `state` before `journal`.
    pub(super) journal: Mutex<Journal>,
}

impl Follower for Force {
    fn in_force(&self) -> Option<Stamp> {
        let state = self.state.lock();
        let configuration = state.configuration.as_ref();
        Some(configuration.map_or_else(Stamp::default, Configuration::stamp))
    }

    fn take(&self, stored: Configuration) -> Result<(), String> {
        self.put_in_force(stored)
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

impl Force {
    /// Adopts what an earlier labeller has left in force.
    ///
    /// # Errors
    /// When it cannot be adopted; it stays in force.
    pub(super) fn adopt(
        file_systems: FileSystems,
        writers: LabelWriters,
        following: Arc<Following>,
    ) -> Result<Self, MacError> {
        let mut state = State::default();
        let pins = Path::new(paths::LABELLER_PIN_DIRECTORY);
        if usher_bpf::exists(pins).map_err(usher_mac::Error::from)? {
            state.framework = Some(Framework::open(pins)?);
        }
        Ok(Self {
            file_systems,
            following,
            files: ModuleFolder::new(Path::new(paths::MODULE_DIRECTORY)),
            writers,
            support: OnceLock::new(),
            state: Mutex::new(state),
            journal: Mutex::default(),
        })
    }

    /// Takes up the work of the last labeller: gives modules in force the settings of the policy, and loads
    /// modules that are to be loaded after a reboot. Failures are tried again.
    pub(super) fn begin(&self, configuration: Configuration) {
        let mut state = self.state.lock();
        state.configuration = Some(configuration);
        state.outdated = state.names().unwrap_or_default().into_iter().collect();
        // Before modules are loaded, which get the elements of the interfaces.
        state.label_interfaces();
        // Before settings are made: their rules need the devices of unmounted file systems, too.
        self.follow_file_systems(&mut state);
        self.renew(&mut state);
        self.follow_rules(&mut state);
        self.watch(&mut state, true);
        state.guard();
    }

    /// Tries again what could not be put in force.
    pub(super) fn try_again(&self) {
        let mut state = self.state.lock();
        let is_due = !state.is_read || !state.missing.is_empty() || !state.outdated.is_empty();
        if state.troubles.contains_key(labels::INTERFACES) {
            state.label_interfaces();
            state.guard();
        }
        let is_changed = is_due && self.renew(&mut state);
        state.follow_interfaces();
        // A file system may have been mounted or unmounted since.
        self.follow_rules(&mut state);
        self.watch(&mut state, is_changed);
    }

    /// Follows file systems that have been mounted or unmounted.
    pub(super) fn follow_mounts(&self) {
        let mut state = self.state.lock();
        self.follow_rules(&mut state);
        self.watch(&mut state, false);
    }

    /// Whether a file system is in use that is unmounted at its path. The kernel does not report its end.
    pub(super) fn has_elsewhere(&self) -> bool {
        self.file_systems.has_elsewhere()
    }

    /// Has the kernel note the file systems of the policy, so that each stays known after it is unmounted at
    /// its path, as long as it is in use.
    fn follow_file_systems(&self, state: &mut State) {
        let paths = labels::followed(state.policy());
        let followed = match &mut state.framework {
            Some(framework) => self.file_systems.follow(framework, &paths),
            None => {
                self.file_systems.forget();
                Ok(false)
            }
        };
        // The kernel may have got a new program, which must be claimed.
        if let Ok(true) = followed {
            state.guard();
        }
        let followed = followed.map(drop).map_err(MacError::NotFollowed);
        state.note(labels::FOLLOWED, &followed);
    }

    /// Makes rules of `bsdextended` apply to the file systems that are mounted at their paths now.
    pub(super) fn follow_rules(&self, state: &mut State) {
        self.follow_file_systems(state);
        const MODULE: &str = usher_policy::mac::bsdextended::MODULE;
        let followed = match state.settings.get(MODULE) {
            Some(Settings::Bsdextended(rules, names)) if !state.outdated.contains(MODULE) => {
                let mut names = names.clone();
                let all = resolving::follow_mounts(&self.file_systems, rules, &mut names);
                Some((Settings::Bsdextended(rules.clone(), names), all))
            }
            _ => None,
        };
        let followed = followed.map_or(Ok(()), |(settings, all)| {
            let is_changed = state.configure(MODULE, Some(settings))?;
            if is_changed {
                tracing::info!("rules of filesys have followed their paths to other file systems");
                // New settings are in new tables, which must be claimed.
                state.guard();
            }
            all
        });
        state.note(labels::WAITING, &followed);
    }

    /// Keeps files of the policy's multilabel file systems labelled, and their directories known to the kernel.
    /// Failures are tried again.
    pub(super) fn watch(&self, state: &mut State, is_changed: bool) {
        let looked = match &state.framework {
            Some(framework) => state.looked.look(framework, &self.writers),
            None => {
                state.looked = labels::Looked::default();
                Ok(())
            }
        };
        state.note(labels::FORGOTTEN, &looked);
        // Do this after the look above: a new file system is walked anyway, and needs no second walk.
        self.watch_new_files(state, is_changed);
        state.look_at_entry_points();
    }

    fn watch_new_files(&self, state: &mut State, is_changed: bool) {
        let is_changed = state.specify() || is_changed;
        let (mut wanted, all) = labels::mounted(state.policy(), &self.file_systems);
        state.note(labels::TROUBLE, &all);
        let elsewhere = labels::elsewhere(state.policy(), &self.file_systems);
        if all.is_err() {
            // The policy applies to a file system that is unmounted or does not answer as long as it is in
            // use.
            let is_unknown = state.troubles.contains_key(labels::FOLLOWED);
            let former = state.multilabel.iter().flatten();
            let kept = former.filter(|one| {
                (is_unknown || elsewhere.contains(&one.device))
                    && labels::is_named(state.policy(), &one.path)
                    && wanted.iter().all(|other| other.path != one.path)
            });
            let kept: Vec<_> = kept.cloned().collect();
            wanted.extend(kept);
        }
        let unwatched = self.writers.unwatched();
        let stuck = self.writers.stuck();
        match stuck.as_ref().or(unwatched.as_ref()) {
            None => state.over(labels::UNWATCHED),
            Some(error) => state.trouble(labels::UNWATCHED, error),
        }
        let has_multilabel = state.framework.is_some() && !wanted.is_empty();
        let labelled = if has_multilabel {
            Framework::require_new_files().map_err(MacError::from)
        } else {
            Ok(())
        };
        state.note(labels::MULTILABEL, &labelled);
        let is_known = state.multilabel.as_ref() == Some(&wanted)
            && state.elsewhere == elsewhere
            && unwatched.is_none();
        if !is_changed && is_known {
            return;
        }
        let put = labels::put_in_force(
            state.framework.as_ref(),
            &self.writers,
            (&wanted, &elsewhere),
            state.filing.as_ref(),
        );
        state.elsewhere = elsewhere;
        state.note(labels::UNWRITTEN, &put);
        state.multilabel = put.is_ok().then_some(wanted);
    }

    /// Has all files of the watched file systems looked at again.
    ///
    /// # Errors
    /// A thread cannot be woken.
    pub(super) fn look_again(&self) -> Result<(), MacError> {
        self.writers.look_again().map_err(MacError::NotPersistent)
    }

    /// Fails when labels of new files are no longer written: this process must end and start again.
    pub(super) fn require_writers(&self) -> std::io::Result<()> {
        if self.writers.has_ended() {
            Err(std::io::Error::other("its thread has ended"))
        } else {
            Ok(())
        }
    }

    /// Tries again what failed. Returns whether a module has come into force.
    fn renew(&self, state: &mut State) -> bool {
        let mut has_loaded = false;
        let read = state.read();
        state.note(paths::LOADED_MODULES, &read);
        for wanted in std::mem::take(&mut state.missing) {
            match self.load_again(state, &wanted) {
                Ok(()) => {
                    state.over(&wanted.name);
                    has_loaded = true;
                }
                Err(error) => {
                    state.trouble(&wanted.name, &error);
                    state.missing.push(wanted);
                }
            }
        }
        if has_loaded
            && !state.replaced.is_empty()
            && let Err(error) = state.save(None)
        {
            tracing::warn!(%error, "cannot note from which files modules are loaded: after a restart their settings \
                stay as they are until they are loaded anew");
        }
        for name in std::mem::take(&mut state.outdated) {
            match self
                .wanted(state, &name)
                .and_then(|fresh| state.configure(&name, fresh))
            {
                Ok(_) => state.over(&name),
                Err(error) => {
                    state.trouble(&name, &error);
                    state.outdated.insert(name);
                }
            }
        }
        state.show();
        has_loaded
    }

    /// Fails where this kernel runs no modules.
    pub(super) fn require_support(&self, state: &State) -> Result<(), Unsupported> {
        match state.framework {
            Some(_) => Ok(()),
            None => self.support.get_or_init(Framework::probe).clone(),
        }
    }

    /// Checks whether a configuration can be put in force, as far as possible without changing anything.
    ///
    /// # Errors
    /// As [`Self::put_in_force`]; also when the kernel runs no modules and the policy has a block.
    pub(super) fn check(&self, candidate: &Configuration) -> Result<(), MacError> {
        let policy = &candidate.checked.policy;
        let mut names: BTreeSet<String> =
            policy.mac.iter().map(|of| of.module.to_string()).collect();
        let (former, digests) = {
            let state = self.state.lock();
            if !names.is_empty() {
                self.require_support(&state)?;
            }
            names.extend(state.names()?);
            (state.policy().cloned(), state.digests.clone())
        };
        // `mac framework` is a block about all modules.
        names.remove(FRAMEWORK_BLOCK);
        // Without the lock: looking up names of users may take long.
        for name in names {
            let settings = if is_of_file(&digests, &name) {
                let module = self.declaring(&self.state.lock(), Some(policy), &name)?;
                module.map_or(Ok(None), |module| self.declared(&module, Some(policy)))?
            } else {
                self.settings_of(Some(policy), former.as_ref(), &name)?
            };
            if let Some(settings) = settings {
                settings.encode()?;
            }
        }
        if let Some(framework) = &self.state.lock().framework {
            framework.check_interfaces(&labels::interfaces(Some(policy)))?;
        }
        Filing::read(Some(policy))?;
        labels::require_mounted(policy, former.as_ref(), &self.file_systems)
    }

    /// Puts the settings of a configuration in force for all modules that are loaded.
    ///
    /// # Errors
    /// When a name is unknown, or the kernel fails: the former settings are in force then, except for modules
    /// with a trouble.
    pub(super) fn put_in_force(&self, fresh: Configuration) -> Result<u64, MacError> {
        let mut state = self.state.lock();
        self.follow_file_systems(&mut state);
        labels::require_mounted(&fresh.checked.policy, state.policy(), &self.file_systems)?;
        Filing::read(Some(&fresh.checked.policy))?;
        let mut wanted = Vec::new();
        for name in state.names()? {
            let settings = self.settings_by(&state, Some(&fresh.checked.policy), &name)?;
            wanted.push((name, settings));
        }
        state.set_interfaces(Some(&fresh.checked.policy))?;
        let former = state.settings.clone();
        let mut done: Vec<String> = Vec::new();
        for (name, settings) in wanted {
            if let Err(error) = state.configure(&name, settings) {
                state.label_interfaces();
                for name in &done {
                    let back = match former.get(name) {
                        // A former labeller has put the former settings in force, and this one does not know
                        // them.
                        None if state.settings.contains_key(name) => Err(MacError::FormerUnknown),
                        former => state.configure(name, former.cloned()).map(drop),
                    };
                    if let Err(error) = back {
                        state.trouble(name, &error);
                        state.outdated.insert(name.clone());
                    }
                }
                // The former settings are in new tables, too, which must be claimed.
                state.guard();
                return Err(error);
            }
            done.push(name);
        }
        for name in done {
            state.outdated.remove(&name);
            state.over(&name);
        }
        state.over(labels::INTERFACES);
        state.guard();
        let generation = fresh.generation();
        tracing::info!(
            name: events::CONFIGURATION_IN_FORCE,
            generation,
            blocks = fresh.checked.policy.mac.len(),
            "settings in force"
        );
        state.configuration = Some(fresh);
        // Read the specification again: `state` may have the file of the former policy.
        state.filing = None;
        self.follow_rules(&mut state);
        self.watch(&mut state, true);
        Ok(generation)
    }
}

impl Force {
    /// Reads the events of modules since the last reading.
    pub(super) fn read_events(&self) {
        let mut state = self.state.lock();
        let mut all = Vec::new();
        let mut outcome = Ok(());
        while let Some(framework) = &state.framework {
            match framework.take_events() {
                Ok((events, more)) => {
                    all.extend(events);
                    // The rest of a flood is read after the lines are written.
                    if !more || all.len() >= KINDS {
                        break;
                    }
                }
                Err(error) => {
                    outcome = Err(MacError::from(error));
                    break;
                }
            }
        }
        state.note(EVENTS, &outcome);
        drop(state);
        let mut journal = self.journal.lock();
        all.into_iter().for_each(|event| journal.note(event));
    }

    /// The refusals by modules.
    ///
    /// # Errors
    /// When the kernel's state cannot be read.
    pub(super) fn refusals(&self) -> Result<RefusalsView, MacError> {
        self.read_events();
        let state = self.state.lock();
        let framework = state.framework.as_ref();
        let lost_events = framework.map_or(Ok(0), |framework| framework.lost_events())?;
        drop(state);
        Ok(RefusalsView {
            refusals: self.journal.lock().views(),
            lost_events,
        })
    }
}
