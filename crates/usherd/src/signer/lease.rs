//! Leases. A lease says that the configuration in force lets a user of this host authenticate to a service of
//! another host.
//!
//! The policy is checked once, when a lease is granted. A configuration that no longer permits the
//! use cancels the lease when it comes in force. In between, a task may wait for a key, an agent or
//! a server; afterwards it checks only its lease.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use usher_daemon::clock::unix_time;
use usher_kernel::ticket::ProgramId;
use usher_local::checked::Checked;
use usher_local::configuration::InForce;
use usher_proto::refusal::Refusal;

use super::programs::ListedPrograms;
use super::sessions::{Pair, SessionKey, permitted_until};

/// The use for which a lease is granted.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    /// A session, for any connections.
    Session,
    /// The connection of a program that requests its announcement.
    Asked(Option<ProgramId>),
    /// The connection of a program that makes no request.
    Plain(Option<ProgramId>),
}

/// The permission to authenticate a pair, until a configuration cancels it or it expires.
#[derive(Clone)]
pub struct Lease {
    /// The user and the service.
    pub pair: Pair,
    terms: Arc<Terms>,
}

struct Terms {
    number: u64,
    all: Arc<All>,
    key: SessionKey,
    used_for: Use,
    /// Its expiry, in seconds since 1970.
    until: AtomicU64,
    cancelled: OnceLock<Refusal>,
}

type All = Mutex<HashMap<u64, Weak<Terms>>>;

/// All leases: one for each connection and renewal under way, which have limits of their own.
#[derive(Default)]
pub struct Leases {
    last_number: AtomicU64,
    all: Arc<All>,
}

impl Leases {
    /// Grants a lease if the configuration in force permits it.
    ///
    /// # Errors
    /// The refusals of [`permitted_until`], and [`Refusal::ProgramNotPermitted`].
    pub fn grant(
        &self,
        pair: Pair,
        used_for: Use,
        in_force: &InForce,
        programs: &ListedPrograms,
    ) -> Result<Lease, Refusal> {
        let terms = Arc::new(Terms {
            number: self.last_number.fetch_add(1, Ordering::Relaxed),
            all: Arc::clone(&self.all),
            key: pair.key.clone(),
            used_for,
            until: AtomicU64::new(u64::MAX),
            cancelled: OnceLock::new(),
        });
        // Enter the lease before checking the policy, so that a configuration that comes in force in between
        // checks it, too.
        self.all.lock().insert(terms.number, Arc::downgrade(&terms));
        terms.check(&in_force.get().checked, programs);
        let lease = Lease { pair, terms };
        lease.check().map(|()| lease)
    }

    /// Cancels, for good, leases that the new configuration does not permit.
    pub fn check_all(&self, checked: &Checked, programs: &ListedPrograms) {
        let all: Vec<_> = self.all.lock().values().filter_map(Weak::upgrade).collect();
        for terms in all {
            terms.check(checked, programs);
        }
    }
}

impl Lease {
    /// Checks that the lease is still valid.
    ///
    /// # Errors
    /// The reason for which it was cancelled; [`Refusal::ClientPolicy`] when it has expired.
    pub fn check(&self) -> Result<(), Refusal> {
        if let Some(refusal) = self.terms.cancelled.get() {
            return Err(*refusal);
        }
        if self.until() <= unix_time() {
            return Err(Refusal::ClientPolicy);
        }
        Ok(())
    }

    /// Its expiry, in seconds since 1970.
    pub fn until(&self) -> u64 {
        self.terms.until.load(Ordering::Relaxed)
    }
}

impl Terms {
    fn check(&self, checked: &Checked, programs: &ListedPrograms) {
        match self.permitted(checked, programs) {
            Ok(until) => {
                self.until.fetch_min(until, Ordering::Relaxed);
            }
            // A lease that was cancelled before keeps its reason.
            Err(refusal) => drop(self.cancelled.set(refusal)),
        }
    }

    /// The time until which the use is permitted.
    fn permitted(&self, checked: &Checked, programs: &ListedPrograms) -> Result<u64, Refusal> {
        let until = permitted_until(&self.key, checked)?;
        let (policy, key) = (&checked.policy, &self.key);
        let (entry, program) = match self.used_for {
            Use::Session => return Ok(until),
            Use::Asked(program) => {
                let now = unix_time();
                let entry = policy.client_permits(&key.user, &key.host, &key.service, now)?;
                (entry, program)
            }
            Use::Plain(program) => {
                let (_, entry) = policy
                    .plain_service(key.server)
                    .ok_or(Refusal::ClientPolicy)?;
                (entry, program)
            }
        };
        if programs.permits(&entry.programs, program) {
            Ok(until)
        } else {
            Err(Refusal::ProgramNotPermitted)
        }
    }
}

impl Drop for Terms {
    fn drop(&mut self) {
        self.all.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sessions::tests::{configuration, pair};
    use super::*;

    fn grant(leases: &Leases, in_force: &InForce, used_for: Use) -> Result<Lease, Refusal> {
        let pair = pair(&in_force.get().checked);
        leases.grant(pair, used_for, in_force, &ListedPrograms::default())
    }

    #[test]
    fn a_reload_cancels_what_it_forbids_and_for_good() {
        let (leases, programs) = (Leases::default(), ListedPrograms::default());
        let permitting = || configuration("", None);
        let in_force = InForce::new(permitting());
        let lease = grant(&leases, &in_force, Use::Session).unwrap();
        let reload = |fresh| {
            leases.check_all(&in_force.put(fresh).checked, &programs);
            lease.check()
        };
        assert_eq!(reload(permitting()), Ok(()));
        assert_eq!(
            reload(configuration("", Some("left"))),
            Err(Refusal::DisabledUser)
        );
        assert!(grant(&leases, &in_force, Use::Session).is_err());
        // A new lease is granted; this one stays cancelled.
        assert_eq!(reload(permitting()), Err(Refusal::DisabledUser));
        assert!(grant(&leases, &in_force, Use::Session).is_ok());
    }

    #[test]
    fn a_program_that_is_listed_no_longer_loses_its_lease_only() {
        let (leases, programs) = (Leases::default(), ListedPrograms::default());
        let in_force = InForce::new(configuration("", None));
        let session = grant(&leases, &in_force, Use::Session).unwrap();
        let asked = grant(&leases, &in_force, Use::Asked(None)).unwrap();
        let listed = configuration(" programs \"/usr/bin/mutt\";", None);
        leases.check_all(&in_force.put(listed).checked, &programs);
        assert_eq!(asked.check(), Err(Refusal::ProgramNotPermitted));
        assert_eq!(session.check(), Ok(()));
        // The same program may not connect without a request either.
        let plain = grant(&leases, &in_force, Use::Plain(None));
        assert_eq!(plain.err(), Some(Refusal::ProgramNotPermitted));
    }

    #[test]
    fn a_lease_that_is_dropped_leaves_nothing() {
        let (leases, in_force) = (Leases::default(), InForce::new(configuration("", None)));
        let lease = grant(&leases, &in_force, Use::Session).unwrap();
        let other = lease.clone();
        drop(lease);
        assert_eq!(leases.all.lock().len(), 1);
        drop(other);
        assert!(leases.all.lock().is_empty());
    }
}
