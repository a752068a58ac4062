//! Puts modules and their settings in force, and keeps them so.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;

use parking_lot::Mutex;
use usher_bpf::guard::Claims;
use usher_local::configuration::Configuration;
use usher_local::paths;
use usher_local::requests::{MacView, ModuleView};
use usher_mac::{Framework, Module, NAMES, Settings, Unsupported, is_module_name};
use usher_policy::Policy;
use usher_policy::mac::MacBlock;

use super::error::MacError;
use super::files::{ModuleFile, ModuleFolder};
use super::labels;
use super::persisting::{Multilabel, Persisting};
use super::resolving::{FileSystems, Resolver};
use super::stored::{self, Wanted};

/// All that the labeller has in force.
#[derive(Debug)]
pub(super) struct Force {
    file_systems: FileSystems,
    files: ModuleFolder,
    persisting: Persisting,
    /// The parts that this kernel lacks, which do not change while this process runs.
    support: OnceLock<Result<(), Unsupported>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    configuration: Option<Configuration>,
    /// None: no module is loaded, and nothing of the framework is in the kernel.
    framework: Option<Framework>,
    /// The settings that this process has put in force, by module.
    settings: BTreeMap<String, Settings>,
    /// Modules that are to be loaded and are not, in their order.
    missing: Vec<Wanted>,
    /// For modules in force from files, SHA-256 of the file when the administrator loaded it.
    digests: BTreeMap<String, String>,
    /// Modules whose settings in force are not those of the policy.
    outdated: BTreeSet<String>,
    /// The file systems whose new files get labels: all that are mounted of those that the policy calls so.
    multilabel: Option<Vec<Multilabel>>,
    claims: Claims,
    is_guarded: bool,
    /// The last reasons, by what they keep from being in force.
    troubles: BTreeMap<String, String>,
}

impl Force {
    /// Adopts what an earlier labeller has left in force.
    ///
    /// # Errors
    /// When it cannot be adopted; it stays in force.
    pub(super) fn adopt(
        file_systems: FileSystems,
        persisting: Persisting,
    ) -> Result<Self, MacError> {
        let mut state = State::default();
        let pins = Path::new(paths::LABELLER_PIN_DIRECTORY);
        if usher_bpf::exists(pins).map_err(usher_mac::Error::from)? {
            state.framework = Some(Framework::open(pins)?);
        }
        Ok(Self {
            file_systems,
            files: ModuleFolder::new(Path::new(paths::MODULE_DIRECTORY)),
            persisting,
            support: OnceLock::new(),
            state: Mutex::new(state),
        })
    }

    /// Takes up the work of the last labeller: the settings of the policy for modules in force, and modules
    /// that are to be loaded after a reboot. What fails is tried again.
    pub(super) fn begin(&self, configuration: Configuration) {
        let mut state = self.state.lock();
        state.configuration = Some(configuration);
        let names = state.names().unwrap_or_default();
        match stored::load() {
            Ok(wanted) => {
                let (loaded, missing): (Vec<Wanted>, _) = wanted
                    .into_iter()
                    .partition(|module| names.contains(&module.name));
                state.missing = missing;
                let digests = loaded
                    .into_iter()
                    .filter_map(|module| Some((module.name, module.digest?)));
                state.digests = digests.collect();
                self.note_files(&mut state, &names);
            }
            Err(error) => state.trouble("modules", &MacError::NotStored(error)),
        }
        state.outdated = names.into_iter().collect();
        self.renew(&mut state);
        self.watch(&mut state, true);
        state.guard();
    }

    /// Notes the files of modules that a labeller has loaded without noting them, because it ended.
    fn note_files(&self, state: &mut State, names: &[String]) {
        for name in names {
            let is_noted = state.digests.contains_key(name) || Module::named(name).is_some();
            if !is_noted && let Ok(Some(file)) = self.files.read(name) {
                state.digests.insert(name.clone(), file.digest);
            }
        }
    }

    /// Tries again what could not be put in force.
    pub(super) fn try_again(&self) {
        let mut state = self.state.lock();
        if !state.missing.is_empty() || !state.outdated.is_empty() {
            self.renew(&mut state);
        }
        // A file system may have been mounted or unmounted since.
        self.watch(&mut state, false);
    }

