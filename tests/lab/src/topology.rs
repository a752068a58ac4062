//! The lab itself: its switch, its hosts, and their removal.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::anchor::Anchor;
use crate::cgroup;
use crate::error::{Attempt, LabError};
use crate::host::Host;
use crate::network;

/// The files that `make install` writes into a host.
const PAM_SERVICE: &str = include_str!("../../../packaging/pam.d/usher");

/// Hosts on one switch. Dropping the value removes the lab with everything in it.
#[derive(Debug)]
pub struct Lab {
    state: Arc<Mutex<State>>,
    group: PathBuf,
    binaries: PathBuf,
}

#[derive(Debug)]
struct State {
    /// `None` when the lab has been removed.
    switch: Option<Anchor>,
    hosts: Vec<(String, Arc<Anchor>)>,
}

impl Lab {
    /// Makes a lab without hosts, and removes what killed labs have left.
    ///
    /// Usher's programs are those beside the running one: the lab serves integration tests
    /// (`target/debug/deps/...`) and programs (`target/debug/...`) alike.
    ///
    /// # Errors
    /// When not run as root, or the kernel lacks namespaces, bridges or cgroup v2.
    pub fn new() -> Result<Self, LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        cgroup::sweep()?;
        let binaries = binaries()?;
        let switch = Anchor::switch()?;
        let group = cgroup::create_lab()?;
        let state = State {
            switch: Some(switch),
            hosts: Vec::new(),
        };
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            group,
            binaries,
        })
    }

    /// Adds a host that all others of the lab can reach.
    ///
    /// # Errors
    /// When the name is malformed or taken, or the kernel refuses.
    pub fn host(&self, name: &str) -> Result<Host, LabError> {
        let mut state = lock(&self.state);
        let unfit = || LabError::HostName { name: name.into() };
        let letters = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
        let fit = name.starts_with(|letter: char| letter.is_ascii_lowercase())
            && name.len() <= 63
            && name.chars().all(letters)
            && state.hosts.iter().all(|(taken, _)| taken != name);
        if !fit {
            return Err(unfit());
        }
        let switch = state.switch.as_ref().ok_or(LabError::Removed)?.pid;
        let number = u8::try_from(state.hosts.len() + 1)
            .ok()
            .filter(|number| *number < u8::MAX)
            .ok_or_else(unfit)?;
        let anchor = Arc::new(Anchor::host(name, &self.binaries)?);
        network::plug(switch, anchor.pid, name, number)?;
        let group = self.group.join(name);
        cgroup::create(&group)?;
        cgroup::hand_down(&group)?;
        state.hosts.push((name.into(), Arc::clone(&anchor)));
        let host = Host::new(name, number, anchor, group, self.binaries.clone());
        host.write("/etc/pam.d/usher", PAM_SERVICE)?;
        Ok(host)
    }

    /// Makes the switch a hub: from now on every host's interface gets every frame.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn become_hub(&self) -> Result<(), LabError> {
        let state = lock(&self.state);
        let switch = state.switch.as_ref().ok_or(LabError::Removed)?.pid;
        network::forget_places(switch)
    }

    /// Returns a value that removes the lab from another thread, for a handler of Ctrl-C.
    #[must_use]
    pub fn remover(&self) -> Remover {
        Remover {
            state: Arc::clone(&self.state),
            group: self.group.clone(),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.remover().remove() {
            eprintln!("usher-lab: {error}");
        }
    }
}

/// Removes a lab; see [`Lab::remover`].
#[derive(Debug, Clone)]
pub struct Remover {
    state: Arc<Mutex<State>>,
    group: PathBuf,
}

impl Remover {
    /// Kills every process of every host and removes everything that the lab made. Returns when it is
    /// gone; a second call does nothing.
    ///
    /// # Errors
    /// When the kernel refuses; everything else has been removed then.
    pub fn remove(&self) -> Result<(), LabError> {
        let mut state = lock(&self.state);
        let mut results = Vec::new();
        for (name, anchor) in &state.hosts {
            // The commands first: their nsenter, outside, waits for them and ends.
            results.push(cgroup::kill(&self.group.join(name)));
            results.push(anchor.end());
        }
        results.push(state.switch.take().map_or(Ok(()), |switch| switch.end()));
        results.push(cgroup::remove_when_empty(&self.group));
        results
            .into_iter()
            .collect::<Result<(), _>>()
            .attempt(|| "cannot remove the lab".into())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of the running program, without cargo's `deps`.
fn binaries() -> Result<PathBuf, LabError> {
    let program = std::env::current_exe().attempt(|| "cannot find the running program".into())?;
    let folder = program
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps") && !folder.ends_with("examples"));
    Ok(folder.map(PathBuf::from).unwrap_or_default())
}
