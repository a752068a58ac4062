//! Loads modules, built in and from files, and unloads them.

use usher_daemon::events;
use usher_mac::{Module, is_module_name};
use usher_policy::mac::FRAMEWORK_BLOCK;

use super::error::MacError;
use super::files::ModuleFile;
use super::force::Force;
use super::labels;
use super::state::State;
use super::stored::{self, Wanted};

impl Force {
    /// Loads a module, with the settings of the policy in force, now and after every reboot.
    ///
    /// # Errors
    /// When there is no such module, the kernel runs no modules, the module's file is invalid or others than
    /// root can write it, or a name in the settings is unknown. Nothing has changed then.
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
        tracing::info!(name: events::MODULE_IN_FORCE, module = name, "module in force");
        Ok(())
    }

    /// The module of this name, built in or from a file, with the digest of its file.
    pub(super) fn find(&self, name: &str) -> Result<(Module, Option<String>), MacError> {
        let none = || MacError::NoModule(name.to_owned());
        if !is_module_name(name) {
            return Err(none());
        }
        if let Some(module) = Module::named(name) {
            return if self.files.has(name)? {
                Err(MacError::TwoModules {
                    name: name.to_owned(),
                    path: self.files.path(name),
                })
            } else {
                Ok((module, None))
            };
        }
        // Blocks of these names are not for modules.
        if [FRAMEWORK_BLOCK, "any"].contains(&name) {
            return Err(none());
        }
        let ModuleFile { module, digest } = self.files.read(name)?.ok_or_else(none)?;
        Ok((module, Some(digest)))
    }

    /// Loads a module that was in force before, from the origin that it had then (built in, or a file), even
    /// if there is a module of that name from the other origin now.
    pub(super) fn load_again(&self, state: &mut State, wanted: &Wanted) -> Result<(), MacError> {
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
        let settings = if module.is_built_in() {
            self.first_settings(state, &name)?
        } else {
            self.declared(&module, state.policy())?
        };
        let module = match settings.clone() {
            Some(settings) => module.with_settings(settings),
            None => module,
        };
        if module.is_built_in() {
            self.put(state, &module)?
        } else {
            self.try_file(state, &module)?
        }
        if let Some(settings) = settings {
            state.settings.insert(name, settings);
        }
        Ok(())
    }

    /// Loads a module from a file. Loading may end this process, so trials are counted.
    fn try_file(&self, state: &mut State, module: &Module) -> Result<(), MacError> {
        let name = module.name();
        if !stored::begin_trial(name).map_err(MacError::Trials)? {
            return Err(MacError::Ends(name.to_owned()));
        }
        let loaded = self.put(state, module);
        if let Err(error) = stored::end_trial(name) {
            // The module has one trial fewer from now on.
            tracing::warn!(module = name, %error, "cannot note that its loading has ended");
        }
        loaded
    }

    /// Has the framework load a module, and makes the framework if there is none.
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
        // Read the module's events first: they name it by a number, which means this module only while it is
        // loaded.
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
        // Save first: if this labeller ended between unloading and saving, the next one would load the module
        // again after a reboot.
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
        tracing::info!(name: events::MODULE_UNLOADED, module = name, "module no longer in force");
        Ok(())
    }
}