    /// Has new files of the policy's file systems get their labels. What fails is tried again.
    fn watch(&self, state: &mut State, is_changed: bool) {
        let found = labels::mounted(state.policy(), &self.file_systems);
        let wanted = match found {
            Ok(wanted) => {
                state.over(labels::TROUBLE);
                wanted
            }
            Err((mut wanted, error)) => {
                state.trouble(labels::TROUBLE, &error);
                // A path that cannot be told for a moment does not end what the policy says of it.
                let former = state.multilabel.iter().flatten();
                let kept = former.filter(|one| {
                    labels::is_named(state.policy(), &one.path)
                        && wanted.iter().all(|other| other.path != one.path)
                });
                let kept: Vec<_> = kept.cloned().collect();
                wanted.extend(kept);
                wanted
            }
        };
        let unwatched = self.persisting.unwatched();
        let stuck = self.persisting.stuck();
        match stuck.as_ref().or(unwatched.as_ref()) {
            None => state.over(labels::UNWATCHED),
            Some(error) => state.trouble(labels::UNWATCHED, error),
        }
        let is_known = state.multilabel.as_ref() == Some(&wanted) && unwatched.is_none();
        if !is_changed && is_known {
            return;
        }
        match labels::put_in_force(state.framework.as_mut(), &self.persisting, &wanted) {
            Ok(()) => {
                state.over(labels::UNWRITTEN);
                state.multilabel = Some(wanted);
            }
            Err(error) => {
                state.trouble(labels::UNWRITTEN, &error);
                state.multilabel = None;
            }
        }
    }

    /// Fails when labels of new files are no longer written: this process must end and start again.
    pub(super) fn require_persisting(&self) -> std::io::Result<()> {
        match self.persisting.has_ended() {
            false => Ok(()),
            true => Err(std::io::Error::other("its thread has ended")),
        }
    }

    fn renew(&self, state: &mut State) {
        for wanted in std::mem::take(&mut state.missing) {
            match self.load_again(state, &wanted) {
                Ok(()) => state.over(&wanted.name),
                Err(error) => {
                    state.trouble(&wanted.name, &error);
                    state.missing.push(wanted);
                }
            }
        }
        for name in std::mem::take(&mut state.outdated) {
            match self
                .wanted(state, &name)
                .and_then(|fresh| state.configure(&name, fresh))
            {
                Ok(()) => state.over(&name),
                Err(error) => {
                    state.trouble(&name, &error);
                    state.outdated.insert(name);
                }
            }
        }
        state.show();
    }

    /// The settings of a module by the policy in force; none for a module that has none.
    fn wanted(&self, state: &State, name: &str) -> Result<Option<Settings>, MacError> {
        let policy = state.policy();
        self.settings_of(policy.and_then(|policy| block(policy, name)), name)
    }

    /// The settings of a block, or a module's default.
    fn settings_of(
        &self,
        block: Option<&MacBlock>,
        name: &str,
    ) -> Result<Option<Settings>, MacError> {
        match block {
            Some(block) => Resolver::new(&self.file_systems).settings(block),
            None if name == usher_policy::mac::bsdextended::MODULE => {
                Ok(Some(Settings::Bsdextended(Vec::new())))
            }
            None => Ok(None),
        }
    }

    /// Fails where this kernel runs no modules.
    fn require_support(&self, state: &State) -> Result<(), Unsupported> {
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
        let blocks = &candidate.checked.policy.mac;
        if !blocks.is_empty() {
            self.require_support(&self.state.lock())?;
        }
        for block in blocks {
            self.settings_of(Some(block), block.module.as_ref())?;
        }
        labels::mounted(Some(&candidate.checked.policy), &self.file_systems)
            .map(drop)
            .map_err(|(_, error)| error)
    }

    /// Puts the settings of a configuration in force for all modules that are loaded.
    ///
    /// # Errors
    /// When a name is unknown, or the kernel fails: the former settings are in force then.
    pub(super) fn put_in_force(&self, fresh: Configuration) -> Result<u64, MacError> {
        let mut state = self.state.lock();
        let mounted = labels::mounted(Some(&fresh.checked.policy), &self.file_systems);
        mounted.map_err(|(_, error)| error)?;
        let mut wanted = Vec::new();
        for name in state.names()? {
            let settings = self.settings_of(block(&fresh.checked.policy, &name), &name)?;
            wanted.push((name, settings));
        }
        let former = state.settings.clone();
        let mut done: Vec<String> = Vec::new();
        for (name, settings) in wanted {
            if let Err(error) = state.configure(&name, settings) {
                for name in &done {
                    let back = state.configure(name, former.get(name).cloned());
                    if let Err(error) = back {
                        state.trouble(name, &error);
                        state.outdated.insert(name.clone());
                    }
                }
                return Err(error);
            }
            done.push(name);
        }
        for name in done {
            state.outdated.remove(&name);
            state.over(&name);
        }
        state.guard();
        let generation = fresh.generation();
        tracing::info!(
            generation,
            blocks = fresh.checked.policy.mac.len(),
            "settings in force"
        );
        state.configuration = Some(fresh);
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
        let (module, digest) = self.find(name)?;
        self.load_into(&mut state, module)?;
        state
            .digests
            .extend(digest.map(|digest| (name.to_owned(), digest)));
        state.missing.retain(|missing| missing.name != name);
        if let Err(error) = state.save(None) {
            state.digests.remove(name);
            if let Some(framework) = &mut state.framework {
                framework.unload(name)?;
            }
            state.end_if_empty()?;
            state.guard();
            return Err(MacError::NotStored(error));
        }
        state.over(name);
        self.watch(&mut state, true);
        state.show();
        tracing::info!(module = name, "module in force");
        Ok(())
    }

