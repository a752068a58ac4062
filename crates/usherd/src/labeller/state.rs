//! The labeller's state: modules and settings in force, and troubles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use usher_bpf::guard::Claims;
use usher_local::configuration::Configuration;
use usher_local::paths;
use usher_mac::{Framework, Module, Settings};
use usher_policy::mac::{MacBlock, te};
use usher_policy::{Policy, ServedBy, Service};

use super::error::MacError;
use super::filing::{Filing, Types};
use super::labels;
use super::new_files::Multilabel;
use super::stored::{self, Wanted};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) configuration: Option<Configuration>,
    /// None: no module is loaded, and nothing of the framework is in the kernel.
    pub(super) framework: Option<Framework>,
    /// The settings that this process has put in force, by module.
    pub(super) settings: BTreeMap<String, Settings>,
    /// Modules that are to be loaded and are not, in their order.
    pub(super) missing: Vec<Wanted>,
    /// For modules in force from files: the SHA-256 that the file had when the administrator loaded it; empty
    /// if unknown.
    pub(super) digests: BTreeMap<String, String>,
    /// For modules whose file had changed when it was loaded after a reboot: the SHA-256 of the changed file.
    pub(super) replaced: BTreeMap<String, String>,
    /// The list of modules to be loaded has been read from its file. Until then the file is not replaced.
    pub(super) is_read: bool,
    /// Modules whose settings in force are not those of the policy.
    pub(super) outdated: BTreeSet<String>,
    /// The file systems whose new files get labels: the mounted multilabel ones.
    pub(super) multilabel: Option<Vec<Multilabel>>,
    /// The devices of multilabel file systems that are unmounted at their paths, but in use.
    pub(super) elsewhere: BTreeSet<(u32, u32)>,
    /// The specification of the policy, where it names one that could be read.
    pub(super) filing: Option<Arc<Filing>>,
    pub(super) types: Types,
    pub(super) looked: labels::Looked,
    pub(super) claims: Claims,
    pub(super) is_guarded: bool,
    /// For each thing that is not in force, the last reason.
    pub(super) troubles: BTreeMap<String, String>,
}

/// The block of a policy with a module's settings.
pub(super) fn block<'p>(policy: &'p Policy, name: &str) -> Option<&'p MacBlock> {
    policy
        .mac
        .iter()
        .find(|block| block.module.as_ref() == name)
}

/// The setting of `ubns` for a service.
fn line_of_service(service: &Service) -> String {
    let mut line = format!("service {} listen {}", service.name, service.listen);
    if let ServedBy::Account(account) = &service.served_by {
        line.push_str(&format!(" account {account}"));
    }
    if let Some(connect) = &service.connect {
        line.push_str(&format!(" connect {connect}"));
    }
    line
}

impl State {
    pub(super) fn policy(&self) -> Option<&Policy> {
        let configuration = self.configuration.as_ref();
        configuration.map(|configuration| &configuration.checked.policy)
    }

    /// Reads the list of modules that are to be loaded, once.
    pub(super) fn read(&mut self) -> Result<(), MacError> {
        if self.is_read {
            return Ok(());
        }
        let wanted = stored::load_stored().map_err(MacError::NotRead)?;
        let names = self.names()?;
        let (noted, missing): (Vec<Wanted>, _) = wanted
            .into_iter()
            .partition(|module| names.contains(&module.name));
        self.missing = missing;
        // A labeller may have ended between loading and noting a module, whose file is unknown then.
        let is_noted = |name: &String| noted.iter().any(|module| module.name == *name);
        let others: Vec<String> = names.into_iter().filter(|name| !is_noted(name)).collect();
        let has_others = !others.is_empty();
        let from_files = others
            .into_iter()
            .filter(|name| Module::named(name).is_none());
        let from_files = from_files.map(|name| (name, String::new()));
        let replaced = noted.iter();
        let replaced = replaced.filter_map(|one| Some((one.name.clone(), one.replaced.clone()?)));
        self.replaced = replaced.collect();
        let noted = noted.into_iter();
        let noted = noted.filter_map(|module| Some((module.name, module.digest?)));
        self.digests = from_files.chain(noted).collect();
        self.is_read = true;
        if has_others {
            self.save(None).map_err(MacError::NotStored)?;
        }
        Ok(())
    }

    /// The names of the modules in force, in the order of loading.
    pub(super) fn names(&self) -> Result<Vec<String>, MacError> {
        let Some(framework) = &self.framework else {
            return Ok(Vec::new());
        };
        let modules = framework.modules()?;
        Ok(modules.into_iter().map(|module| module.name).collect())
    }

    /// The SHA-256 of the file from which a module is in force; `None` if the module is not from a file.
    pub(super) fn loaded_digest(&self, name: &str) -> Option<&String> {
        self.replaced.get(name).or_else(|| self.digests.get(name))
    }

    /// Whether a module in force has settings.
    pub(super) fn has_settings(&self, name: &str) -> Result<bool, MacError> {
        match &self.framework {
            Some(framework) => Ok(framework.has_settings(name)?),
            None => Ok(false),
        }
    }

