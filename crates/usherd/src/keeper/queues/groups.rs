//! The users' control groups: `user-UID` for each user, with the limits for all of the user's
//! processes together, and in it `service-NAME` for each service. A controller is enabled for the
//! groups below only if the policy in force needs it, because each one costs the kernel time.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use usher_kernel::KernelError;
use usher_kernel::cgroup::{self, Controller, Group};
use usher_policy::{Policy, ProcessLimits, Service};

/// The leaf group of a keeper that was started in the workers' group: processes live only in leaves
/// (cgroups(7), "no internal processes").
const LEAF: &str = "keeper";

/// The folders of workers and keeper.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// The folder in which the workers' groups are made.
    pub workers: PathBuf,
    /// The folder above both the keeper and the workers.
    pub common: PathBuf,
    /// Whether the keeper must move into a leaf beside the workers.
    moves: bool,
    /// Whether the workers' folder may enable controllers for the groups below. Not if the keeper
    /// was started directly in it: the next keeper would be too, and a group that enables
    /// controllers accepts no process.
    hands_down: bool,
}

impl Layout {
    /// Finds the layout from the `asked` folder (a relative one is below `mount`), or from the
    /// keeper's `own` group.
    fn of(asked: Option<PathBuf>, own: &Path, mount: &Path) -> Self {
        let workers = match (asked, own.parent()) {
            (Some(path), _) => mount.join(path),
            (None, Some(parent)) if own.ends_with(LEAF) => parent.to_owned(),
            (None, _) => own.to_owned(),
        };
        let is_inside = own.starts_with(&workers);
        let mut common = own.to_owned();
        while !workers.starts_with(&common) && common.pop() {}
        Self {
            common: if is_inside { workers.clone() } else { common },
            moves: is_inside,
            hands_down: own != workers,
            workers,
        }
    }

    /// Finds the layout, and moves the keeper into its leaf if it has one.
    ///
    /// # Errors
    /// When there is no hierarchy of version 2 or no such folder, or the kernel's error.
    pub fn take(asked: Option<PathBuf>) -> Result<Self, KernelError> {
        let layout = Self::of(asked, &cgroup::own()?, &cgroup::mount()?);
        if layout.moves {
            Group::create(&layout.workers, LEAF)?.move_self()?;
        }
        Ok(layout)
    }
}

/// The reason why a user's group does not follow the policy.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The policy has a limit that cannot be enforced here.
    #[error(
        "the policy limits `{0}`, and the workers' control group has no controller for it: see \
         usherd(8), --cgroup"
    )]
    NoController(Controller),
}

/// The groups, and the limits in force.
pub struct Groups {
    /// The group that enables controllers for the users' groups.
    above: Group,
    workers: Group,
    hands_down: bool,
    state: Mutex<State>,
}

/// A user's group at a service with a process in it.
pub struct Occupied {
    pub uid: u32,
    /// The service's name.
    pub service: String,
    pub group: Group,
}

#[derive(Default)]
struct State {
    /// Enabled for the users' groups and the groups in them.
    controllers: BTreeSet<Controller>,
    /// Requested but unavailable.
    missing: BTreeSet<Controller>,
    each_user: ProcessLimits,
    users: HashMap<u32, Arc<Group>>,
}

impl Groups {
    /// Makes the folder of the workers.
    pub fn open(layout: &Layout) -> Result<Self, KernelError> {
        let above = Group::open(&layout.workers)?;
        Ok(Self {
            workers: Group::create(above.path(), "workers")?,
            above,
            hands_down: layout.hands_down,
            state: Mutex::default(),
        })
    }

    /// The controllers that the policy needs and that are unavailable here.
    pub fn missing(&self) -> BTreeSet<Controller> {
        self.state.lock().missing.clone()
    }

    /// Enables the controllers that a policy needs, and sets the limits of each user's group.
    pub fn put_in_force(&self, policy: &Policy) {
        let mut state = self.state.lock();
        let mut fresh = Vec::new();
        for controller in needed(policy) {
            if !state.controllers.contains(&controller)
                && self.hand_down(controller, &mut state.missing)
            {
                state.controllers.insert(controller);
                fresh.push(controller);
            }
        }
        if fresh.is_empty() && state.each_user == policy.each_user {
            return;
        }
        state.each_user = policy.each_user;
        for (uid, group) in &state.users {
            if let Err(error) = state.equip(group) {
                tracing::error!(%error, uid, "cannot limit the resources of a user's processes");
            }
        }
    }

    fn hand_down(&self, controller: Controller, missing: &mut BTreeSet<Controller>) -> bool {
        let refused = if self.hands_down {
            let handed_down = self
                .above
                .hand_down(controller)
                .and_then(|()| self.workers.hand_down(controller));
            match handed_down {
                Ok(()) => {
                    missing.remove(&controller);
                    return true;
                }
                Err(error) => error.to_string(),
            }
        } else {
            "the keeper was started in the very group of the workers".into()
        };
        if missing.insert(controller) {
            let remedy = if usher_kernel::cgroup::has(controller) {
                "it takes a control group of the workers' own, see usherd(8), --cgroup"
            } else {
                "this controller is not in the hierarchy of cgroup v2, probably because a cgroup v1 mount \
                 has it: boot with `systemd.unified_cgroup_hierarchy=1`"
            };
            tracing::warn!("cannot limit `{controller}` of users: {refused}; {remedy}");
        }
        false
    }