    /// The module of this name, built in or from a file, with the digest of its file.
    fn find(&self, name: &str) -> Result<(Module, Option<String>), MacError> {
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
        }
        state.digests.insert(name.clone(), digest.clone());
        Ok(())
    }

    fn load_into(&self, state: &mut State, module: Module) -> Result<(), MacError> {
        let name = module.name().to_owned();
        self.require_support(state)?;
        let settings = self.wanted(state, &name)?;
        let module = settings.clone().map_or(module, Module::with);
        if state.framework.is_none() {
            let opened = Framework::open(Path::new(paths::LABELLER_PIN_DIRECTORY))?;
            state.framework = Some(opened);
        }
        let loaded = match &mut state.framework {
            Some(framework) => framework.load(&module),
            None => Ok(()),
        };
        if let Err(error) = loaded {
            state.end_if_empty()?;
            return Err(error.into());
        }
        if let Some(settings) = settings {
            state.settings.insert(name, settings);
        }
        state.guard();
        Ok(())
    }

    /// Unloads a module, now and after every reboot.
    ///
    /// # Errors
    /// When it is not loaded, or the kernel fails.
    pub(super) fn unload(&self, name: &str) -> Result<(), MacError> {
        let mut state = self.state.lock();
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
        state.outdated.remove(name);
        state.over(name);
        state.end_if_empty()?;
        self.watch(&mut state, true);
        state.guard();
        state.show();
        tracing::info!(module = name, "module no longer in force");
        Ok(())
    }

    /// The modules, for an administrator.
    ///
    /// # Errors
    /// When the kernel's state cannot be read.
    pub(super) fn view(&self) -> Result<MacView, MacError> {
        let state = self.state.lock();
        let mut view = MacView {
            generation: state
                .configuration
                .as_ref()
                .map_or(0, Configuration::generation),
            is_guarded: state.is_guarded,
            unsupported: self
                .require_support(&state)
                .err()
                .map(|lacks| lacks.to_string()),
            ..MacView::default()
        };
        if let Some(framework) = &state.framework {
            view.hooks = framework
                .attached()?
                .iter()
                .map(ToString::to_string)
                .collect();
            let modules = framework.modules()?.into_iter().map(|module| ModuleView {
                settings: state.lines(&module.name),
                file: state
                    .digests
                    .get(&module.name)
                    .map(|_| self.files.path(&module.name).display().to_string()),
                has_changed: self.has_changed(&state, &module.name),
                name: module.name,
                slot: module.slot,
                hooks: module
                    .entry_points
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                refusals: module
                    .refusals
                    .iter()
                    .map(|(hook, count)| (hook.to_string(), *count))
                    .collect(),
            });
            view.modules = modules.collect();
        }
        let is_loaded = |name: &str| view.modules.iter().any(|module| module.name == name);
        let mut troubles: Vec<String> = state.troubles.values().cloned().collect();
        let names = match self.files.names() {
            Ok((names, false)) => names,
            Ok((names, true)) => {
                let folder = Path::new(paths::MODULE_DIRECTORY);
                troubles.push(MacError::NotListed(folder.into()).to_string());
                names
            }
            Err(error) => {
                troubles.push(error.to_string());
                Vec::new()
            }
        };
        let built_in = NAMES.iter().map(|name| (*name).to_owned());
        let from_files = names
            .into_iter()
            .filter(|name| Module::named(name).is_none());
        let unloaded = built_in.chain(from_files).filter(|name| !is_loaded(name));
        for name in unloaded.collect::<Vec<_>>() {
            match self.find(&name) {
                Ok(_) => view.available.push(name),
                Err(error) => {
                    view.unusable.insert(name, error.to_string());
                }
            }
        }
        let blocks = state.policy().map_or(&[][..], |policy| &policy.mac);
        let waiting = blocks.iter().filter(|block| block.is_of_module());
        let waiting = waiting.map(|block| block.module.to_string());
        view.waiting = waiting.filter(|name| !is_loaded(name)).collect();
        view.multilabel = labels::views(&self.persisting);
        view.troubles = troubles;
        Ok(view)
    }

    /// Whether the file of a module is not, or no longer, what the administrator loaded.
    fn has_changed(&self, state: &State, name: &str) -> bool {
        let now = || match self.files.read(name) {
            Ok(Some(file)) => Some(file.digest),
            Ok(None) | Err(_) => None,
        };
        state
            .digests
            .get(name)
            .is_some_and(|digest| Some(digest) != now().as_ref())
    }
}

