//! The user of a question: the lines of a policy that have the user, or why none does.

use usher_policy::{BlockKind, Clause, Name, Service};
use usher_proto::UserName;

use crate::decision::Case;
use crate::network::HostPolicy;
use crate::objection::{Objection, Reason};

impl Case<'_> {
    pub(crate) fn ask_disabled(&mut self, host: &HostPolicy) {
        let user = &self.question.user;
        if host.users.disabled.contains(user) {
            let reason = Reason::Disabled {
                host: host.name.clone(),
                user: user.clone(),
            };
            self.object(host, reason, Vec::new());
        }
    }

    /// Gives what permits the user of a block's `users`; whether anything does.
    pub(crate) fn ask_users<'n>(
        &mut self,
        host: &HostPolicy,
        (kind, name): (BlockKind, &dyn std::fmt::Display),
        user_blocks: impl Iterator<Item = &'n Name>,
    ) {
        for block in user_blocks {
            let user = &self.question.user;
            let users = host.policy.users.get(block);
            let clauses = users
                .map(|users| users.clauses_of(user))
                .unwrap_or_default();
            if !clauses.is_empty() {
                self.ground(host, Clause::value(kind, name, "users", block));
                for clause in clauses {
                    self.ground(host, clause);
                }
            }
        }
    }

    /// What makes a user who is none by name one by a certificate.
    pub(crate) fn ask_certificate(&mut self, host: &HostPolicy, service: &Service) {
        let principals = host.certifiable(service, &self.question.user);
        if principals.is_empty() {
            return self.object_to_user(host, service);
        }
        for block in &service.user_blocks {
            let users = host.policy.users.get(block);
            let clauses = principals
                .iter()
                .filter_map(|principal| users?.clause_of_principal(principal));
            let clauses: Vec<Clause> = clauses.collect();
            if !clauses.is_empty() {
                let named = Clause::value(BlockKind::Service, &service.name, "users", block);
                self.ground(host, named);
            }
            for clause in clauses {
                self.ground(host, clause);
            }
        }
        self.principals = principals.into_iter().cloned().collect();
    }

    /// Why a service does not admit the user, whatever the certificate.
    fn object_to_user(&mut self, host: &HostPolicy, service: &Service) {
        let block = Clause::block(BlockKind::Service, &service.name);
        if let Some(over) = self.guest_over(host, &block, service.user_blocks.iter()) {
            return self.objections.push(over);
        }
        let user = self.question.user.clone();
        let (own, name) = (host.name.clone(), service.name.clone());
        if !service.may_certify(&user) {
            let reason = Reason::NeverAdmitted {
                host: own,
                service: name,
                user,
            };
            return self.object(host, reason, Vec::new());
        }
        let clause = Clause::statement(BlockKind::Service, &name, "users");
        let reason = Reason::UserNotAdmitted {
            host: own,
            service: name,
            user,
        };
        self.object(host, reason, vec![clause]);
    }

    /// The objection to a user who is in no set of a block's `users` any more, and was a guest.
    pub(crate) fn guest_over<'n>(
        &self,
        host: &HostPolicy,
        block: &Clause,
        user_blocks: impl Iterator<Item = &'n Name>,
    ) -> Option<Objection> {
        let user = &self.question.user;
        let times = user_blocks.filter_map(|users| {
            let until = host.former_guests.get(&(users.clone(), user.clone()))?;
            Some((*until, users))
        });
        let (until, users) = times.max()?;
        let reason = Reason::GuestOver {
            host: host.name.clone(),
            block: block.to_string(),
            user: user.clone(),
            until,
        };
        let line = format!("{user} until {until}");
        Some(Objection {
            host: host.name.clone(),
            reason,
            clauses: vec![Clause::value(BlockKind::Users, users, "guest", line)],
        })
    }
}

/// Whether the user can have a good key for a service, as far as is known.
pub(crate) fn has_key(host: &HostPolicy, user: &UserName, service: &Service) -> bool {
    host.users.holders(&service.keys).has(user)
}
