//! The settings of modules that a policy wants.

use usher_mac::{Module, Settings};
use usher_policy::Policy;

use super::error::MacError;
use super::force::Force;
use super::resolving::{self, Resolver};
use super::state::{State, block, is_of_file};

impl Force {
    /// The settings that the policy in force has for a module. `None`: the module has no settings.
    pub(super) fn wanted(&self, state: &State, name: &str) -> Result<Option<Settings>, MacError> {
        self.settings_by(state, state.policy(), name)
    }

    /// The settings that a policy, which may be the next one, has for a module. `None`: the module has no
    /// settings, or its settings stay as they are.
    pub(super) fn settings_by(
        &self,
        state: &State,
        policy: Option<&Policy>,
        name: &str,
    ) -> Result<Option<Settings>, MacError> {
        if !is_of_file(&state.digests, name) {
            return self.settings_of(policy, state.policy(), name);
        }
        let module = self.declaring(state, policy, name)?;
        module.map_or(Ok(None), |module| self.declared(&module, policy))
    }

    /// The module from a file whose declaration says how to read a policy's block. `None`: the settings in
    /// force stay as they are, because the file of the module in force was replaced or cannot be read, and
    /// the policy changes nothing for this module.
    pub(super) fn declaring(
        &self,
        state: &State,
        policy: Option<&Policy>,
        name: &str,
    ) -> Result<Option<Module>, MacError> {
        let of = policy.and_then(|policy| block(policy, name));
        if !state.names()?.iter().any(|loaded| loaded == name) {
            let none = || MacError::NoModule(name.to_owned());
            let file = self.files.read(name)?.ok_or_else(|| match of {
                Some(of) => MacError::NoModuleOf {
                    place: of.origin.place.to_string(),
                    reason: Box::new(none()),
                },
                None => none(),
            })?;
            return Ok(Some(file.module));
        }
        // An unreadable file, like a different one, says nothing about the module in force.
        let file = self.files.read(name).ok().flatten();
        let file = file.filter(|file| Some(&file.digest) == state.loaded_digest(name));
        if let Some(file) = file {
            return Ok(Some(file.module));
        }
        let former = state.policy().and_then(|policy| block(policy, name));
        let is_same = of.map(|of| &of.settings) == former.map(|of| &of.settings);
        if is_same || (of.is_none() && !state.has_settings(name)?) {
            Ok(None)
        } else {
            Err(MacError::FileChanged {
                name: name.to_owned(),
                path: self.files.path(name),
            })
        }
    }

    /// The settings that a policy has for a module from a file.
    pub(super) fn declared(
        &self,
        module: &Module,
        policy: Option<&Policy>,
    ) -> Result<Option<Settings>, MacError> {
        let block = policy.and_then(|policy| block(policy, module.name()));
        Resolver::new(&self.file_systems).declared(module, block)
    }

    /// The settings of a module to be loaded. A rule whose path gets no answer waits, like one whose file
    /// system is not mounted, so that the module's other rules do not wait for a user's file system.
    pub(super) fn first_settings(
        &self,
        state: &State,
        name: &str,
    ) -> Result<Option<Settings>, MacError> {
        match self.wanted(state, name) {
            Err(error) if error.is_unanswered() => {
                let block = state.policy().and_then(|policy| block(policy, name));
                let settings = block.map(|block| Resolver::new(&self.file_systems).settings(block));
                settings.transpose().map(Option::flatten)
            }
            settings => settings,
        }
    }

    /// The settings of a built-in module by a policy: those of its block, or its default; for `ubns`, the
    /// services. A rule about a file system that is not mounted waits if a rule of the former policy has
    /// named the same path; otherwise the path is probably mistaken, and refused. A path without an answer is
    /// refused, too.
    pub(super) fn settings_of(
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
}