/// The block of a module.
fn block<'p>(policy: &'p Policy, name: &str) -> Option<&'p MacBlock> {
    policy
        .mac
        .iter()
        .find(|block| block.module.as_ref() == name)
}

impl State {
    fn policy(&self) -> Option<&Policy> {
        let configuration = self.configuration.as_ref();
        configuration.map(|configuration| &configuration.checked.policy)
    }

    /// The names of the modules in force, in the order of loading.
    fn names(&self) -> Result<Vec<String>, MacError> {
        let Some(framework) = &self.framework else {
            return Ok(Vec::new());
        };
        let modules = framework.modules()?;
        Ok(modules.into_iter().map(|module| module.name).collect())
    }

    /// The settings of a module in force, as the policy has them.
    fn lines(&self, name: &str) -> Vec<String> {
        let block = self.policy().and_then(|policy| block(policy, name));
        block.map_or_else(Vec::new, |block| block.settings.lines())
    }

    fn configure(&mut self, name: &str, settings: Option<Settings>) -> Result<(), MacError> {
        let Some(settings) = settings else {
            return Ok(());
        };
        if self.settings.get(name) == Some(&settings) {
            return Ok(());
        }
        if let Some(framework) = &mut self.framework {
            framework.configure(name, &settings)?;
        }
        self.settings.insert(name.to_owned(), settings);
        Ok(())
    }

    /// Takes the framework out of the kernel when it has no module.
    fn end_if_empty(&mut self) -> Result<(), MacError> {
        if !self.names()?.is_empty() {
            return Ok(());
        }
        match self.framework.take() {
            Some(framework) => Ok(framework.close()?),
            None => Ok(()),
        }
    }

    /// Keeps the list of modules for the next boot: those in force and those that are missing, without one.
    fn save(&self, without: Option<&str>) -> std::io::Result<()> {
        let names = self.names().map_err(std::io::Error::other)?;
        let loaded = names.into_iter().map(|name| Wanted {
            digest: self.digests.get(&name).cloned(),
            name,
        });
        let modules = loaded.chain(self.missing.iter().cloned());
        let modules: Vec<Wanted> = modules
            .filter(|module| Some(module.name.as_str()) != without)
            .collect();
        stored::save(&modules)
    }

    /// Shows the modules in force to programs.
    fn show(&mut self) {
        let shown = match self.names() {
            Ok(names) if self.framework.is_none() && names.is_empty() => stored::forget_shown(),
            Ok(names) => stored::show(&names),
            Err(error) => Err(std::io::Error::other(error)),
        };
        match shown {
            Ok(()) => self.over(paths::SHOWN_MODULES),
            Err(error) => {
                let error = MacError::NotShown(error);
                self.trouble(paths::SHOWN_MODULES, &error);
            }
        }
    }

    /// Claims what is loaded now. Modules are in force without it.
    fn guard(&mut self) {
        let objects = match &self.framework {
            None => Ok(usher_bpf::Objects::default()),
            Some(framework) => framework.objects(),
        };
        let claimed = objects.and_then(|objects| Ok(self.claims.renew(&objects)?));
        self.is_guarded = claimed.unwrap_or_else(|error| {
            tracing::warn!(%error, "root's processes can touch the tables of modules");
            false
        });
    }

    /// Notes the reason that something is not in force; the journal has each once.
    fn trouble(&mut self, what: &str, error: &MacError) {
        let error = format!("{what}: {error}");
        if self.troubles.get(what) != Some(&error) {
            tracing::error!("{error}");
        }
        self.troubles.insert(what.to_owned(), error);
    }

    fn over(&mut self, what: &str) {
        self.troubles.remove(what);
    }
}
