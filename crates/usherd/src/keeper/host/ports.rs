//! Reserves TCP ports of this host for its services.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use parking_lot::Mutex;
use usher_base::UserName;
use usher_bpf::Objects;
use usher_kernel::ports::Reserved;
use usher_policy::{Policy, ServedBy, Service};
use usher_proto::refusal::Refusal;

use crate::ports::ReservedPorts;

/// The results of account look-ups.
pub type Found = BTreeMap<UserName, Result<u32, Refusal>>;

/// The ports of services.
pub struct ServicePorts {
    reserved: ReservedPorts,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The generation of the configuration in force.
    generation: u64,
    /// Whether that configuration's accounts are being looked up, or the look-up was abandoned.
    pending: bool,
    /// Whether the name service left an account unanswered, which then keeps its former user id.
    is_unanswered: bool,
    /// The accounts, by the last look-up.
    found: Found,
}

/// The accounts of a policy's services.
pub fn accounts(policy: &Policy) -> BTreeSet<&UserName> {
    policy
        .services
        .values()
        .filter_map(Service::account)
        .collect()
}

impl ServicePorts {
    /// No reservations yet. They will hold for processes in a control group and below.
    pub fn open(cgroup: &Path) -> Self {
        let otherwise = "a local user who binds a service's port first keeps a service with an \
            `account` from starting";
        Self {
            reserved: ReservedPorts::open(cgroup, otherwise),
            state: Mutex::default(),
        }
    }

    /// The fault of the control group, for people.
    pub fn trouble(&self) -> Option<String> {
        self.reserved.trouble()
    }

    /// The kernel's objects that reserve the ports, for the guard.
    pub fn objects(&self) -> Objects {
        self.reserved.objects()
    }

    /// Reserves the ports of a policy's services at once, before the account look-ups, which may take long.
    /// Root (the keeper) and the service's account may use a port; while the account is not known yet, only
    /// root. [`ServicePorts::is_incomplete`] until [`ServicePorts::complete`].
    pub fn begin(&self, generation: u64, policy: &Policy) {
        let mut state = self.state.lock();
        state.generation = generation;
        state.pending = true;
        self.reserved.reserve(state.ports(policy));
    }

    /// Notes the result of one look-up while others are under way. Returns whether it is for the
    /// configuration in force.
    pub fn note(&self, generation: u64, account: &UserName, uid: Result<u32, Refusal>) -> bool {
        let mut state = self.state.lock();
        let is_present = generation == state.generation;
        if is_present && uid.is_ok() {
            state.found.insert(account.clone(), uid);
        }
        is_present
    }

    /// Reserves the ports by the results of all look-ups. The port of a missing account is for root only.
    /// Changes nothing if another configuration has come in force, whose accounts are looked up too.
    pub fn complete(&self, generation: u64, policy: &Policy, found: Found) {
        let mut state = self.state.lock();
        if state.take(generation, found) {
            // If the kernel did not reserve all ports, this is tried again.
            state.pending = !self.reserved.reserve(state.ports(policy));
        }
    }

    /// The user id of a service's account, by the last look-up.
    ///
    /// # Errors
    /// That of the look-up; [`Refusal::KeeperUnavailable`] before its end.
    pub fn uid_of(&self, account: &UserName) -> Result<u32, Refusal> {
        let state = self.state.lock();
        let found = state.found.get(account).copied();
        found.unwrap_or(Err(Refusal::KeeperUnavailable))
    }

    /// Notes that the account of a service is gone or was replaced, so that it is looked up again.
    pub fn lose(&self, account: &UserName) {
        if let Some(found) = self.state.lock().found.get_mut(account) {
            *found = Err(Refusal::NoLocalAccount);
        }
    }

    /// Whether account look-ups are incomplete, or an account was missing, which may have been made
    /// meanwhile.
    pub fn is_incomplete(&self) -> bool {
        self.state.lock().is_incomplete()
    }

    /// The programs' counters.
    pub fn numbers(&self) -> Vec<(String, u64)> {
        self.reserved.numbers()
    }
}

impl State {
    /// Takes the results, and returns true, if they are for the configuration in force.
    fn take(&mut self, generation: u64, found: Found) -> bool {
        if generation != self.generation {
            return false;
        }
        self.pending = false;
        self.is_unanswered = false;
        let mut taken = Found::new();
        for (account, uid) in found {
            let former = self.found.get(&account).copied();
            let uid = match (uid, former) {
                (Err(Refusal::KeeperUnavailable), Some(Ok(former))) => {
                    self.is_unanswered = true;
                    Ok(former)
                }
                (Err(refusal), None | Some(Ok(_))) => {
                    tracing::warn!(%account, reason = refusal.name(), "a service's account is \
                        not found: nobody is served by it yet: {refusal}");
                    Err(refusal)
                }
                (uid, _) => uid,
            };
            taken.insert(account, uid);
        }
        self.found = taken;
        true
    }

    fn is_incomplete(&self) -> bool {
        self.pending || self.is_unanswered || self.found.values().any(Result::is_err)
    }