    /// The group of a user at a service, with its limits.
    ///
    /// # Errors
    /// When it cannot be made, or the policy has limits that cannot be enforced here.
    pub fn at(&self, service: &Service, uid: u32) -> Result<Group, GroupError> {
        let mut state = self.state.lock();
        let user = match state.users.get(&uid) {
            Some(group) => Arc::clone(group),
            None => {
                let group = Arc::new(Group::create(self.workers.path(), &format!("user-{uid}"))?);
                state.equip(&group)?;
                state.users.insert(uid, Arc::clone(&group));
                group
            }
        };
        // Without the prefix, a service's group could have the name of a file that every group has.
        let group = Group::create(user.path(), &format!("service-{}", service.name))?;
        state.limit(&group, &service.limits())?;
        Ok(group)
    }

    /// The groups that contain a process, also those of an earlier keeper's workers.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn occupied(&self) -> Result<Vec<Occupied>, KernelError> {
        let mut occupied = Vec::new();
        for user in self.workers.below()? {
            let Some(uid) = user.name_after("user-").and_then(|uid| uid.parse().ok()) else {
                continue;
            };
            for group in user.below()? {
                if let Some(service) = group.name_after("service-").map(str::to_owned)
                    && group.populated()?
                {
                    occupied.push(Occupied {
                        uid,
                        service,
                        group,
                    });
                }
            }
        }
        Ok(occupied)
    }

    /// The group of the processes that hold PAM sessions. They are outside the users' groups,
    /// because they close the sessions when those groups are killed.
    pub fn of_sessions(&self) -> Result<Group, KernelError> {
        Group::create(self.above.path(), "sessions")
    }

    /// Updates the limits of a user's group at a service.
    pub fn limit(&self, group: &Group, service: &Service) -> Result<(), GroupError> {
        self.state.lock().limit(group, &service.limits())
    }
}

impl State {
    /// Sets the limits of a user's group, and enables its controllers for the groups below.
    fn equip(&self, user: &Group) -> Result<(), GroupError> {
        for controller in &self.controllers {
            user.hand_down(*controller)?;
        }
        self.limit(user, &self.each_user)
    }

    fn limit(&self, group: &Group, limits: &ProcessLimits) -> Result<(), GroupError> {
        let asked = [
            (Controller::Processes, Some(limits.processes.into())),
            (Controller::Memory, limits.memory),
            (Controller::Cpu, limits.cpu.map(u64::from)),
        ];
        for (controller, most) in asked {
            if self.controllers.contains(&controller) {
                group.limit(controller, most)?;
            } else if controller != Controller::Processes && most.is_some() {
                // Every policy limits processes: if this limit cannot be enforced, the log says so
                // once and the service continues.
                return Err(GroupError::NoController(controller));
            }
        }
        Ok(())
    }
}

fn needed(policy: &Policy) -> impl Iterator<Item = Controller> {
    let limits = || policy.services.values().map(Service::limits);
    let any =
        |asks: fn(&ProcessLimits) -> bool| asks(&policy.each_user) || limits().any(|l| asks(&l));
    let memory = any(|limits| limits.memory.is_some());
    let cpu = any(|limits| limits.cpu.is_some());
    [
        (!policy.services.is_empty(), Controller::Processes),
        (memory, Controller::Memory),
        (cpu, Controller::Cpu),
    ]
    .into_iter()
    .filter_map(|(is_needed, controller)| is_needed.then_some(controller))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(asked: Option<&str>, own: &str) -> (String, String, bool, bool) {
        let layout = Layout::of(asked.map(Into::into), Path::new(own), Path::new("/m"));
        let text = |path: &Path| path.display().to_string();
        let (workers, common) = (text(&layout.workers), text(&layout.common));
        (workers, common, layout.moves, layout.hands_down)
    }

    #[test]
    fn workers_run_in_the_configured_group_or_beside_the_keeper() {
        let expected = |workers: &str, common: &str, moves, hands_down| {
            (workers.to_owned(), common.to_owned(), moves, hands_down)
        };
        // A unit for the workers alone, in one slice with the keeper's.
        assert_eq!(
            place(Some("usher.slice/w.service"), "/m/usher.slice/k.service"),
            expected("/m/usher.slice/w.service", "/m/usher.slice", false, true)
        );
        // The keeper's own unit, as systemd 252 and systemd 254 start it.
        assert_eq!(place(None, "/m/k"), expected("/m/k", "/m/k", true, false));
        let leaf = expected("/m/k", "/m/k", true, true);
        assert_eq!(place(None, "/m/k/keeper"), leaf);
        assert_eq!(place(Some("/m/k"), "/m/k/keeper"), leaf);
        assert_eq!(
            place(Some("/m/w"), "/m/k"),
            expected("/m/w", "/m", false, true)
        );
        assert_eq!(place(Some("w"), "/m"), expected("/m/w", "/m", false, true));
    }
}