    /// The settings of a module in force, as the policy has them.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let Some(policy) = self.policy() else {
            return Vec::new();
        };
        match block(policy, name) {
            _ if name == usher_policy::mac::UBNS => {
                policy.services.values().map(line_of_service).collect()
            }
            Some(block) => block.settings.lines(),
            None => Vec::new(),
        }
    }

    /// Puts settings of a module in force. Returns whether its settings in the kernel have changed.
    pub(super) fn configure(
        &mut self,
        name: &str,
        settings: Option<Settings>,
    ) -> Result<bool, MacError> {
        let Some(settings) = settings else {
            return Ok(false);
        };
        let is_changed = match self.settings.get(name) {
            Some(former) => *former != settings && former.encode()? != settings.encode()?,
            None => true,
        };
        if is_changed && let Some(framework) = &mut self.framework {
            framework.configure(name, &settings)?;
        }
        self.settings.insert(name.to_owned(), settings);
        Ok(is_changed)
    }

    /// Gives network interfaces their labels by a policy, and permits the policy's families of sockets.
    pub(super) fn set_interfaces(&mut self, policy: Option<&Policy>) -> Result<(), MacError> {
        let Some(framework) = &mut self.framework else {
            return Ok(());
        };
        framework.set_interfaces(&labels::interfaces(policy))?;
        Ok(framework.permit_families(&labels::families(policy))?)
    }

    /// Reads the specification of the policy in force, unless it has been read. Returns whether it has read
    /// one now.
    pub(super) fn specify(&mut self) -> bool {
        if self.filing.is_some() {
            return false;
        }
        let read = Filing::read(self.policy());
        let (filing, read) = match read {
            Ok(filing) => (filing, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.note(labels::UNSPECIFIED, &read);
        self.filing = filing.map(Arc::new);
        self.filing.is_some()
    }

    /// Checks whether programs have the types by which domains are entered.
    pub(super) fn look_at_entry_points(&mut self) {
        let is_te = self
            .names()
            .is_ok_and(|names| names.iter().any(|name| name == te::MODULE));
        let looked = match &self.filing {
            Some(filing) if is_te => filing.require_entry_points(&self.types),
            _ => Ok(()),
        };
        self.note(labels::ENTRY_POINTS, &looked);
    }

    /// Gives network interfaces their labels by the policy in force, and permits the policy's families of
    /// sockets. A failure is tried again.
    pub(super) fn label_interfaces(&mut self) {
        let wanted = labels::interfaces(self.policy());
        let set = match &mut self.framework {
            Some(framework) => framework.set_interfaces(&wanted).map_err(MacError::from),
            None => Ok(()),
        };
        self.note(labels::INTERFACES, &set);
        let families = labels::families(self.policy());
        let permitted = match &self.framework {
            Some(framework) => framework.permit_families(&families).map_err(MacError::from),
            None => Ok(()),
        };
        self.note(labels::FAMILIES, &permitted);
    }

    /// Has modules asked about the packets of new interfaces. A failure is tried again.
    pub(super) fn follow_interfaces(&mut self) {
        let followed = match &self.framework {
            Some(framework) => framework.follow_interfaces().map_err(MacError::from),
            None => Ok(false),
        };
        let is_as_it_was = matches!(followed, Ok(false));
        self.note(labels::UNASKED, &followed.map(drop));
        // A change that failed at one interface may have succeeded at others.
        if !is_as_it_was {
            self.guard();
        }
    }

    /// Takes the framework out of the kernel when it has no module.
    pub(super) fn end_if_empty(&mut self) -> Result<(), MacError> {
        if !self.names()?.is_empty() {
            return Ok(());
        }
        match self.framework.take() {
            Some(framework) => Ok(framework.close()?),
            None => Ok(()),
        }
    }

    /// Writes the list of modules for the next boot: those in force and the missing ones, except `without`.
    pub(super) fn save(&self, without: Option<&str>) -> std::io::Result<()> {
        let names = self.names().map_err(std::io::Error::other)?;
        let loaded = names.into_iter().map(|name| Wanted {
            digest: self.digests.get(&name).cloned(),
            replaced: self.replaced.get(&name).cloned(),
            name,
        });
        let modules = loaded.chain(self.missing.iter().cloned());
        let modules: Vec<Wanted> = modules
            .filter(|module| Some(module.name.as_str()) != without)
            .collect();
        stored::save(&modules)
    }

    /// Shows the modules in force to programs.
    pub(super) fn show(&mut self) {
        let shown = match self.names() {
            Ok(names) if self.framework.is_none() && names.is_empty() => stored::forget_shown(),
            Ok(names) => stored::show(&names),
            Err(error) => Err(std::io::Error::other(error)),
        };
        self.note(paths::SHOWN_MODULES, &shown.map_err(MacError::NotShown));
    }

    /// Claims the loaded objects for the guard. If that fails, modules stay in force.
    pub(super) fn guard(&mut self) {
        let objects = match &self.framework {
            None => Ok(usher_bpf::Objects::default()),
            Some(framework) => framework.objects(),
        };
        let claimed = objects.and_then(|objects| Ok(self.claims.renew(&objects)?));
        self.is_guarded = claimed.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot guard the tables of modules: root's processes can \
                change them");
            false
        });
    }

    /// Notes the reason that something is not in force, and logs it unless it is the reason noted last.
    pub(super) fn trouble(&mut self, what: &str, error: &MacError) {
        let error = format!("{what}: {error}");
        if self.troubles.get(what) != Some(&error) {
            tracing::error!("{error}");
        }
        self.troubles.insert(what.to_owned(), error);
    }

    /// Notes whether something is in force, or the reason that it is not.
    pub(super) fn note(&mut self, what: &str, outcome: &Result<(), MacError>) {
        match outcome {
            Ok(()) => self.over(what),
            Err(error) => self.trouble(what, error),
        }
    }

    pub(super) fn over(&mut self, what: &str) {
        self.troubles.remove(what);
    }
}

/// Whether a name means a module from a file. `digests` has the modules that are loaded from files.
pub(super) fn is_of_file(digests: &BTreeMap<String, String>, name: &str) -> bool {
    digests.contains_key(name) || Module::named(name).is_none()
}