    fn ports(&self, policy: &Policy) -> Vec<Reserved> {
        let ports = policy.services.values().map(|service| Reserved {
            address: None,
            port: service.listen,
            uid: match &service.served_by {
                ServedBy::Program(_) | ServedBy::Backend(_) => 0,
                ServedBy::Account(account) => match self.found.get(account) {
                    Some(Ok(uid)) => *uid,
                    _ => 0,
                },
            },
        });
        ports.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy with a service of an account at each of these ports.
    fn policy(services: &[(&str, u16)]) -> Policy {
        let blocks = services.iter().map(|(account, port)| {
            format!(
                "service {account} {{
                   account {account}; listen {port}; users mail; hosts any; style user;
                 }}\n"
            )
        });
        let text = format!(
            "users mail {{ member alice; }}\n{}",
            blocks.collect::<String>()
        );
        let name = "services.policy".to_owned();
        usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap()
    }

    fn service_ports() -> ServicePorts {
        ServicePorts::open(Path::new("/no/such/control/group"))
    }

    /// The owners of the policy's ports.
    fn owners(ports: &ServicePorts, policy: &Policy) -> Vec<(u16, u32)> {
        let ports = ports.state.lock().ports(policy);
        ports.iter().map(|port| (port.port, port.uid)).collect()
    }

    fn found(accounts: &[(&str, Result<u32, Refusal>)]) -> Found {
        let found = accounts.iter();
        let found = found.map(|(account, uid)| (account.parse().unwrap(), *uid));
        found.collect()
    }

    const MISSING: Result<u32, Refusal> = Err(Refusal::NoLocalAccount);

    #[test]
    fn ports_are_incomplete_until_all_accounts_are_found() {
        let (ports, policy) = (service_ports(), policy(&[("imap", 143), ("news", 119)]));
        assert!(!ports.is_incomplete());
        ports.begin(1, &policy);
        assert!(ports.is_incomplete());
        assert_eq!(owners(&ports, &policy), [(143, 0), (119, 0)]);
        ports.complete(1, &policy, found(&[("imap", Ok(8)), ("news", MISSING)]));
        assert!(ports.is_incomplete());
        assert_eq!(owners(&ports, &policy), [(143, 8), (119, 0)]);
        ports.complete(1, &policy, found(&[("imap", Ok(8)), ("news", Ok(9))]));
        assert!(!ports.is_incomplete());
        assert_eq!(owners(&ports, &policy), [(143, 8), (119, 9)]);
    }

    #[test]
    fn known_accounts_keep_their_ports_during_a_new_look_up() {
        let (ports, policy) = (service_ports(), policy(&[("imap", 143)]));
        ports.begin(1, &policy);
        ports.complete(1, &policy, found(&[("imap", Ok(8))]));
        ports.begin(2, &policy);
        assert!(ports.is_incomplete());
        assert_eq!(owners(&ports, &policy), [(143, 8)]);
        ports.complete(2, &policy, found(&[("imap", MISSING)]));
        assert_eq!(owners(&ports, &policy), [(143, 0)]);
    }

    #[test]
    fn a_name_service_that_does_not_answer_takes_no_known_account_away() {
        let (ports, policy) = (service_ports(), policy(&[("imap", 143), ("news", 119)]));
        let imap = "imap".parse().unwrap();
        ports.begin(1, &policy);
        assert_eq!(ports.uid_of(&imap), Err(Refusal::KeeperUnavailable));
        // Known as soon as it is answered, and kept without an answer.
        assert!(ports.note(1, &imap, Ok(8)));
        assert!(!ports.note(2, &imap, Ok(9)));
        assert_eq!(ports.uid_of(&imap), Ok(8));
        let unanswered = Err(Refusal::KeeperUnavailable);
        ports.complete(1, &policy, found(&[("imap", unanswered), ("news", Ok(9))]));
        assert_eq!(ports.uid_of(&imap), Ok(8));
        assert!(ports.is_incomplete());
        ports.complete(1, &policy, found(&[("imap", MISSING), ("news", Ok(9))]));
        assert_eq!(ports.uid_of(&imap), MISSING);
        ports.complete(1, &policy, found(&[("imap", Ok(7)), ("news", Ok(9))]));
        assert!(!ports.is_incomplete());
        ports.lose(&imap);
        assert_eq!(ports.uid_of(&imap), MISSING);
        assert!(ports.is_incomplete());
    }

    #[test]
    fn a_late_look_up_does_not_replace_a_newer_configuration() {
        let ports = service_ports();
        let (former, present) = (policy(&[("imap", 143)]), policy(&[("news", 119)]));
        ports.begin(1, &former);
        ports.begin(2, &present);
        ports.complete(1, &former, found(&[("imap", Ok(8))]));
        assert!(ports.is_incomplete());
        assert!(ports.state.lock().found.is_empty());
        ports.complete(2, &present, found(&[("news", Ok(9))]));
        assert!(!ports.is_incomplete());
        assert_eq!(owners(&ports, &present), [(119, 9)]);
        ports.complete(1, &former, found(&[("imap", MISSING)]));
        assert!(!ports.is_incomplete());
        assert_eq!(owners(&ports, &present), [(119, 9)]);
    }
}
