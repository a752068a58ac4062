//! The policy lines that name the user of a question.

use usher_policy::{BlockKind, Clause, Name, Principal, Service};

use crate::decision::Case;
use crate::network::HostPolicy;

impl Case<'_> {
    /// Adds the lines by which a block's `users` name the user.
    pub(crate) fn ground_user<'n>(
        &mut self,
        host: &HostPolicy,
        (kind, name): (BlockKind, &str),
        user_blocks: impl Iterator<Item = &'n Name>,
    ) {
        for block in user_blocks {
            let users = host.policy.users.get(block);
            let clauses = users.map(|users| users.clauses_of(&self.question.user));
            self.ground_users(host, Clause::value(kind, name, "users", block), clauses);
        }
    }

    /// Adds the lines by which a certificate with one of these principals makes the user one.
    pub(crate) fn ground_certificate(
        &mut self,
        host: &HostPolicy,
        service: &Service,
        principals: &[&Principal],
    ) {
        for block in &service.user_blocks {
            let users = host.policy.users.get(block);
            let of_users = |principal: &&Principal| users?.clause_of_principal(principal);
            let clauses = principals.iter().filter_map(of_users).collect();
            let named = Clause::value(BlockKind::Service, &service.name, "users", block);
            self.ground_users(host, named, Some(clauses));
        }
        self.principals = principals.iter().copied().cloned().collect();
    }

    /// Adds the lines of a set that contain the user, after the line that names the set.
    fn ground_users(&mut self, host: &HostPolicy, named: Clause, clauses: Option<Vec<Clause>>) {
        let clauses = clauses.filter(|clauses| !clauses.is_empty());
        for clause in clauses
            .iter()
            .flat_map(|clauses| std::iter::once(&named).chain(clauses))
        {
            self.ground(host, clause.clone());
        }
    }
}
