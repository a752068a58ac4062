//! Compares two states of a network: users who gain or lose access, and access that changes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};
use usher_policy::{Name, Principal};

use crate::certificates::ByCertificate;
use crate::how::How;
use crate::network::{HostPolicy, Network};
use crate::rights::{Known, Right};
use crate::sets::{SetId, Universe};

/// A change for one service and the users of one client host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The client host.
    pub client: HostName,
    /// The service.
    pub service: ServiceName,
    /// The service's host.
    pub server: HostName,
    /// The sides whose policies are known afterwards or, if nothing is left, were known before.
    pub known: Known,
    /// Users who now have access by name, and before had none or needed a certificate.
    pub gain: Vec<UserName>,
    /// Users who had access by name before, and now have none or need a certificate.
    pub lose: Vec<UserName>,
    /// The changes for users who need a certificate now, or needed one before; one for each principal that
    /// certificates name.
    pub certificates: Vec<CertificateChange>,
    /// The former and the present way of making and serving connections, for users who had and have
    /// access. Absent if both are the same, or if there are no such users.
    pub how: Option<(How, How)>,
}

/// A change for users with a certificate that names a principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CertificateChange {
    /// The principal that the certificate names.
    pub principal: Principal,
    /// Users who now have access only with it. Before, they had none, or needed no certificate.
    pub gain: Vec<UserName>,
    /// Whether it now gives access to all users, even to those whom no policy names, and did not before.
    pub anybody_gains: bool,
    /// Users who had access only with it, and now have none, with it or without a certificate.
    pub lose: Vec<UserName>,
    /// Whether it gave access to all users, even to those whom no policy names, and now does not.
    pub anybody_loses: bool,
}

/// All changes from one network to another, ordered by server, service and client. Empty when the
/// same users may do the same in the same way.
pub fn difference(before: &Network, after: &Network) -> Vec<Change> {
    let mut universe = Universe::new(&[before, after]);
    type Pair<'n> = (Option<Right<'n>>, Option<Right<'n>>);
    let mut pairs: BTreeMap<_, Pair<'_>> = BTreeMap::new();
    let place = |right: &Right<'_>| {
        let Right {
            client,
            service,
            server,
            ..
        } = *right;
        (server.clone(), service.clone(), client.clone())
    };
    for right in universe.rights(before) {
        let place = place(&right);
        pairs.entry(place).or_default().0 = Some(right);
    }
    for right in universe.rights(after) {
        let place = place(&right);
        pairs.entry(place).or_default().1 = Some(right);
    }
    let mut changes = Vec::new();
    for ((server, service, client), (before, after)) in pairs {
        let Some(known) = after.as_ref().or(before.as_ref()).map(|right| right.known) else {
            continue;
        };
        let users =
            |right: &Option<Right<'_>>| right.as_ref().map_or(SetId::NOBODY, |right| right.users);
        let (had, has) = (users(&before), users(&after));
        let (gain, lose) = (universe.without(has, had), universe.without(had, has));
        let certificates = certificates(&mut universe, &before, &after);
        let kept = some_kept(&mut universe, &before, &after);
        let how = before
            .zip(after)
            .map(|(before, after)| (before.how(), after.how()));
        let how = how.filter(|(before, after)| kept && before != after);
        let same_users = (gain, lose) == (SetId::NOBODY, SetId::NOBODY);
        if same_users && certificates.is_empty() && how.is_none() {
            continue;
        }
        let named = |set| universe.users(set).into_iter().cloned().collect();
        changes.push(Change {
            client,
            service,
            server,
            known,
            gain: named(gain),
            lose: named(lose),
            certificates,
            how,
        });
    }
    changes
}

/// Whether any user had and still has access, if only with a certificate.
fn some_kept<'n>(
    universe: &mut Universe<'n>,
    before: &Option<Right<'n>>,
    after: &Option<Right<'n>>,
) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return false;
    };
    let mut all = |right: &Right<'n>| {
        let by_certificate = right.by_certificate.iter();
        by_certificate.fold(right.users, |users, by| universe.either(users, by.users))
    };
    let (had, has) = (all(before), all(after));
    let anybody = |right: &Right<'n>| right.by_certificate.iter().any(|by| by.anybody);
    anybody(before) && anybody(after) || universe.both(had, has) != SetId::NOBODY
}

/// The changes by certificates.
fn certificates<'n>(
    universe: &mut Universe<'n>,
    before: &Option<Right<'n>>,
    after: &Option<Right<'n>>,
) -> Vec<CertificateChange> {
    let by_certificate = |right: &Option<Right<'n>>| {
        let by_certificate = right.iter().flat_map(|right| &right.by_certificate);
        let found: BTreeMap<&'n Principal, ByCertificate<'n>> =
            by_certificate.map(|by| (by.principal, *by)).collect();
        found
    };
    let (had, has) = (by_certificate(before), by_certificate(after));
    let principals: BTreeSet<&Principal> = had.keys().chain(has.keys()).copied().collect();
    let anyway = after.as_ref().map_or(SetId::NOBODY, |right| right.users);
    let mut changes = Vec::new();
    for principal in principals {
        let of = |found: &BTreeMap<&Principal, ByCertificate<'_>>| {
            let by = found.get(principal);
            by.map_or((SetId::NOBODY, false), |by| (by.users, by.anybody))
        };
        let ((had, had_anybody), (has, has_anybody)) = (of(&had), of(&has));
        let gain = universe.without(has, had);
        let lost = universe.without(had, has);
        let lose = universe.without(lost, anyway);
        let named = |set| universe.users(set).into_iter().cloned().collect();
        let change = CertificateChange {
            principal: principal.clone(),
            gain: named(gain),
            anybody_gains: has_anybody && !had_anybody,
            lose: named(lose),
            anybody_loses: had_anybody && !has_anybody,
        };
        let users_change = (gain, lose) != (SetId::NOBODY, SetId::NOBODY);
        if users_change || change.anybody_gains || change.anybody_loses {
            changes.push(change);
        }
    }
    changes
}

/// A module of a host whose settings are others than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleChange {
    /// The host.
    pub host: HostName,
    /// The module.
    pub module: String,
    /// The module's former settings, one string a statement; none: the policy had no block of the module.
    pub before: Option<Vec<String>>,
    /// The module's present settings.
    pub after: Option<Vec<String>>,
}

/// The modules whose settings are others, ordered by host and module. A host whose policy only one of the
/// two networks has is left out.
pub fn module_changes(before: &Network, after: &Network) -> Vec<ModuleChange> {
    let mut changes = Vec::new();
    for host in before.hosts() {
        let Some(now) = after.host(&host.name) else {
            continue;
        };
        let (had, has) = (settings(host), settings(now));
        let modules: BTreeSet<&Name> = had.keys().chain(has.keys()).copied().collect();
        for module in modules {
            let (before, after) = (had.get(module).cloned(), has.get(module).cloned());
            if before != after {
                changes.push(ModuleChange {
                    host: host.name.clone(),
                    module: module.to_string(),
                    before,
                    after,
                });
            }
        }
    }
    changes
}

fn settings(host: &HostPolicy) -> BTreeMap<&Name, Vec<String>> {
    let blocks = host.policy.mac.iter();
    blocks
        .map(|block| (&block.module, block.settings.lines()))
        .collect()
}
