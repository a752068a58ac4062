//! Puts modules and their settings in force, and keeps them so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use usher_local::configuration::{Configuration, Stamp};
use usher_local::following::{Follower, Following};
use usher_local::paths;
use usher_mac::{Framework, Module, Settings, Unsupported, is_module_name};
use usher_policy::Policy;
use usher_policy::mac::{FRAMEWORK_BLOCK, ModuleSettings};

use super::error::MacError;
use super::file_systems::FileSystems;
use super::files::{ModuleFile, ModuleFolder};
use super::filing::Filing;
use super::journal::Journal;
use super::labels;
use super::persisting::Persisting;
use super::resolving::{self, Resolver};
use super::state::{State, block};
use super::stored::{self, Wanted};

/// All that the labeller has in force.
#[derive(Debug)]
pub(super) struct Force {
    file_systems: FileSystems,
    pub(super) following: Arc<Following>,
    pub(super) files: ModuleFolder,
    pub(super) persisting: Persisting,
    /// The parts that this kernel lacks, which do not change while this process runs.
    support: OnceLock<Result<(), Unsupported>>,
    pub(super) state: Mutex<State>,
    /// Locked after the state, or without it.
    pub(super) journal: Mutex<Journal>,
}

/// Whether a name means a module from a file. `digests`: of those that are loaded.
fn is_of_file(digests: &BTreeMap<String, String>, name: &str) -> bool {
    digests.contains_key(name) || Module::named(name).is_none()
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
        persisting: Persisting,
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
            persisting,
            support: OnceLock::new(),
            state: Mutex::new(state),
            journal: Mutex::default(),
        })
    }

    /// Takes up the work of the last labeller: the settings of the policy for modules in force, and modules
    /// that are to be loaded after a reboot. What fails is tried again.
    pub(super) fn begin(&self, configuration: Configuration) {
        let mut state = self.state.lock();
        state.configuration = Some(configuration);
        state.outdated = state.names().unwrap_or_default().into_iter().collect();
        // Before a module is loaded, which gets its elements of them.
        state.label_interfaces();
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

    /// Has rules of `bsdextended` be about the file systems that are mounted at their paths now.
    fn follow_rules(&self, state: &mut State) {
        const MODULE: &str = usher_policy::mac::bsdextended::MODULE;
        let block = state.policy().and_then(|policy| block(policy, MODULE));
        let followed = match (block.map(|of| &of.settings), state.settings.get(MODULE)) {
            (Some(ModuleSettings::Bsdextended(wanted)), Some(Settings::Bsdextended(rules)))
                if !state.outdated.contains(MODULE) =>
            {
                let mut rules = rules.clone();
                let all = resolving::follow_mounts(&self.file_systems, wanted, &mut rules);
                Some((rules, all))
            }
            _ => None,
        };
        let followed = followed.map_or(Ok(()), |(rules, all)| {
            let is_changed = state.configure(MODULE, Some(Settings::Bsdextended(rules)))?;
            if is_changed {
                tracing::info!("rules of filesys have followed their paths to other file systems");
                // New settings are new tables.
                state.guard();
            }
            all
        });
        state.note(labels::WAITING, &followed);
    }

    /// Keeps files of the policy's multilabel file systems labelled, and their directories known to the kernel.
    /// Failures are tried again.
    fn watch(&self, state: &mut State, is_changed: bool) {
        let looked = match &state.framework {
            Some(framework) => state.looked.look(framework, &self.persisting),
            None => {
                state.looked = labels::Looked::default();
                Ok(())
            }
        };
        state.note(labels::FORGOTTEN, &looked);
        // Last, because all files of a file system that is new are looked at anyway.
        self.watch_new_files(state, is_changed);
        state.look_at_entry_points();
    }

    fn watch_new_files(&self, state: &mut State, is_changed: bool) {
        let is_changed = state.specify() || is_changed;
        let (mut wanted, all) = labels::mounted(state.policy(), &self.file_systems);
        state.note(labels::TROUBLE, &all);
        if all.is_err() {
            // A path that cannot be told for a moment does not end what the policy says of it.
            let former = state.multilabel.iter().flatten();
            let kept = former.filter(|one| {
                labels::is_named(state.policy(), &one.path)
                    && wanted.iter().all(|other| other.path != one.path)
            });
            let kept: Vec<_> = kept.cloned().collect();
            wanted.extend(kept);
        }
        let unwatched = self.persisting.unwatched();
        let stuck = self.persisting.stuck();
        match stuck.as_ref().or(unwatched.as_ref()) {
            None => state.over(labels::UNWATCHED),
            Some(error) => state.trouble(labels::UNWATCHED, error),
        }
        let has_multilabel = state.framework.is_some() && !wanted.is_empty();
        let labelled = match has_multilabel {
            true => Framework::require_new_files().map_err(MacError::from),
            false => Ok(()),
        };
        state.note(labels::UNLABELLED, &labelled);
        let is_known = state.multilabel.as_ref() == Some(&wanted) && unwatched.is_none();
        if !is_changed && is_known {
            return;
        }
        let put = labels::put_in_force(
            state.framework.as_ref(),
            &self.persisting,
            &wanted,
            state.filing.as_ref(),
        );
        state.note(labels::UNWRITTEN, &put);
        state.multilabel = put.is_ok().then_some(wanted);
    }

    /// Has all files of what is watched looked at again.
    ///
    /// # Errors
    /// A thread cannot be woken.
    pub(super) fn look_again(&self) -> Result<(), MacError> {
        self.persisting
            .look_again()
            .map_err(MacError::NotPersistent)
    }

    /// Fails when labels of new files are no longer written: this process must end and start again.
    pub(super) fn require_persisting(&self) -> std::io::Result<()> {
        match self.persisting.has_ended() {
            false => Ok(()),
            true => Err(std::io::Error::other("its thread has ended")),
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

    /// The settings that the policy in force has for a module; none for a module without settings.
    fn wanted(&self, state: &State, name: &str) -> Result<Option<Settings>, MacError> {
        self.settings_by(state, state.policy(), name)
    }

    /// The settings of a module by a policy that may follow the one in force.
    fn settings_by(
        &self,
        state: &State,
        policy: Option<&Policy>,
        name: &str,
    ) -> Result<Option<Settings>, MacError> {
        match is_of_file(&state.digests, name) {
            true => self.declared(state, policy, name),
            false => self.settings_of(policy, state.policy(), name),
        }
    }

    /// The settings of a module from a file by a policy; none for those that are in force, and for a module
    /// without.
    fn declared(
        &self,
        state: &State,
        policy: Option<&Policy>,
        name: &str,
    ) -> Result<Option<Settings>, MacError> {
        let of = policy.and_then(|policy| block(policy, name));
        let mut resolver = Resolver::new(&self.file_systems);
        let Some(digest) = state.loaded_digest(name) else {
            let file = self.files.read(name)?.ok_or_else(|| MacError::NoModuleOf {
                place: of.map_or_else(String::new, |of| of.origin.place.to_string()),
                reason: Box::new(MacError::NoModule(name.to_owned())),
            })?;
            return resolver.declared(&file.module, of);
        };
        // One that cannot be read says as little of the module in force as another one.
        let file = self.files.read(name).ok().flatten();
        if let Some(file) = file.filter(|file| file.digest == *digest) {
            return resolver.declared(&file.module, of);
        }
        let former = state.policy().and_then(|policy| block(policy, name));
        let is_same = of.map(|of| &of.settings) == former.map(|of| &of.settings);
        if is_same || (of.is_none() && !state.has_settings(name)?) {
            return Ok(None);
        }
        Err(MacError::FileChanged {
            name: name.to_owned(),
            path: self.files.path(name),
        })
    }

    /// The settings of a module that is about to be loaded. A rule whose path gets no answer waits as one whose file
    /// system is not mounted: the module's other rules do not wait for a user's file system.
    fn first_settings(&self, state: &State, name: &str) -> Result<Option<Settings>, MacError> {
        match self.wanted(state, name) {
            Err(error) if error.is_unanswered() => {
                let block = state.policy().and_then(|policy| block(policy, name));
                let settings = block.map(|block| Resolver::new(&self.file_systems).settings(block));
                settings.transpose().map(Option::flatten)
            }
            settings => settings,
        }
    }

    /// The settings of a built-in module by a policy: those of its block or its default, or for `ubns` the
    /// services. A rule about a file system that is not mounted waits, if a rule of the former policy has named it:
    /// anything else is probably a mistake in the path. Where a path gets no answer, what is in force stays.
    fn settings_of(
        &self,
        policy: Option<&Policy>,
        former: Option<&Policy>,
        name: &str,
    ) -> Result<Option<Settings>, MacError> {
        let mut resolver = Resolver::new(&self.file_systems);
        if name == usher_policy::mac::UBNS {
            return match policy {
                Some(policy) => resolver.services(policy).map(Some),
                None => Ok(Some(Settings::Ubns(Vec::new()))),
            };
        }
        let settings = match policy.and_then(|policy| block(policy, name)) {
            Some(block) => resolver.settings(block)?,
            None => Module::named(name).and_then(|module| module.settings().cloned()),
        };
        let mut unmounted = resolver.unmounted.into_iter();
        let refused = unmounted.find(|(path, error)| {
            error.is_unanswered() || !resolving::names_file_system(former, path)
        });
        match refused {
            Some((_, error)) => Err(error),
            None => Ok(settings),
        }
    }

    /// Fails where this kernel runs no modules.
    pub(super) fn require_support(&self, state: &State) -> Result<(), Unsupported> {
        match state.framework {
            Some(_) => Ok(()),
            None => self.support.get_or_init(Framework::probe).clone(),
        }
    }

    /// Checks whether a configuration can be put in force, as far as that shows without a change.
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
        // The block about all of them.
        names.remove(FRAMEWORK_BLOCK);
        for name in names {
            let settings = match is_of_file(&digests, &name) {
                true => self.declared(&self.state.lock(), Some(policy), &name)?,
                // Without the lock: names may be looked up for long.
                false => self.settings_of(Some(policy), former.as_ref(), &name)?,
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
    /// When a name is unknown, or the kernel fails: the former settings are in force then, but for modules with a
    /// trouble.
    pub(super) fn put_in_force(&self, fresh: Configuration) -> Result<u64, MacError> {
        let mut state = self.state.lock();
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
                        // Of a former labeller, which this one could not renew.
                        None if state.settings.contains_key(name) => Err(MacError::FormerUnknown),
                        former => state.configure(name, former.cloned()).map(drop),
                    };
                    if let Err(error) = back {
                        state.trouble(name, &error);
                        state.outdated.insert(name.clone());
                    }
                }
                // What was put back has new tables.
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
            generation,
            blocks = fresh.checked.policy.mac.len(),
            "settings in force"
        );
        state.configuration = Some(fresh);
        // Read just now, and once more: the file of the former policy may be another one.
        state.filing = None;
        self.follow_rules(&mut state);
        self.watch(&mut state, true);
        Ok(generation)
    }

    /// Loads a module, with the settings of the policy in force, now and after every reboot.
    ///
    /// # Errors
    /// When there is no such module, its file is no module or others than root can write it, the kernel
    /// runs none, or a name in its settings is unknown. Nothing has changed then.
    pub(super) fn load(&self, name: &str) -> Result<(), MacError> {
        let mut state = self.state.lock();
        state.read()?;
        let (module, digest) = self.find(name)?;
        // Asked for by the administrator: earlier trials do not count.
        stored::end_trial(name).map_err(MacError::Trials)?;
        self.load_into(&mut state, module)?;
        state
            .digests
            .extend(digest.map(|digest| (name.to_owned(), digest)));
        state.replaced.remove(name);
        let former = state.missing.clone();
        state.missing.retain(|missing| missing.name != name);
        if let Err(error) = state.save(None) {
            state.missing = former;
            state.digests.remove(name);
            if let Some(framework) = &mut state.framework {
                framework.unload(name)?;
            }
            state.end_if_empty()?;
            state.guard();
            return Err(MacError::NotStored(error));
        }
        state.over(name);
        self.follow_rules(&mut state);
        self.watch(&mut state, true);
        state.show();
        tracing::info!(module = name, "module in force");
        Ok(())
    }

    /// The module of this name, built in or from a file, with the digest of its file.
    pub(super) fn find(&self, name: &str) -> Result<(Module, Option<String>), MacError> {
        let none = || MacError::NoModule(name.to_owned());
        if !is_module_name(name) {
            return Err(none());
        }
        if let Some(module) = Module::named(name) {
            return match self.files.has(name)? {
                true => Err(MacError::TwoModules {
                    name: name.to_owned(),
                    path: self.files.path(name),
                }),
                false => Ok((module, None)),
            };
        }
        // Blocks of these names are none of a module.
        if [FRAMEWORK_BLOCK, "any"].contains(&name) {
            return Err(none());
        }
        let ModuleFile { module, digest } = self.files.read(name)?.ok_or_else(none)?;
        Ok((module, Some(digest)))
    }

    /// Loads a module that was in force before: of the same origin, whatever else has its name now.
    fn load_again(&self, state: &mut State, wanted: &Wanted) -> Result<(), MacError> {
        let name = &wanted.name;
        let none = || MacError::NoModule(name.clone());
        let Some(digest) = &wanted.digest else {
            return self.load_into(state, Module::named(name).ok_or_else(none)?);
        };
        if !is_module_name(name) {
            return Err(none());
        }
        let file = self.files.read(name)?.ok_or_else(none)?;
        self.load_into(state, file.module)?;
        if file.digest != *digest {
            tracing::warn!(
                module = name,
                "its file has changed since `usher mac load`; what it is now is in force"
            );
            state.replaced.insert(name.clone(), file.digest);
        }
        state.digests.insert(name.clone(), digest.clone());
        Ok(())
    }

    fn load_into(&self, state: &mut State, module: Module) -> Result<(), MacError> {
        self.require_support(state)?;
        let name = module.name().to_owned();
        let settings = match module.is_built_in() {
            true => self.first_settings(state, &name)?,
            false => {
                let block = state.policy().and_then(|policy| block(policy, &name));
                Resolver::new(&self.file_systems).declared(&module, block)?
            }
        };
        let module = match settings.clone() {
            Some(settings) => module.with_settings(settings),
            None => module,
        };
        match module.is_built_in() {
            true => self.put(state, &module)?,
            false => self.try_file(state, &module)?,
        }
        if let Some(settings) = settings {
            state.settings.insert(name, settings);
        }
        Ok(())
    }

    /// Loads a module from a file, by which this process may end.
    fn try_file(&self, state: &mut State, module: &Module) -> Result<(), MacError> {
        let name = module.name();
        if !stored::begin_trial(name).map_err(MacError::Trials)? {
            return Err(MacError::Ends(name.to_owned()));
        }
        let loaded = self.put(state, module);
        if let Err(error) = stored::end_trial(name) {
            // It costs one of the next trials.
            tracing::warn!(module = name, %error, "cannot note that its loading has ended");
        }
        loaded
    }

    /// Has the framework load a module, and makes the framework first.
    fn put(&self, state: &mut State, module: &Module) -> Result<(), MacError> {
        let framework = match state.framework.take() {
            Some(framework) => framework,
            None => labels::framework(state.policy(), &self.file_systems)?,
        };
        let loaded = state.framework.insert(framework).load(module);
        if loaded.is_err()
            && let Err(error) = state.end_if_empty()
        {
            tracing::error!(%error, "cannot remove the framework: it stays in the kernel without a \
                module");
        }
        // A refused module may have left dispatchers, too.
        state.guard();
        Ok(loaded?)
    }

    /// Unloads a module, now and after every reboot.
    ///
    /// # Errors
    /// When it is not loaded, or the kernel fails.
    pub(super) fn unload(&self, name: &str) -> Result<(), MacError> {
        // Events have its number, which means its name until then.
        self.read_events();
        let mut state = self.state.lock();
        state.read()?;
        if state.missing.iter().any(|missing| missing.name == name) {
            state.save(Some(name)).map_err(MacError::NotStored)?;
            state.missing.retain(|missing| missing.name != name);
            state.over(name);
            return Ok(());
        }
        if !state.names()?.iter().any(|loaded| loaded == name) {
            return Err(usher_mac::Error::NotLoaded(name.to_owned()).into());
        }
        // First: a labeller that ended in between would load it again after a reboot otherwise.
        state.save(Some(name)).map_err(MacError::NotStored)?;
        if let Some(framework) = &mut state.framework {
            framework.unload(name)?;
        }
        state.settings.remove(name);
        state.digests.remove(name);
        state.replaced.remove(name);
        state.outdated.remove(name);
        state.over(name);
        state.end_if_empty()?;
        self.follow_rules(&mut state);
        self.watch(&mut state, true);
        state.guard();
        state.show();
        tracing::info!(module = name, "module no longer in force");
        Ok(())
    }
}
